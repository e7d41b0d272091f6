#include "common/base/wait.h"

#include <condition_variable>
#include <mutex>

namespace trainyard {

bool wait_for_stop(const std::stop_token& stop, Duration limit) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, limit, [] { return false; });
  return stop.stop_requested();
}

}  // namespace trainyard
