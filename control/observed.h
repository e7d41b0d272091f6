#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/api/training_job.h"
#include "common/base/time.h"
#include "control/container_exit.h"
#include "control/facts.h"

/// What plan decides from: projections of the world, not whole objects.
namespace trainyard::control {

/// Names one job.
struct JobKey {
  std::string namespace_name;
  std::string name;

  auto operator<=>(const JobKey&) const = default;  // NOLINT: clang-tidy 14 sees a 0 in it
};

/// Names one pod and no other: the UID is a precondition of every change.
struct PodRef {
  std::string namespace_name;
  std::string name;
  std::string uid;

  auto operator<=>(const PodRef&) const = default;  // NOLINT: as above
};

/// Life of a pod, as the API server tells it.
enum class PodPhase { kPending, kRunning, kSucceeded, kFailed };

/// What is known of the machine a pod was placed on. A lost node does not mean that the pod is
/// gone.
enum class NodeState { kUnplaced, kReady, kNotReady, kGone };

struct PodCondition {
  std::string type;
  std::string status;  ///< "True", "False", "Unknown"
  std::string reason;
  std::string message;
};

/// Why a container of a pod that has a node does not start, as the kubelet reports it.
struct WaitingContainer {
  std::string container;
  std::string reason;  ///< "ErrImagePull"
  std::string message;
  std::optional<Time> since;  ///< when the kubelet began with the pod
};

/// One pod owned by the job (ownerRef UID is the job's).
struct ObservedPod {
  std::string name;
  std::string uid;
  std::string node;
  std::string address;  ///< where its peers reach it; empty until it has one
  int node_index = 0;   ///< -1: has none
  /// Of one that was made as a spare: its number among the job's spares.
  std::optional<int64_t> spare;
  int64_t created_generation = 0;
  bool member = false;       ///< carries the label trainyard.dev/member=true
  bool terminating = false;  ///< has a deletionTimestamp
  /// Until when one that is terminating may go on; nullopt where nobody tells.
  std::optional<Time> ends_at;
  PodPhase phase = PodPhase::kPending;
  bool ready = false;
  NodeState node_state = NodeState::kUnplaced;
  /// Of the agent that was put into it, else of the container that decides.
  std::string worker_image;
  bool node_closed = false;  ///< it takes no new pods: somebody may be about to drain it
  std::optional<Time> created_at;
  std::optional<Time> placed_at;  ///< when it got its node; nullopt: not yet, or nobody tells
  /// Since when the container that decides runs; nullopt: it does not, or nobody tells.
  std::optional<Time> started_at;
  std::vector<PodCondition> conditions;
  std::optional<WaitingContainer> waiting;
  std::optional<ContainerExit> exit;
  /// How the others have ended, bad ends only: a failure rule may name them.
  std::vector<ContainerExit> sidecar_exits;
  /// The container that decides has ended, others run on: the pod still holds its place on a node.
  bool lingers = false;
  std::string message;  ///< what is said of the pod as a whole ("Evicted: low on memory")
};

/// Whether its node has gone, or does not answer.
inline bool is_node_lost(const ObservedPod& pod) {
  return pod.node_state == NodeState::kNotReady || pod.node_state == NodeState::kGone;
}

/// The condition by which the cluster says that it takes a pod away (batch/v1, KEP-3329), or null.
inline const PodCondition* disruption_of(const ObservedPod& pod) {
  for (const PodCondition& condition : pod.conditions) {
    if (condition.type == "DisruptionTarget" && condition.status == "True") return &condition;
  }
  return nullptr;
}

/// Why the cluster does not take a job's pods, in the words of condition Accepted.
struct Refusal {
  std::string reason;  ///< one of api::reason
  std::string message;
  bool passing = false;  ///< goes by itself within seconds: looked at again soon

  bool operator==(const Refusal&) const = default;
};

/// One look at one job.
struct Observed {
  JobKey key;
  int64_t look = 0;          ///< tells looks of the same process apart, where the cluster counts
  api::ObjectMeta metadata;  ///< resource_version is what put_status wants back
  api::TrainingJobSpec spec;
  api::TrainingJobStatus status;
  /// What validation says of the spec; not empty: nothing may be created.
  std::vector<std::string> spec_faults;
  /// What the cluster said of a pod of this spec that was only tried; nothing new is made then.
  std::optional<Refusal> refusal;
  std::vector<ObservedPod> pods;
  /// Members that went before a look at them: as they were last known, where that is known.
  std::vector<ObservedPod> gone;
  StreamFacts facts;
  /// Worker image that this operator would use for new pods of this spec; empty: none.
  std::string worker_image;
  /// Restarts that make all pods anew make them with that one; false: only the job's start and its
  /// resumption after a suspension.
  bool restarts_renew_image = true;
  /// Its pods have agents, and a coordinator hosts the job or is about to.
  bool has_agents = false;
  /// The person at the terminal asked to stop: as suspend, without touching the spec.
  bool requested_stop = false;
  /// Where nothing but counts of pods has changed they are not written before this; nullopt: at
  /// once.
  std::optional<Time> counts_due;
  /// Progress alone is written no more often than this.
  Duration progress_period = std::chrono::seconds(5);
  /// Pods that the cluster could run for this job now, running ones included; nullopt: unknown.
  std::optional<int64_t> feasible_nodes;
  /// Since when no pod that is on its way out holds a place that a new one could have, as far as
  /// this process knows; nullopt: none has.
  std::optional<Time> room_since;
  /// The status is the newest there is, and yet of an older generation than this one, of which
  /// there are pods or which this process has written: somebody has emptied or changed it.
  std::optional<int64_t> lost_generation;
};

}  // namespace trainyard::control
