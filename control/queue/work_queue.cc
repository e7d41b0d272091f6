#include "control/queue/work_queue.h"

#include <algorithm>
#include <array>

namespace trainyard::control {
namespace {

// Bounds of workqueue_queue_duration_seconds and workqueue_work_duration_seconds in client-go's
// and controller-runtime's metrics: ten nanoseconds, each ten times the one before.
constexpr std::array<double, 12> kBounds = {1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3,
                                            1e-2, 1e-1, 1,    10,   100,  1000};
/// Waiting threads look at their stop token and at the clock at least this often, since the clock
/// may be one that a test moves.
constexpr std::chrono::seconds kLongestWait{1};

}  // namespace

WorkQueue::WorkQueue(const Clock& clock, const RateLimits& limits)
    : clock_(clock),
      limiter_(limits),
      stats_{.queue_duration = metrics::DurationHistogram(kBounds),
             .work_duration = metrics::DurationHistogram(kBounds)} {}

void WorkQueue::add(const JobKey& key) {
  {
    const std::lock_guard lock(mutex_);
    enqueue(key, clock_.mono());
  }
  changed_.notify_one();
}

void WorkQueue::add_after(const JobKey& key, Duration delay) {
  if (delay <= Duration::zero()) {
    add(key);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    const MonoTime at = clock_.mono() + delay;
    const auto found = due_.find(key);
    if (found != due_.end()) {
      if (found->second <= at) return;
      due_order_.erase({found->second, key});
    }
    due_[key] = at;
    due_order_.insert({at, key});
    ++due_changes_;
  }
  changed_.notify_all();
}

Duration WorkQueue::add_rate_limited(const JobKey& key) {
  Duration wait{};
  {
    const std::lock_guard lock(mutex_);
    wait = limiter_.next_wait(key, clock_.mono());
    ++stats_.retries;
  }
  add_after(key, wait);
  return wait;
}

void WorkQueue::forget(const JobKey& key) {
  const std::lock_guard lock(mutex_);
  limiter_.forget(key);
}

int64_t WorkQueue::failures(const JobKey& key) const {
  const std::lock_guard lock(mutex_);
  return limiter_.failures(key);
}

void WorkQueue::enqueue(const JobKey& key, MonoTime now) {
  if (!dirty_.emplace(key, now).second) return;
  ++stats_.adds;
  if (!active_.contains(key)) ready_.push_back(key);
}

void WorkQueue::promote_due(MonoTime now) {
  while (!due_order_.empty() && due_order_.begin()->first <= now) {
    const JobKey key = due_order_.begin()->second;
    due_order_.erase(due_order_.begin());
    due_.erase(key);
    enqueue(key, now);
  }
}

std::optional<JobKey> WorkQueue::take(MonoTime now) {
  promote_due(now);
  if (ready_.empty()) return std::nullopt;
  JobKey key = std::move(ready_.front());
  ready_.pop_front();
  const auto since = dirty_.find(key);
  stats_.queue_duration.observe(now - since->second);
  dirty_.erase(since);
  active_[key] = now;
  return key;
}

Duration WorkQueue::longest_wait(MonoTime now) const {
  if (due_order_.empty()) return kLongestWait;
  return std::clamp<Duration>(due_order_.begin()->first - now, Duration::zero(), kLongestWait);
}

std::optional<JobKey> WorkQueue::get(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    const MonoTime now = clock_.mono();
    if (std::optional<JobKey> key = take(now)) {
      // Several may have become due at once, and only this thread was woken for them.
      if (!ready_.empty()) changed_.notify_one();
      return key;
    }
    const int64_t seen = due_changes_;
    changed_.wait_for(lock, stop, longest_wait(now),
                      [&] { return !ready_.empty() || due_changes_ != seen; });
  }
  return std::nullopt;
}

std::optional<JobKey> WorkQueue::try_get() {
  const std::lock_guard lock(mutex_);
  return take(clock_.mono());
}

void WorkQueue::done(const JobKey& key) {
  {
    const std::lock_guard lock(mutex_);
    const auto taken = active_.find(key);
    if (taken == active_.end()) return;
    stats_.work_duration.observe(clock_.mono() - taken->second);
    active_.erase(taken);
    if (!dirty_.contains(key)) return;
    ready_.push_back(key);
  }
  changed_.notify_one();
}

std::optional<MonoTime> WorkQueue::next_due() const {
  const std::lock_guard lock(mutex_);
  if (!ready_.empty()) return clock_.mono();
  if (due_order_.empty()) return std::nullopt;
  return due_order_.begin()->first;
}

WorkQueueStats WorkQueue::stats() const {
  const std::lock_guard lock(mutex_);
  WorkQueueStats stats = stats_;
  stats.depth = static_cast<int64_t>(ready_.size());
  stats.active = static_cast<int64_t>(active_.size());
  stats.waiting = static_cast<int64_t>(due_.size());
  const MonoTime now = clock_.mono();
  for (const auto& [key, since] : active_) {
    stats.unfinished_work += now - since;
    stats.longest_running = std::max(stats.longest_running, now - since);
  }
  return stats;
}

}  // namespace trainyard::control
