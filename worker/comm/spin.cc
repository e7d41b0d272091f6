#include "worker/comm/spin.h"

#include <sched.h>

namespace trainyard::comm {
namespace {

/// About the cost of a sleep and a wake-up, beyond which polling cannot win twice as much as it
/// loses.
constexpr std::chrono::microseconds kSpin{20};

}  // namespace

std::chrono::nanoseconds spin_for(int local_ranks) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return {};
  return local_ranks <= CPU_COUNT(&allowed) ? kSpin : std::chrono::nanoseconds{0};
}

}  // namespace trainyard::comm
