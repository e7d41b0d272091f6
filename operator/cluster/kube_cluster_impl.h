#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "operator/cluster/companions.h"
#include "operator/cluster/endpoints.h"
#include "operator/cluster/event_recorder.h"
#include "operator/cluster/kube_cluster.h"
#include "operator/cluster/ledgers.h"
#include "operator/cluster/own_writes.h"
#include "operator/cluster/parallel_calls.h"
#include "operator/cluster/scope.h"
#include "operator/cluster/taken_pods.h"
#include "operator/cluster/views.h"

/// The inside of KubeCluster: views and the job's own writes are in kube_cluster.cc, what is done
/// to pods in kube_pods.cc.
namespace trainyard::cluster {

class KubeCluster::Impl {
 public:
  explicit Impl(Options options);
  ~Impl();

  void start();
  Status wait_synced(Duration limit, const std::stop_token& stop);
  bool synced() const;
  CacheCounts counts();
  std::vector<control::JobKey> jobs() const;
  std::vector<std::shared_ptr<const api::TrainingJob>> cached_jobs() const;
  std::string job_of(const control::PodRef& pod) const;
  void set_listener(Listener listener);

  Result<control::Observed> observe(const control::JobKey& key);
  Result<std::vector<control::ObservedPod>> list_pods(const control::Observed& observed);
  Result<std::string> put_status(const control::JobKey& key, const std::string& uid,
                                 const api::TrainingJobStatus& status,
                                 const std::string& resource_version);
  Result<std::optional<control::Refusal>> keep_companions(const control::Observed& observed,
                                                          const api::TrainingJobStatus& status);
  Status delete_job(const control::JobKey& key, const std::string& uid);
  std::optional<Duration> look_again_in(const std::string& job_uid);
  Status emit_event(const control::JobKey& key, const control::Event& event);

  Status for_each(int64_t count, const std::function<Status(int64_t)>& call) {
    return calls_.run(count, call);
  }
  Result<std::optional<control::Refusal>> try_pod(const control::PodSpec& spec);
  Result<control::CreateReply> create_pod(const control::PodSpec& spec);
  Status delete_pod(const control::PodRef& pod, Duration grace);
  Status remove_member_label(const control::PodRef& pod);
  Status promote_pod(const control::PodRef& pod, int node_index);

 private:
  using Job = OwnWrites::Job;
  using Nodes = cache::Store<NodeView>;

  Scope* scope_of(const std::string& ns) const;
  /// What was written in that namespace.
  OwnWrites& own_writes(const std::string& ns) const;
  /// The newest view of a job; nullptr when there is none.
  Job find_job(const control::JobKey& key) const;
  std::vector<control::ObservedPod> pods_of(const JobView& job) const;
  std::vector<control::ObservedPod> cached_pods_of(const JobView& job) const;
  void look_at_node(control::ObservedPod& pod) const;
  std::optional<int64_t> room_for(const JobView& job,
                                  const std::vector<control::ObservedPod>& pods) const;
  Amounts used_on(const std::string& node) const;
  void room_changed();
  cache::Handler<NodeView> node_handler();
  void node_changed(const std::string& name);
  void changed(const control::JobKey& key);
  void companion_gone(const kube::Resource& resource, const control::JobKey& job,
                      const std::string& uid);
  std::vector<Watching*> watchings();
  bool may_see_nodes() const;
  std::optional<bool> may_see_jobs(const std::string& ns) const;
  void await_readable_namespaces();

  Result<std::optional<control::Refusal>> try_storage(const std::string& ns,
                                                      const api::TrainingJobSpec& spec) const;
  Result<control::CreateReply> look_at_holder(const control::PodSpec& spec);
  Status done(const control::PodRef& pod, const kube::ApiResult<nlohmann::json>& reply,
              const std::string& what) const;
  void note_job(const nlohmann::json& reply);
  void job_gone(const JobView& job);
  void forget(const std::string& job_uid);
  void forget_if_gone(const control::JobKey& key, const std::string& uid);

  const Options options_;
  cache::ThreadRunner threads_;  ///< where the options name no runner
  mutable ListedPods listed_pods_;
  GonePods gone_pods_;
  std::atomic<int64_t> looks_ = 0;
  Companions companions_;
  Endpoints endpoints_;
  Ledgers ledgers_;
  EventRecorder events_;
  TakenPods taken_pods_;
  PacedCalls calls_{options_.calls_at_once, *options_.clock};
  ScopeContext context_;
  std::vector<std::unique_ptr<Scope>> scopes_;  ///< one, or one a namespace
  Nodes nodes_;
  Watching node_watching_;
  std::atomic<bool> awaits_nodes_ = true;  ///< false where they might not be read at the start

  std::shared_mutex listener_mutex_;  ///< shared while the listener runs
  Listener listener_;
};

}  // namespace trainyard::cluster
