#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace trainyard::agent {

/// Cuts a stream of bytes into lines of at most `limit` bytes; a longer line comes in pieces.
class LineBuffer {
 public:
  explicit LineBuffer(size_t limit) : limit_(limit) {}

  /// Calls `on_line` with each line that `bytes` completes, without its newline.
  void add(std::string_view bytes, const std::function<void(std::string_view)>& on_line) {
    while (!bytes.empty()) {
      // A full piece waits for its next byte: a newline there ends it.
      if (partial_.size() == limit_ && bytes.front() != '\n') flush(on_line, false);
      const size_t room = limit_ - partial_.size();
      const size_t newline = std::min(bytes.find('\n'), bytes.size());
      const size_t taken = std::min(newline, room);
      partial_ += bytes.substr(0, taken);
      bytes.remove_prefix(taken);
      if (taken < newline || bytes.empty()) continue;
      bytes.remove_prefix(1);
      flush(on_line, true);
    }
  }

  /// Calls `on_line` with what is left, if anything.
  void finish(const std::function<void(std::string_view)>& on_line) { flush(on_line, false); }

 private:
  void flush(const std::function<void(std::string_view)>& on_line, bool even_empty) {
    if (!partial_.empty() || even_empty) on_line(partial_);
    partial_.clear();
  }

  const size_t limit_;
  std::string partial_;
};

}  // namespace trainyard::agent
