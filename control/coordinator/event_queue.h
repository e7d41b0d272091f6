#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/time.h"
#include "common/base/unique_fd.h"

namespace trainyard::control {

/// Events from transport threads to the one thread that takes them. Thread-safe. It has no limit of
/// its own: transports count what each connection has queued.
template <class Event>
class EventQueue {
 public:
  EventQueue() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { TRAINYARD_CHECK(fd_.valid()); }

  void push(Event event) {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
      signal_locked();
    }
    changed_.notify_one();
  }

  /// Ends a take() that waits, or the next one.
  void interrupt() {
    {
      const std::lock_guard lock(mutex_);
      interrupted_ = true;
    }
    changed_.notify_one();
  }

  /// All events; waits up to `timeout` for the first.
  std::vector<Event> take(Duration timeout) {
    std::unique_lock lock(mutex_);
    if (timeout > Duration::zero()) {
      changed_.wait_for(lock, timeout, [this] { return interrupted_ || !events_.empty(); });
    }
    interrupted_ = false;
    uint64_t count = 0;
    if (signalled_ && ::read(fd_.get(), &count, sizeof count) > 0) signalled_ = false;
    return std::exchange(events_, {});
  }

  /// Readable while there are events.
  int wake_fd() const { return fd_.get(); }

 private:
  void signal_locked() {
    const uint64_t one = 1;
    if (!signalled_ && ::write(fd_.get(), &one, sizeof one) > 0) signalled_ = true;
  }

  UniqueFd fd_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Event> events_;  ///< guarded by mutex_
  bool interrupted_ = false;   ///< guarded by mutex_
  bool signalled_ = false;     ///< guarded by mutex_
};

}  // namespace trainyard::control
