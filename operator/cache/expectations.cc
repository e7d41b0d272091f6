#include "operator/cache/expectations.h"

#include <algorithm>

namespace trainyard::cache {

Expectations::Expectations(const Clock& clock, Duration time_limit)
    : clock_(clock), time_limit_(time_limit) {}

void Expectations::expect(const std::string& job, const std::string& name) {
  const MonoTime now = clock_.mono();
  const std::lock_guard lock(mutex_);
  jobs_[job][name] = {name, "", now, std::nullopt};
}

void Expectations::created(const std::string& job, const std::string& name,
                           const std::string& uid) {
  const MonoTime now = clock_.mono();
  const std::lock_guard lock(mutex_);
  const auto names = jobs_.find(job);
  if (names == jobs_.end()) return;
  const auto found = names->second.find(name);
  if (found == names->second.end()) return;
  found->second.uid = uid;
  found->second.answered = now;
}

void Expectations::drop(const std::string& job, const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto names = jobs_.find(job);
  if (names == jobs_.end()) return;
  names->second.erase(name);
  if (names->second.empty()) jobs_.erase(names);
}

void Expectations::failed(const std::string& job, const std::string& name) { drop(job, name); }

void Expectations::seen(const std::string& job, const std::string& name) { drop(job, name); }

std::set<std::string> Expectations::listed(MonoTime started) {
  const std::lock_guard lock(mutex_);
  std::set<std::string> settled;
  for (auto names = jobs_.begin(); names != jobs_.end();) {
    const size_t gone = std::erase_if(names->second, [&](const auto& entry) {
      // Without an answer the creation may still come after the list.
      return entry.second.answered && *entry.second.answered < started;
    });
    if (gone > 0) settled.insert(names->first);
    names = names->second.empty() ? jobs_.erase(names) : std::next(names);
  }
  return settled;
}

void Expectations::forget(const std::string& job) {
  const std::lock_guard lock(mutex_);
  jobs_.erase(job);
}

void Expectations::drop_expired_locked(const std::string& job) {
  const auto names = jobs_.find(job);
  if (names == jobs_.end()) return;
  const MonoTime now = clock_.mono();
  std::erase_if(names->second,
                [&](const auto& entry) { return now - entry.second.since >= time_limit_; });
  if (names->second.empty()) jobs_.erase(names);
}

std::vector<Expected> Expectations::pending(const std::string& job) {
  const std::lock_guard lock(mutex_);
  drop_expired_locked(job);
  std::vector<Expected> found;
  const auto names = jobs_.find(job);
  if (names == jobs_.end()) return found;
  for (const auto& [name, expected] : names->second)
    found.push_back(expected);
  return found;
}

std::optional<MonoTime> Expectations::first_end(const std::string& job) const {
  const std::lock_guard lock(mutex_);
  const auto names = jobs_.find(job);
  if (names == jobs_.end()) return std::nullopt;
  const auto first = std::min_element(
      names->second.begin(), names->second.end(),
      [](const auto& a, const auto& b) { return a.second.since < b.second.since; });
  return first->second.since + time_limit_;
}

size_t Expectations::jobs() const {
  const std::lock_guard lock(mutex_);
  return jobs_.size();
}

}  // namespace trainyard::cache
