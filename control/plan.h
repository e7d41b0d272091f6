#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/api/training_job.h"
#include "common/base/time.h"
#include "control/observed.h"
#include "control/pod_spec.h"

namespace trainyard::control {

enum class EventType { kNormal, kWarning };

/// Told to users after the status write that explains it succeeded.
struct Event {
  EventType type = EventType::kNormal;
  std::string reason;
  std::string message;

  bool operator==(const Event&) const = default;
};

/// A pod to take out of the membership and delete.
struct Condemnation {
  PodRef pod;
  bool remove_member_label = false;  ///< still carries it
  bool remove = true;                ///< false: the label only; the pod stays for its logs
  /// To end by itself; nullopt: the job's own (pod_spec.h).
  std::optional<Duration> grace;
};

/// A pod that was made as a spare and is to carry its index.
struct Labelling {
  PodRef pod;
  int node_index = 0;
};

/// What to do about one job, in the order of application (control/apply.h). Empty: at rest.
struct Plan {
  /// The decision itself, written before anything is deleted or created because of it.
  std::optional<api::TrainingJobStatus> intent;
  std::vector<Condemnation> condemn;
  std::vector<Labelling> promote;
  std::vector<PodSpec> create;
  std::vector<PodSpec> create_spares;  ///< the job goes on where these are refused
  /// What was seen, written last; only where it differs from what status says.
  std::optional<api::TrainingJobStatus> outcome;
  std::vector<Event> events;
  /// What was refused stands in status, and the plan sees nothing that is not taken any more: if
  /// the cluster refuses nothing of it this time, the job is accepted again.
  bool accept_if_taken = false;
  /// Look again after this long even if nothing changes; nullopt: only when something changes.
  std::optional<Duration> requeue_after;
  /// The job object's time to live is over.
  bool delete_job = false;
  /// Decided because pods are not in view: they are to be looked for where no cache is in between
  /// (Cluster::list_pods) before it is carried out.
  bool rests_on_absence = false;
};

/// The message of Accepted.
inline constexpr std::string_view kSpecIsValid = "the spec is valid";

/// Whether the job is ours to act on: not another controller's (managedBy), and not being deleted,
/// when what it owns belongs to the garbage collector (orphan or foreground).
bool is_ours(const Observed& observed);

/// The whole decision: restarts, resizes, stalls, completion. Pure: the same values give the same
/// plan, so that what one process began another finishes. `now` is wall time.
/// Source: docs/adr/0003-one-brain-written-ahead.md; terms and order of batch/v1's Job controller.
Plan plan(const Observed& observed, Time now);

}  // namespace trainyard::control
