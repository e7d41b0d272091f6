#include "operator/cluster/listed_pods.h"

#include <utility>

#include "operator/cache/meta.h"

namespace trainyard::cluster {

void ListedPods::keep(const std::string& job_uid, List list) {
  const std::lock_guard lock(mutex_);
  List& kept = lists_[job_uid];
  if (!cache::is_later_version(kept.version, list.version)) kept = std::move(list);
}

ListedPods::Pods ListedPods::newer_than(const std::string& version, const std::string& job_uid) {
  const std::lock_guard lock(mutex_);
  const auto found = lists_.find(job_uid);
  if (found == lists_.end()) return nullptr;
  if (cache::is_later_version(found->second.version, version)) return found->second.pods;
  lists_.erase(found);
  return nullptr;
}

void ListedPods::cache_listed(const std::string& ns, MonoTime started) {
  const std::lock_guard lock(mutex_);
  std::erase_if(lists_, [&](const auto& entry) {
    return entry.second.asked < started && (ns.empty() || entry.second.ns == ns);
  });
}

void ListedPods::forget(const std::string& job_uid) {
  const std::lock_guard lock(mutex_);
  lists_.erase(job_uid);
}

size_t ListedPods::size() const {
  const std::lock_guard lock(mutex_);
  return lists_.size();
}

}  // namespace trainyard::cluster
