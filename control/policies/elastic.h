#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/api/training_job.h"
#include "common/base/time.h"

/// How many nodes a job runs at. Pure.
namespace trainyard::control::policies {

/// The largest size that the spec allows (api::largest_allowed), at which a job starts where there
/// is room; numNodes where it allows none, which validation refuses.
int64_t nodes_at_start(const api::TrainingJobSpec& spec);
/// Says, for people, that numNodes is no such size, and which is the next below.
std::string not_allowed_text(const api::TrainingJobSpec& spec);

struct ElasticInput {
  const api::TrainingJobSpec* spec = nullptr;
  int64_t target = 0;               ///< size of the generation now
  bool spec_changed = false;        ///< since status was last written
  bool gang_whole = false;          ///< every member exists
  bool gang_placed = false;         ///< every member has a node
  int64_t placed = 0;               ///< members that have a node
  std::optional<int64_t> feasible;  ///< pods the cluster could run; nullopt: unknown
  Time since;                       ///< when the newest member was made
  Time now;
  /// Growths that ended in a shrinking since there was no room after all: each doubles the snooze.
  int64_t failed_growths = 0;
  /// The cluster takes no more pods (a quota is used up): the gang waits for more than nodes.
  bool refused = false;
  /// It has had fewer nodes than the spec wanted before this look, too.
  bool degraded = false;
  /// A member has ended well already: who grows now would do its work again.
  bool ending = false;
  /// Since when no pod of the generation before keeps its place from it; nullopt: none has.
  std::optional<Time> room_since;
};

/// Growths among the attempts that were undone. Neither is one that the user has asked for.
int64_t count_failed_growths(const api::TrainingJobStatus& status);

struct Resize {
  std::optional<int64_t> target;  ///< the size to run at from now on
  std::string_view reason;        ///< ScaleUp or ScaleDown
  bool requested = false;         ///< the spec asks for it, not what room there is
  std::optional<Duration> look_again;
};

/// Shrinks a gang that is not placed within pendingTimeoutSeconds to what is, or that the cluster
/// does not take the rest of, grows a running one of which nothing has ended after
/// scaleUpSnoozeSeconds when the cluster has room, follows numNodes when it changes.
Resize judge_size(const ElasticInput& input);

}  // namespace trainyard::control::policies
