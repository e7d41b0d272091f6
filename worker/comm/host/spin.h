#pragma once

#include <chrono>

namespace trainyard::comm {

/// How long a rank polls before it sleeps, with `local_ranks` ranks on this machine: none where
/// they outnumber the cores that they may use, since then polling keeps the awaited rank from
/// running.
std::chrono::nanoseconds spin_for(int local_ranks);

}  // namespace trainyard::comm
