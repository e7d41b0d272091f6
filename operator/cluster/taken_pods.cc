#include "operator/cluster/taken_pods.h"

#include <algorithm>
#include <span>

namespace trainyard::cluster {
namespace {

Hash128 hash_of(std::string_view pod) { return xxh3_128(std::as_bytes(std::span(pod))); }

}  // namespace

bool TakenPods::has(const std::string& ns, std::string_view pod) const {
  const Key key{ns, hash_of(pod)};
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(key);
  return found != taken_.end() && clock_.mono() - found->second < kTimeLimit;
}

void TakenPods::add(const std::string& ns, std::string_view pod) {
  const Key key{ns, hash_of(pod)};
  const std::lock_guard lock(mutex_);
  taken_[key] = clock_.mono();
  if (taken_.size() <= kMost) return;
  taken_.erase(std::min_element(taken_.begin(), taken_.end(),
                                [](const auto& a, const auto& b) { return a.second < b.second; }));
}

void TakenPods::forget(const std::string& ns) {
  const std::lock_guard lock(mutex_);
  std::erase_if(taken_, [&](const auto& entry) { return entry.first.first == ns; });
}

}  // namespace trainyard::cluster
