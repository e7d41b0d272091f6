#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/api/training_job.h"
#include "common/base/time.h"
#include "control/observed.h"

/// Why a member is gone, whose fault that is, and whether another try is allowed. Pure.
namespace trainyard::control::policies {

/// What a restart begins anew: the ranks in their pods, single pods, or all pods.
enum class Scope { kRanks, kPods, kAll };

/// One member (or the whole job, when it stalls) that ends a generation.
struct Loss {
  std::string pod_name;  ///< empty: no pod to blame
  std::string pod_uid;   ///< empty where the pod is gone from sight
  std::string node;
  std::string container;
  std::optional<int> rank;
  std::optional<int> exit_code;
  std::optional<int> signal;
  std::string message;
  std::optional<Time> at;

  api::FailureClass failure_class = api::FailureClass::kInfrastructure;
  std::string reason;   ///< of the condition Restarting
  bool counted = true;  ///< towards the budget of its class
  /// Ended because it missed a peer: somebody else is to blame, if anybody is.
  bool follows_peer = false;
  /// Only ranks have ended, or hang: its agent waits for what is to be done.
  bool pod_goes_on = false;
  /// A GPU of its node failed: new ranks in the same pod would meet it again.
  bool hardware = false;
  /// New pods are to go to other nodes than its own.
  bool avoids_node = false;
  /// What a stall's action asks for; nullopt: the job's strategy says.
  std::optional<Scope> wanted;
  /// Reason of Failed, when the job is not to be tried again.
  std::optional<std::string> fatal_reason;
};

/// Judges a member that failed: the first failure rule that matches, else its exit.
/// 64 and 65 are fatal; signals from outside, 69 and 75 are Infrastructure; 143 and the condition
/// DisruptionTarget are Preemption; all else is Application.
Loss judge_failed_pod(const api::FailurePolicy& policy, const ObservedPod& pod);

/// Judges a member whose agent has told how a rank failed before the cluster told of the pod: as
/// if the pod had ended so.
Loss judge_failed_rank(const api::FailurePolicy& policy, const ObservedPod& pod, ContainerExit end);

/// Judges a member that is terminating though nobody condemned it, or silent by the rule of
/// policies/liveness.
Loss judge_lost_pod(const api::FailurePolicy& policy, const ObservedPod& pod,
                    const std::string& message);

/// Whether a container that waits for this reason of a kubelet's will never have its image.
bool never_has_image(const std::string& reason);

/// Time left before a pod that waits for such an image counts as lost; zero or less: it is lost.
/// nullopt: it does not wait for one.
std::optional<Duration> time_to_have_image(const ObservedPod& pod, Time now);

/// Judges such a pod: the job names the wrong image.
Loss judge_without_image(const api::FailurePolicy& policy, const ObservedPod& pod);

/// The loss to blame: fatal ones first, then those that followed no peer, the earliest of them.
/// `losses` is not empty.
const Loss& root_cause(const std::vector<Loss>& losses);

/// So many of a class's restarts are remembered in a status that is full otherwise.
inline constexpr int kCrowdedRecentRestarts = 50;

/// Whether the class has a restart left at `now`. Where the window holds all that are remembered,
/// and these are kCrowdedRecentRestarts or more, a larger budget is compared with the class's total
/// instead, which is stricter.
bool within_budget(const api::FailurePolicy& policy, const api::RestartCounts& restarts,
                   api::FailureClass failure_class, Time now);

/// Counts one restart of the budget's class: always in the totals, in the window only when
/// `counted`. As many times are kept as the budget needs.
void count_restart(api::RestartCounts& restarts, const api::RestartBudget& budget, bool counted,
                   Time now);

/// When the newest checkpoint was committed that the status knows of; Time::min(): none was.
Time committed_at(const api::TrainingJobStatus& status);

/// The wait between the newest restart and its pods: none for the first since a committed
/// checkpoint; else initial, doubled for each further restart since then, at most max. Those that
/// the window of their class's budget has left do not count any more: of programs of one's own no
/// step is ever known to be committed.
Duration backoff_of(const api::FailurePolicy& policy, const api::TrainingJobStatus& status,
                    Time now);

}  // namespace trainyard::control::policies
