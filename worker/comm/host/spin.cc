#include "worker/comm/host/spin.h"

#include "common/io/control_group.h"

namespace trainyard::comm {
namespace {

/// About the cost of a sleep and a wake-up, beyond which polling cannot win twice as much as it
/// loses.
constexpr std::chrono::microseconds kSpin{20};

}  // namespace

std::chrono::nanoseconds spin_for(int local_ranks) {
  return local_ranks <= usable_cpus() ? kSpin : std::chrono::nanoseconds{0};
}

}  // namespace trainyard::comm
