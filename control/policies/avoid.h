#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/api/training_job.h"
#include "common/base/time.h"
#include "control/policies/restart.h"

/// Nodes that a job's new pods keep away from. Pure.
namespace trainyard::control::policies {

/// So many failures of one node that no program explains are the node's.
inline constexpr int64_t kFailuresOfOneNode = 3;
/// In which they count, and in which it is remembered that a node was avoided.
inline constexpr std::chrono::hours kNodeMemory{24};
/// How long a node is avoided the first time; each time twice as long, at most kNodeMemory.
inline constexpr std::chrono::hours kFirstAvoidance{1};

/// Adds to status.avoidedNodes the nodes of these losses that a stall's action names
/// (Loss::avoids_node), and those with kFailuresOfOneNode failures among the attempts, these losses
/// included, of classes that no program explains (Infrastructure and Hang). Forgets the nodes that
/// have been left alone for kNodeMemory. The names of those that were added.
std::vector<std::string> avoid_nodes(api::TrainingJobStatus& status,
                                     const std::vector<Loss>& losses, Time now);

/// The nodes that are to be avoided at `now`.
std::vector<std::string> avoided_nodes(const api::TrainingJobStatus& status, Time now);

}  // namespace trainyard::control::policies
