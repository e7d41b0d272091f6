#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace trainyard::agent {

/// Cuts a stream of bytes into lines of at most `limit` bytes; a longer line comes in pieces.
class LineBuffer {
 public:
  /// What ends a line. Progress bars write returns and, for hours perhaps, no newline.
  enum class Ends { kNewline, kNewlineOrReturn };

  explicit LineBuffer(size_t limit, Ends ends = Ends::kNewline)
      : limit_(limit), ends_(ends == Ends::kNewline ? "\n" : "\n\r") {}

  /// Calls `on_line` with each line that `bytes` completes, without its end. A return ends no empty
  /// line, and a newline right after it is part of the same end.
  void add(std::string_view bytes, const std::function<void(std::string_view)>& on_line) {
    while (!bytes.empty()) {
      const bool same_end = std::exchange(after_return_, false) && bytes.front() == '\n';
      if (same_end) {
        bytes.remove_prefix(1);
        continue;
      }
      // A full piece waits for its next byte: an end there is its own.
      const bool ends_here = ends_.find(bytes.front()) != std::string_view::npos;
      if (partial_.size() == limit_ && !ends_here) flush(on_line, false);
      const size_t room = limit_ - partial_.size();
      const size_t end = std::min(bytes.find_first_of(ends_), bytes.size());
      const size_t taken = std::min(end, room);
      partial_ += bytes.substr(0, taken);
      bytes.remove_prefix(taken);
      if (taken < end || bytes.empty()) continue;
      after_return_ = bytes.front() == '\r';
      bytes.remove_prefix(1);
      flush(on_line, !after_return_);
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
  const std::string_view ends_;
  std::string partial_;
  bool after_return_ = false;
};

}  // namespace trainyard::agent
