#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "common/base/time.h"
#include "control/observed.h"

/// Gang: all pods of a generation are made at once, and it counts as placed only when all are.
/// Pure.
namespace trainyard::control::policies {

/// The api::reason for a kubelet's waiting reason that needs a person's help; null for all others.
const char* trouble_of(const std::string& reason);

struct Gang {
  bool whole = false;         ///< every index 0..target-1 has a member, or has completed
  bool placed = false;        ///< and every one has a node (or is finished)
  int64_t placed_count = 0;   ///< members that have a node, and indexes that have completed
  std::vector<int> missing;   ///< indexes without a member that have not completed
  std::string unschedulable;  ///< what the scheduler says of a pod that it cannot place; or empty
  const char* trouble = nullptr;  ///< of the first pod that has one (trouble_of)
  int64_t troubled_pods = 0;      ///< that have the same
  std::string troubled;           ///< "pod x container y" of the first, or empty
  std::string trouble_words;      ///< "ErrImagePull: no such image", or empty
};

/// "ErrImagePull: no such image".
std::string text_of(const WaitingContainer& waiting);

/// How long a gang waits after it has released its nodes. The time differs per job and generation,
/// so that two gangs do not return together. It grows with each release in a row. nullopt: the
/// generation before did not release its nodes.
std::optional<Duration> pause_of(const std::string& job_uid, const api::TrainingJobStatus& status);

/// Looks at the members against the target size; `completed` indexes need none any more.
Gang look_at_gang(const std::vector<const ObservedPod*>& members, int64_t target,
                  const std::set<int>& completed = {});

}  // namespace trainyard::control::policies
