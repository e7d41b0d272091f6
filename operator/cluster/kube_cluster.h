#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/log/log.h"
#include "control/cluster.h"
#include "operator/cache/reflector_runner.h"
#include "operator/cluster/parallel_calls.h"
#include "operator/kube/client.h"
#include "operator/render/pod.h"

namespace trainyard::cluster {

/// What the cache holds, for metrics.
struct CacheCounts {
  int64_t jobs = 0;
  int64_t pods = 0;
  int64_t nodes = 0;
  int64_t lists = 0;    ///< begun by all reflectors
  int64_t watches = 0;  ///< opened by them
};

/// A Kubernetes API server as a Cluster: views come from caches that watches keep, amended by this
/// process's own writes; writes carry UIDs and resource versions as preconditions, so that a second
/// controller or a stale view does no harm. Thread-safe.
class KubeCluster final : public control::Cluster {
 public:
  struct Options {
    const kube::Client* client = nullptr;  ///< required; outlives the cluster
    const Clock* clock = nullptr;          ///< required; outlives the cluster
    Logger* logger = nullptr;              ///< required; outlives the cluster
    std::vector<std::string> namespaces;   ///< empty: all
    render::PodDefaults pod_defaults;
    bool restarts_renew_image = true;  ///< control::Observed
    /// PEM of the authorities that agents are to trust; empty while nobody serves the control
    /// stream, and agents' pods wait. Thread-safe; absent where pod_defaults names no address.
    std::function<std::string()> control_authorities;
    std::string instance;            ///< of this process, in events
    std::function<double()> random;  ///< uniform in [0, 1); thread-safe
    /// Who keeps the caches going; nullptr: threads of the cluster's own. Outlives the cluster.
    cache::ReflectorRunner* runner = nullptr;
    /// Of for_each: calls side by side at most, each beyond the first on a thread of its own.
    int64_t calls_at_once = kCallsAtOnce;
  };

  explicit KubeCluster(Options options);
  /// Ends the watches.
  ~KubeCluster() override;
  KubeCluster(const KubeCluster&) = delete;
  KubeCluster& operator=(const KubeCluster&) = delete;

  /// Begins to list and watch. Once. Where nodes may not be read, a lost node shows only by what
  /// becomes of its pods, and elastic jobs do not grow; that is logged. They are asked for again
  /// and again, and are seen as soon as they may be. Of several namespaces, those that may not be
  /// read are not waited for and are served once they may be.
  void start();
  /// Waits until every cache holds a whole list. Views before that are not whole. Errors:
  /// kDeadline, kAborted.
  Status wait_synced(Duration limit, const std::stop_token& stop) const;
  bool synced() const;
  CacheCounts counts() const;
  /// UID of the TrainingJob that this very pod belongs to; empty where the cache has no such pod,
  /// or not the job.
  std::string job_of(const control::PodRef& pod) const;
  /// What is to be looked at first: the jobs in the cache, and where ledgers of jobs that have gone
  /// are not kept yet, a key that stands for them (Ledgers::gone_jobs).
  std::vector<control::JobKey> jobs() const;
  /// As the watches have shown them last; by namespace and name where all are watched.
  std::vector<std::shared_ptr<const api::TrainingJob>> cached_jobs() const;

  Result<control::Observed> observe(const control::JobKey& key) override;
  /// Asks the server: one call for each page of them.
  Result<std::vector<control::ObservedPod>> list_pods(const control::Observed& observed) override;
  Result<std::string> put_status(const control::JobKey& key, const std::string& uid,
                                 const api::TrainingJobStatus& status,
                                 const std::string& resource_version) override;
  Result<std::optional<control::Refusal>> try_pod(const control::PodSpec& spec) override;
  Result<std::optional<control::Refusal>> keep_companions(
      const control::Observed& observed, const api::TrainingJobStatus& status) override;
  Status for_each(int64_t count, const std::function<Status(int64_t)>& call) override;
  Result<control::CreateReply> create_pod(const control::PodSpec& spec) override;
  Status delete_pod(const control::PodRef& pod, Duration grace) override;
  Status remove_member_label(const control::PodRef& pod) override;
  Status promote_pod(const control::PodRef& pod, int node_index) override;
  Status delete_job(const control::JobKey& key, const std::string& uid) override;
  std::optional<Duration> look_again_in(const std::string& job_uid) override;
  Status emit_event(const control::JobKey& key, const control::Event& event) override;
  void set_listener(Listener listener) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainyard::cluster
