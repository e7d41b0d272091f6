#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/api/training_job.h"
#include "common/base/error.h"
#include "control/observed.h"
#include "control/plan.h"
#include "control/pod_spec.h"

namespace trainyard::control {

/// What create_pod found. A create is asynchronous: the pod shows in a later observe.
struct CreateReply {
  enum class Outcome {
    kCreated,
    kExists,        ///< ours (same job UID), alive: as good as created
    kNameConflict,  ///< the name is taken by another owner's pod, or by one that is terminating
    kRefused,       ///< the cluster does not take it: quota, policy, a template that is wrong
  };
  Outcome outcome = Outcome::kCreated;
  std::string uid;                 ///< of the pod that has the name now
  std::string owner_uid;           ///< of kNameConflict: the other owner, empty where it has none
  std::optional<Refusal> refusal;  ///< of kRefused
};

/// The world the brain acts on, with the semantics of an API server everywhere:
/// - creates and deletes are asynchronous; a deleted pod is Terminating until it is gone;
/// - `observe` may be stale (a cache), even older than an own write; it never invents; but its pods
///   are not older than its status: a pod that was there when the status was written, and is not
///   shown, is gone;
/// - resource versions and UIDs are opaque; a name may be used again under another UID;
/// - a lost node is not a gone pod.
/// Every call is bounded in time by the implementation. Thread-safe.
/// Errors beside those named: kUnavailable and kDeadline (retry), kIo.
class Cluster {
 public:
  using Listener = std::function<void(const JobKey&)>;

  virtual ~Cluster() = default;

  /// The job and its pods; `facts` and `requested_stop` are left for the caller to fill in.
  /// Errors: kNotFound when there is no such job.
  virtual Result<Observed> observe(const JobKey& key) = 0;

  /// The pods of an observed job as they are now, not as a cache shows them: for what is decided
  /// because one is not there. By default those that were observed, which is right where views are
  /// never behind.
  virtual Result<std::vector<ObservedPod>> list_pods(const Observed& observed);

  /// Replaces the status if the object still has this UID and resource version; returns the new
  /// version. Errors: kConflict on a mismatch, kNotFound.
  virtual Result<std::string> put_status(const JobKey& key, const std::string& uid,
                                         const api::TrainingJobStatus& status,
                                         const std::string& resource_version) = 0;

  /// Says whether the cluster would take such a pod, without making it; nullopt: it would.
  virtual Result<std::optional<Refusal>> try_pod(const PodSpec& spec);

  /// Brings what stands beside a job's pods (services, budgets, configuration) in line with a
  /// status that is written down; called with every job that is ours (is_ours). A refusal: the pods
  /// cannot do without, and must not be made. Cheap where nothing has changed.
  virtual Result<std::optional<Refusal>> keep_companions(const Observed& observed,
                                                         const api::TrainingJobStatus& status);

  /// Calls `call` with 0 ... count - 1, each once, several at a time where the cluster is the
  /// faster for it; begins no more after an error. Returns when none is running: the first error.
  virtual Status for_each(int64_t count, const std::function<Status(int64_t)>& call);

  /// Creates a pod of this name unless the name is taken, which is a reply, not an error.
  virtual Result<CreateReply> create_pod(const PodSpec& spec) = 0;

  /// Asks the pod to end within `grace`, then ends it. Success when it is terminating already.
  /// Errors: kNotFound when no pod has the name; kConflict when one of another UID has it.
  virtual Status delete_pod(const PodRef& pod, Duration grace) = 0;

  /// Takes the label `member` off; success when it has none. Errors as delete_pod.
  virtual Status remove_member_label(const PodRef& pod) = 0;

  /// Has a pod that was made as a spare carry its index and the label `member`. Success where it
  /// does already, and where the pod is being deleted or has lost the label again: then it stays as
  /// it is. Errors as delete_pod; kUnavailable where the pod changed meanwhile.
  virtual Status promote_pod(const PodRef& pod, int node_index) = 0;

  /// Deletes the job object with this UID and what it owns. Errors as delete_pod.
  virtual Status delete_job(const JobKey& key, const std::string& uid) = 0;

  /// After how long the job deserves a look though nobody tells of a change: views count a pod on
  /// nothing but the word of its creation, which holds so long. nullopt, the default: they count
  /// none so, or say of its end as of any other change.
  virtual std::optional<Duration> look_again_in(const std::string& job_uid);

  /// Tells users; may drop or merge repeated events.
  virtual Status emit_event(const JobKey& key, const Event& event) = 0;

  /// `listener` is called from any thread, no lock of the cluster held, with each job that may have
  /// changed; it must not block. Replaces the listener before; an empty one ends the calls, and
  /// none is running any more when this returns.
  virtual void set_listener(Listener listener) = 0;
};

}  // namespace trainyard::control
