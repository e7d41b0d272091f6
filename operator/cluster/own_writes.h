#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "control/pod_spec.h"
#include "operator/cache/expectations.h"
#include "operator/cluster/views.h"

namespace trainyard::cluster {

/// What this process has written and its cache does not show yet. A view from the cache that is
/// amended by it is never older than the own writes, so that nothing is decided twice. Entries end
/// when the cache has caught up, when a list made after them is there, or by time. Thread-safe.
class OwnWrites {
 public:
  using Job = std::shared_ptr<const JobView>;

  /// `clock` outlives it.
  explicit OwnWrites(const Clock& clock);

  // ---- What was written ------------------------------------------------------------------------
  void wrote_job(Job now);
  void deleted_job(const std::string& uid);
  /// Before a creation is sent.
  void creating(const control::PodSpec& pod);
  /// The server has it, under this UID.
  void created(const control::PodSpec& pod, const std::string& uid);
  /// The server has refused it for certain.
  void not_created(const control::PodSpec& pod);
  void deleted_pod(const std::string& uid);
  void unlabelled_pod(const std::string& uid);
  void promoted_pod(const std::string& uid, int node_index);

  // ---- What the cache shows --------------------------------------------------------------------
  void shows(const PodView& pod);
  void shows_no_more(const PodView& pod);
  /// UIDs of the jobs whose creations it shows to be gone again.
  std::set<std::string> lists_pods(MonoTime started);
  void lists_jobs(MonoTime started);
  void shows_no_more(const JobView& job) { forget_job(job.meta.uid); }
  /// The cache has no such job any more: what was written of it since is of no use.
  void forget_job(const std::string& uid);

  // ---- Reading ---------------------------------------------------------------------------------
  /// The newer of the cache's view and ours; nullptr when there is none or we have deleted it.
  Job newest(Job cached);
  /// Creations of a job that the cache has not shown; to be read before the cache is, so that a pod
  /// that shows in between is in one of the two.
  std::vector<cache::Expected> awaited(const std::string& job_uid);
  /// When the first of them counts no more, unless the cache shows it before.
  std::optional<MonoTime> first_end(const std::string& job_uid) const;
  /// Adds those of them that were answered to the pods that the cache shows, and amends these.
  void amend(const std::string& job_uid, const std::vector<cache::Expected>& awaited,
             std::vector<control::ObservedPod>& pods);
  /// Entries of all kinds.
  size_t size() const;

 private:
  struct Change {
    bool deleted = false;
    bool unlabelled = false;
    std::optional<int> promoted;  ///< to that index
    MonoTime since{};
  };
  using Pods = std::map<std::string, control::ObservedPod>;  ///< by name
  static constexpr size_t kFewChanges = 1024;

  Change& change_of(const std::string& uid);
  void drop_old_changes_locked();
  void amend_one(control::ObservedPod& pod);

  const Clock& clock_;
  cache::Expectations expectations_;
  mutable std::mutex mutex_;  ///< guards all below
  std::map<std::string, Job> jobs_;
  std::map<std::string, MonoTime> deleted_jobs_;
  std::map<std::string, Pods> created_;  ///< by job UID; those that expectations_ still awaits
  std::map<std::string, Change> changes_;
  size_t next_drop_ = kFewChanges;  ///< size of changes_ at which the old ones are dropped
};

}  // namespace trainyard::cluster
