#include "operator/cluster/own_writes.h"

#include <algorithm>

namespace trainyard::cluster {

OwnWrites::OwnWrites(const Clock& clock) : clock_(clock), expectations_(clock) {}

void OwnWrites::wrote_job(Job now) {
  const std::lock_guard lock(mutex_);
  Job& kept = jobs_[now->meta.uid];
  const bool older =
      kept && cache::is_later_version(kept->meta.resource_version, now->meta.resource_version);
  if (!older) kept = std::move(now);
}

void OwnWrites::deleted_job(const std::string& uid) {
  const std::lock_guard lock(mutex_);
  deleted_jobs_[uid] = clock_.mono();
}

void OwnWrites::creating(const control::PodSpec& pod) {
  expectations_.expect(pod.job_uid, pod.name);
}

void OwnWrites::created(const control::PodSpec& pod, const std::string& uid) {
  control::ObservedPod seen;
  seen.name = pod.name;
  seen.uid = uid;
  seen.node_index = pod.node_index;
  seen.spare = pod.spare;
  seen.created_generation = pod.created_generation;
  seen.member = pod.member;
  seen.created_at = clock_.now();
  {
    const std::lock_guard lock(mutex_);
    created_[pod.job_uid][pod.name] = std::move(seen);
  }
  expectations_.created(pod.job_uid, pod.name, uid);
}

void OwnWrites::not_created(const control::PodSpec& pod) {
  expectations_.failed(pod.job_uid, pod.name);
}

/// Of a pod that goes at once, as one that has ended does, the end may be shown before the answer
/// to its deletion is here: nothing tells of it again.
void OwnWrites::drop_old_changes_locked() {
  if (changes_.size() < next_drop_) return;
  const MonoTime now = clock_.mono();
  std::erase_if(changes_, [&](const auto& entry) {
    return now - entry.second.since > cache::Expectations::kTimeLimit;
  });
  next_drop_ = std::max(kFewChanges, 2 * changes_.size());
}

OwnWrites::Change& OwnWrites::change_of(const std::string& uid) {
  drop_old_changes_locked();
  Change& change = changes_[uid];
  change.since = clock_.mono();
  return change;
}

void OwnWrites::deleted_pod(const std::string& uid) {
  const std::lock_guard lock(mutex_);
  change_of(uid).deleted = true;
}

void OwnWrites::unlabelled_pod(const std::string& uid) {
  const std::lock_guard lock(mutex_);
  change_of(uid).unlabelled = true;
}

void OwnWrites::promoted_pod(const std::string& uid, int node_index) {
  const std::lock_guard lock(mutex_);
  change_of(uid).promoted = node_index;
}

void OwnWrites::shows(const PodView& pod) {
  expectations_.seen(pod.job_uid, pod.meta.name);
  const std::lock_guard lock(mutex_);
  const auto found = changes_.find(pod.meta.uid);
  if (found == changes_.end()) return;
  const bool caught_up = (pod.seen.terminating || !found->second.deleted) &&
                         (!pod.seen.member || !found->second.unlabelled) &&
                         (pod.seen.node_index >= 0 || !found->second.promoted);
  if (caught_up) changes_.erase(found);
}

void OwnWrites::shows_no_more(const PodView& pod) {
  expectations_.seen(pod.job_uid, pod.meta.name);
  const std::lock_guard lock(mutex_);
  changes_.erase(pod.meta.uid);
}

std::set<std::string> OwnWrites::lists_pods(MonoTime started) {
  std::set<std::string> jobs = expectations_.listed(started);
  const std::lock_guard lock(mutex_);
  std::erase_if(changes_, [&](const auto& entry) { return entry.second.since < started; });
  return jobs;
}

void OwnWrites::lists_jobs(MonoTime started) {
  const std::lock_guard lock(mutex_);
  std::erase_if(deleted_jobs_, [&](const auto& entry) { return entry.second < started; });
}

void OwnWrites::forget_job(const std::string& uid) {
  expectations_.forget(uid);
  const std::lock_guard lock(mutex_);
  jobs_.erase(uid);
  deleted_jobs_.erase(uid);
  created_.erase(uid);
}

size_t OwnWrites::size() const {
  const std::lock_guard lock(mutex_);
  return jobs_.size() + deleted_jobs_.size() + created_.size() + changes_.size();
}

OwnWrites::Job OwnWrites::newest(Job cached) {
  if (!cached) return nullptr;
  const std::lock_guard lock(mutex_);
  if (deleted_jobs_.contains(cached->meta.uid)) return nullptr;
  const auto own = jobs_.find(cached->meta.uid);
  if (own == jobs_.end()) return cached;
  if (cache::is_later_version(own->second->meta.resource_version, cached->meta.resource_version)) {
    return own->second;
  }
  jobs_.erase(own);
  return cached;
}

std::vector<cache::Expected> OwnWrites::awaited(const std::string& job_uid) {
  return expectations_.pending(job_uid);
}

std::optional<MonoTime> OwnWrites::first_end(const std::string& job_uid) const {
  return expectations_.first_end(job_uid);
}

void OwnWrites::amend_one(control::ObservedPod& pod) {
  const auto change = changes_.find(pod.uid);
  if (change == changes_.end()) return;
  if (clock_.mono() - change->second.since > cache::Expectations::kTimeLimit) {
    changes_.erase(change);
    return;
  }
  pod.terminating = pod.terminating || change->second.deleted;
  if (change->second.promoted && pod.node_index < 0) {
    pod.node_index = *change->second.promoted;
    pod.member = true;
  }
  pod.member = pod.member && !change->second.unlabelled;
}

void OwnWrites::amend(const std::string& job_uid, const std::vector<cache::Expected>& awaited,
                      std::vector<control::ObservedPod>& pods) {
  const std::lock_guard lock(mutex_);
  const auto created = created_.find(job_uid);
  if (created != created_.end()) {
    std::set<std::string> shown;
    for (const control::ObservedPod& pod : pods)
      shown.insert(pod.name);
    Pods still_awaited;
    for (const cache::Expected& expected : awaited) {
      const auto found = created->second.find(expected.name);
      if (found == created->second.end()) continue;
      still_awaited.insert(*found);
      if (!shown.contains(expected.name)) pods.push_back(found->second);
    }
    created->second = std::move(still_awaited);
    if (created->second.empty()) created_.erase(created);
  }
  for (control::ObservedPod& pod : pods)
    amend_one(pod);
}

}  // namespace trainyard::cluster
