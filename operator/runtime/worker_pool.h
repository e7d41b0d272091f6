#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "common/base/time.h"

namespace trainyard::operator_runtime {

/// Threads that do the same until they are told to end. Thread-safe.
class WorkerPool {
 public:
  WorkerPool() = default;
  /// Tells them to end and waits without limit.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Begins `work` on `count` threads, which returns soon after its token is stopped. Without
  /// effect once end() was called.
  void start(int count, const std::function<void(const std::stop_token&)>& work);
  /// Tells them to end.
  void end();
  /// Waits until all have ended; false when `limit` ran out first.
  bool wait(Duration limit);

 private:
  std::stop_source stop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int running_ = 0;                    ///< guarded by mutex_
  std::vector<std::jthread> threads_;  ///< guarded by mutex_
};

}  // namespace trainyard::operator_runtime
