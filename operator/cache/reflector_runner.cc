#include "operator/cache/reflector_runner.h"

#include <utility>

namespace trainyard::cache {

void ThreadRunner::start(Reflector& reflector) {
  const std::lock_guard lock(mutex_);
  threads_[&reflector] =
      std::jthread([&reflector](const std::stop_token& stop) { reflector.run(stop); });
}

void ThreadRunner::stop(Reflector& reflector) {
  std::jthread thread;
  {
    const std::lock_guard lock(mutex_);
    const auto found = threads_.find(&reflector);
    if (found == threads_.end()) return;
    thread = std::move(found->second);
    threads_.erase(found);
  }
  thread.request_stop();
  thread.join();
}

}  // namespace trainyard::cache
