#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace trainyard {

/// A mutex whose waiters get it in the order in which they came. A thread that takes std::mutex
/// again as soon as it has given it back may keep others waiting for as long as it has work.
/// For locks that are held long beside what two more wakes cost (about 10 us).
class FairMutex {
 public:
  void lock() {
    std::unique_lock guard(mutex_);
    const uint64_t turn = next_++;
    turns_.wait(guard, [&] { return serving_ == turn; });
  }

  void unlock() {
    {
      const std::lock_guard guard(mutex_);
      ++serving_;
    }
    turns_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable turns_;
  uint64_t next_ = 0;     ///< guarded by mutex_
  uint64_t serving_ = 0;  ///< guarded by mutex_
};

}  // namespace trainyard
