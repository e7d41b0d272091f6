#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "control/cluster.h"

namespace trainyard::testing_support {

/// A cluster in memory with an API server's semantics: versions, UIDs, asynchronous creates and
/// deletes, views that lag. Nothing moves by itself: `step` is the scheduler and the kubelets.
/// Faults: `crash_at` cuts the client off before or after a write.
class MemoryCluster : public control::Cluster {
 public:
  enum class CrashPoint { kBefore, kAfter };

  /// A write the cluster was asked for, in order; creations and deletions only when they took
  /// place.
  struct Write {
    enum class Kind { kStatus, kCreate, kDelete, kLabel, kPromote, kEvent, kDeleteJob };
    Kind kind;
    std::string what;  ///< pod name or event reason
  };

  MemoryCluster(const Clock& clock, api::TrainingJob job);

  control::JobKey key() const;
  /// The truth, not a view.
  control::Observed truth() const;
  bool job_exists() const;
  /// Edits the spec, as a user: a new metadata.generation.
  void edit_spec(const std::function<void(api::TrainingJobSpec&)>& edit);
  /// Edits the status, as somebody who has no business there.
  void edit_status(const std::function<void(api::TrainingJobStatus&)>& edit);

  // ---- The world moves -----------------------------------------------------------------------
  /// Places pending pods, starts placed ones, ends terminating ones on nodes that are there.
  void step();
  /// Whether `step` places pods (true at first).
  void set_room(bool room);
  /// Fields that stored statuses lose, as under an older CRD.
  void drop_from_statuses(std::function<void(api::TrainingJobStatus&)> drop);
  /// From now on pods that are deleted end when their grace is over, not before.
  void take_whole_grace();
  /// The image that pods get which are not told of another one (none at first), as after the
  /// upgrade of an operator; `restarts_renew`: Observed::restarts_renew_image.
  void set_worker_image(const std::string& image, bool restarts_renew = true);
  /// How many pods may have nodes at once (no limit at first); running ones stay.
  void set_capacity(int64_t pods);
  void finish_pod(const std::string& name, const control::ContainerExit& exit);
  /// All of them in one change, so that no view shows only some.
  void finish_pods(const std::vector<std::string>& names, const control::ContainerExit& exit);
  /// Of a finished pod other containers run on, until it is deleted.
  void set_lingering(const std::string& name);
  /// Every running pod exits with 0.
  void finish_all();
  /// Gone without trace, as after a forced deletion.
  void remove_pod(const std::string& name);
  /// The node is lost: its pod stays, Terminating pods there never end.
  void lose_node(const std::string& pod_name);
  /// Somebody else deletes it; it ends by itself, else when its grace is over.
  void delete_from_outside(const std::string& pod_name, Duration grace = Duration::zero());
  /// A container of the pod, which has a node, does not start; nullopt: it does.
  void set_waiting(const std::string& pod_name, std::optional<control::WaitingContainer> waiting);
  void set_pod_condition(const std::string& pod_name, control::PodCondition condition);
  /// A pod that is not the job's takes a name.
  void add_foreign_pod(const std::string& name);

  /// From now on pods that are only tried, or those that are created, are refused; an empty refusal
  /// ends that.
  void refuse_tried_pods(std::optional<control::Refusal> refusal);
  void refuse_created_pods(std::optional<control::Refusal> refusal);
  /// Further pods than so many at once are refused when they are created (no limit at first); those
  /// that have ended do not count.
  void set_quota(int64_t pods);
  /// How many pods were tried.
  int64_t tries_count() const;
  /// The generations of the statuses that companions were kept for, without repetitions.
  std::vector<int64_t> companions_kept() const;

  // ---- Views and faults ----------------------------------------------------------------------
  /// `observe` shows the world as of this many changes ago, but never goes back.
  void set_lag(int64_t changes);
  /// The client is cut off at its `index`-th write from now (from 0): that write is not done
  /// (kBefore) or done (kAfter), and every call fails until `reconnect`.
  void crash_at(int64_t index, CrashPoint point);
  bool crashed() const;
  /// A new process: connected, with a fresh view.
  void reconnect();
  int64_t writes_count() const;
  /// Spares that got an index which the status did not give them.
  int64_t unannounced() const;
  std::vector<Write> writes() const;
  /// Every status that was ever written, in order.
  std::vector<api::TrainingJobStatus> status_history() const;

  // ---- Cluster -------------------------------------------------------------------------------
  Result<control::Observed> observe(const control::JobKey& key) override;
  Result<std::vector<control::ObservedPod>> list_pods(const control::Observed& observed) override;
  Result<std::string> put_status(const control::JobKey& key, const std::string& uid,
                                 const api::TrainingJobStatus& status,
                                 const std::string& resource_version) override;
  Result<std::optional<control::Refusal>> try_pod(const control::PodSpec& spec) override;
  Result<std::optional<control::Refusal>> keep_companions(
      const control::Observed& observed, const api::TrainingJobStatus& status) override;
  Result<control::CreateReply> create_pod(const control::PodSpec& spec) override;
  Status delete_pod(const control::PodRef& pod, Duration grace) override;
  Status remove_member_label(const control::PodRef& pod) override;
  Status promote_pod(const control::PodRef& pod, int node_index) override;
  Status delete_job(const control::JobKey& key, const std::string& uid) override;
  Status emit_event(const control::JobKey& key, const control::Event& event) override;
  void set_listener(Listener listener) override;

 private:
  struct Pod {
    control::ObservedPod seen;
    std::string owner_uid;
    bool node_lost = false;
  };

  /// Holds the lock while the world changes, then tells the listener.
  class Change {
   public:
    explicit Change(MemoryCluster& cluster) : cluster_(cluster), lock_(cluster.mutex_) {}
    ~Change();
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    MemoryCluster& cluster_;
    std::unique_lock<std::mutex> lock_;
  };

  /// Runs `body` as one write, with the crash if it is due.
  template <class Body>
  auto as_write(Body&& body) -> decltype(body());
  control::Observed snapshot() const;
  void changed();
  Result<Pod*> find(const control::PodRef& ref);

  const Clock& clock_;
  mutable std::mutex mutex_;
  api::TrainingJob job_;
  bool exists_ = true;
  int64_t version_ = 1;
  int64_t next_uid_ = 1;
  int64_t capacity_ = std::numeric_limits<int64_t>::max();
  bool takes_whole_grace_ = false;
  std::function<void(api::TrainingJobStatus&)> drop_;
  std::string worker_image_;
  bool restarts_renew_image_ = true;
  int64_t quota_ = std::numeric_limits<int64_t>::max();
  std::map<std::string, Pod> pods_;
  std::deque<control::Observed> history_;
  int64_t lag_ = 0;
  int64_t shown_ = 0;  ///< index into all changes of the newest view given out
  int64_t changes_ = 0;
  int64_t writes_done_ = 0;
  int64_t crash_index_ = -1;
  CrashPoint crash_point_ = CrashPoint::kBefore;
  bool crashed_ = false;
  std::optional<control::Refusal> try_refusal_;
  std::optional<control::Refusal> create_refusal_;
  int64_t tries_ = 0;
  int64_t unannounced_ = 0;
  std::vector<int64_t> companions_;
  std::vector<Write> log_;
  std::vector<api::TrainingJobStatus> statuses_;
  std::mutex listener_mutex_;  ///< held while the listener runs; taken with mutex_ free
  Listener listener_;
};

/// A valid job of `nodes` nodes for tests; RecreateAll, one process a node.
api::TrainingJob make_job(int64_t nodes);

}  // namespace trainyard::testing_support
