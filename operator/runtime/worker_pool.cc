#include "operator/runtime/worker_pool.h"

namespace trainyard::operator_runtime {

WorkerPool::~WorkerPool() {
  end();
  std::vector<std::jthread> threads;
  {
    const std::lock_guard lock(mutex_);
    threads.swap(threads_);
  }
}

void WorkerPool::start(int count, const std::function<void(const std::stop_token&)>& work) {
  const std::lock_guard lock(mutex_);
  if (stop_.stop_requested()) return;
  running_ += count;
  for (int i = 0; i < count; ++i) {
    threads_.emplace_back([this, work] {
      work(stop_.get_token());
      const std::lock_guard done(mutex_);
      --running_;
      changed_.notify_all();
    });
  }
}

void WorkerPool::end() { stop_.request_stop(); }

bool WorkerPool::wait(Duration limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [this] { return running_ == 0; });
}

}  // namespace trainyard::operator_runtime
