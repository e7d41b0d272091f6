#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace trainyard::checkpoint {

/// What went wrong without harm to a checkpoint (clean-up, `latest`), one line each, on its way
/// from the thread that noticed it to one that can tell people. Thread-safe.
class Notes {
 public:
  void add(std::string line) {
    const std::lock_guard lock(mutex_);
    if (lines_.size() < kMaxLines) lines_.push_back(std::move(line));
  }
  /// What has been added since the last call.
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  static constexpr size_t kMaxLines = 64;
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace trainyard::checkpoint
