#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace trainyard::kernels {

/// Sets FTZ, DAZ and round-to-nearest for the life of the object, and puts back what was there.
class CanonicalFloatMode {
 public:
  CanonicalFloatMode();
  ~CanonicalFloatMode();
  CanonicalFloatMode(const CanonicalFloatMode&) = delete;
  CanonicalFloatMode& operator=(const CanonicalFloatMode&) = delete;

 private:
  unsigned saved_;
};

/// A team of threads that runs one set of tasks at a time. Tasks are claimed one by one, so that a
/// worker that the operating system does not schedule delays nobody: the caller takes its share.
/// Between sets the workers spin for some microseconds, then sleep on a futex; none is pinned.
/// One caller at a time.
class ThreadPool {
 public:
  /// task(context, index, thread): `thread` is 0..threads()-1 and no two running tasks share it.
  using Task = void (*)(const void* context, int64_t index, int thread);

  /// `threads` counts the caller: threads - 1 workers are started.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Runs tasks 0..count-1 and returns when all are done; what they wrote is visible then.
  /// count < 2^31. Tasks must not throw and not call run.
  void run(int64_t count, Task task, const void* context);

 private:
  void work(int thread);
  /// Claims and runs tasks of the set `epoch` until none is left.
  void drain(uint32_t epoch, int thread);

  // The claim word: the set's epoch in the high half, the next task in the low half. A worker that
  // comes late with an old word fails its compare-exchange and so never runs a task of a set whose
  // fields it has not read. done_ counts finished tasks, the caller's signal.
  alignas(64) std::atomic<uint64_t> claim_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};  // what sleeping workers wait on
  alignas(64) std::atomic<uint32_t> done_{0};
  alignas(64) std::atomic<int64_t> count_{0};
  std::atomic<Task> task_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<bool> stop_{false};
  std::vector<std::jthread> workers_;
};

}  // namespace trainyard::kernels
