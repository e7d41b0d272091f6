#pragma once

#include "common/contract/rank_counters.h"

namespace trainyard::coordination {
class RankCounters;
}

/// A rank's counters on the control stream.
namespace trainyard::control {

void store(const contract::RankCountersReading& reading, coordination::RankCounters& message);

/// Bounded. Elements that the message lacks are zero; those it has too many of are left out.
contract::RankCountersReading load(const coordination::RankCounters& message);

}  // namespace trainyard::control
