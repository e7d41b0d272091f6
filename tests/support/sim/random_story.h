#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/sim/sim_cluster.h"

namespace trainyard::sim {

// What every story has, at least.
inline constexpr int64_t kReconcilesMin = 200;
inline constexpr int64_t kFaultsMin = 5;
inline constexpr int64_t kPodsMin = 4;
/// So many stories in a row have struck every write with every fault a hundred times.
inline constexpr int64_t kStoriesForTheMatrix = 1300;

/// What became of one story.
struct Told {
  int64_t reconciles = 0;
  int64_t faults = 0;
  int64_t pods = 0;  ///< made
  FaultMatrix matrix{};
  std::vector<std::string> violations;
  uint64_t digest = 0;  ///< of everything that was written
};

/// Plays the story of this number.
Told tell_story(uint64_t seed);

}  // namespace trainyard::sim
