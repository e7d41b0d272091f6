#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "common/api/training_job.h"
#include "control/observed.h"

/// Which pods belong to the generation that status has persisted. Pure.
namespace trainyard::control {

/// The pods of a job, sorted; pointers into the list they came from.
struct PodSets {
  std::vector<const ObservedPod*> members;    ///< by node index
  std::vector<const ObservedPod*> condemned;  ///< to be ended, being ended, or kept for their logs
  std::vector<const ObservedPod*> parked;     ///< spares, by number
  /// Members that were made as spares and do not carry their index and the label `member` yet.
  std::vector<const ObservedPod*> unlabelled;
  std::set<int> completed;  ///< indexes that status says have ended well
  /// A pod of a generation that this view of status does not know: the view is stale.
  bool stale = false;
  /// Members that were made as spares, with the index that status gives them.
  std::vector<std::unique_ptr<ObservedPod>> promoted;
};

/// Neither succeeded nor failed.
bool is_alive(const ObservedPod& pod);

/// Has exited and is not being deleted.
bool is_finished(const ObservedPod& pod);

/// Whether a pod that is condemned still keeps its place on a node from a new one: not where the
/// node is lost, nor when its grace is over, as nobody tells how much longer that lasts.
bool holds_place(const ObservedPod& pod, Time now);

/// Until when the ranks of the generation before may write a checkpoint: it was ended by a change
/// of size or a suspension that is over already, which can wait for that. nullopt for any other.
std::optional<Time> yields_until(const api::TrainingJobSpec& spec,
                                 const api::TrainingJobStatus& status);

/// Created in a generation before this one, no pod is a member. A status of a controller that did
/// not write it down is judged by the spec.
int64_t pods_since(const api::TrainingJobSpec& spec, const api::TrainingJobStatus& status);

/// The attempts that condemn pods which still carry the label `member`.
std::vector<api::Attempt> condemning_attempts(const api::TrainingJobStatus& status,
                                              const std::vector<ObservedPod>& pods);

/// Sorts pods into members and condemned by status alone, so that a restart that was written down
/// but not carried out is carried out by whoever looks next. A pod is condemned when it has lost
/// the label `member`; when it is older than membership.podsSince (every pod was replaced); when an
/// attempt of an earlier generation names it, and did not end in place; when a newer pod is a
/// member of its index; or when it runs though its index has ended well, as one does that a process
/// which stood still made late. A pod that was made as a spare is a member where
/// membership.promoted names it, parked where spares.parked has its number, and else condemned.
PodSets sort_pods(const std::vector<ObservedPod>& pods, const api::TrainingJobSpec& spec,
                  const api::TrainingJobStatus& status);

}  // namespace trainyard::control
