#include "operator/cluster/gone_pods.h"

namespace trainyard::cluster {

void GonePods::went(const std::string& job_uid, const control::ObservedPod& pod) {
  const std::lock_guard lock(mutex_);
  pods_[job_uid].insert_or_assign(pod.node_index, pod);
}

std::vector<control::ObservedPod> GonePods::of(const std::string& job_uid,
                                               const std::vector<control::ObservedPod>& present) {
  const std::lock_guard lock(mutex_);
  const auto found = pods_.find(job_uid);
  if (found == pods_.end()) return {};
  for (const control::ObservedPod& pod : present) {
    if (pod.member) found->second.erase(pod.node_index);
  }
  std::vector<control::ObservedPod> gone;
  for (const auto& [index, pod] : found->second)
    gone.push_back(pod);
  if (gone.empty()) pods_.erase(found);
  return gone;
}

void GonePods::forget(const std::string& job_uid) {
  const std::lock_guard lock(mutex_);
  pods_.erase(job_uid);
}

}  // namespace trainyard::cluster
