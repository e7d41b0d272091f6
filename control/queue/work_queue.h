#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <utility>

#include "common/base/clock.h"
#include "common/metrics/duration_histogram.h"
#include "control/observed.h"
#include "control/queue/rate_limiter.h"

namespace trainyard::control {

/// What a work queue has seen, under client-go's names for it.
struct WorkQueueStats {
  int64_t depth = 0;    ///< keys ready to be taken
  int64_t active = 0;   ///< keys taken and not done
  int64_t waiting = 0;  ///< keys that come back later
  int64_t adds = 0;
  int64_t retries = 0;                        ///< add_rate_limited
  Duration unfinished_work{0};                ///< of all keys taken and not done, together
  Duration longest_running{0};                ///< of them
  metrics::DurationHistogram queue_duration;  ///< from ready to taken
  metrics::DurationHistogram work_duration;   ///< from taken to done
};

/// Keys to work on, with the promises of client-go's workqueue: a key that is added many times
/// before it is taken is taken once; a key is never with two workers at once; a key added while it
/// is worked on is taken once more afterwards. First come, first served. Thread-safe.
class WorkQueue {
 public:
  /// `clock` outlives the queue.
  explicit WorkQueue(const Clock& clock, const RateLimits& limits = {});

  void add(const JobKey& key);
  /// Adds the key when `delay` is over. Of several waits of one key the shortest counts.
  void add_after(const JobKey& key, Duration delay);
  /// Adds the key when the rate limiter says so; returns the wait.
  Duration add_rate_limited(const JobKey& key);
  /// The key did well: its rate-limited waits start anew.
  void forget(const JobKey& key);
  int64_t failures(const JobKey& key) const;

  /// Takes the next key, waiting for one; nullopt when `stop` is requested. The key must be given
  /// back with done().
  std::optional<JobKey> get(const std::stop_token& stop);
  /// The same without waiting.
  std::optional<JobKey> try_get();
  void done(const JobKey& key);

  /// When a key can be taken: now or earlier where one is ready, else when the first wait ends;
  /// nullopt when there is none.
  std::optional<MonoTime> next_due() const;

  WorkQueueStats stats() const;

 private:
  void enqueue(const JobKey& key, MonoTime now);
  void promote_due(MonoTime now);
  std::optional<JobKey> take(MonoTime now);
  Duration longest_wait(MonoTime now) const;

  const Clock& clock_;
  mutable std::mutex mutex_;  ///< guards all below
  std::condition_variable_any changed_;
  RateLimiter limiter_;
  std::deque<JobKey> ready_;
  std::map<JobKey, MonoTime> dirty_;   ///< since when; in ready_ unless in active_
  std::map<JobKey, MonoTime> active_;  ///< since when
  std::map<JobKey, MonoTime> due_;
  std::set<std::pair<MonoTime, JobKey>> due_order_;
  int64_t due_changes_ = 0;
  WorkQueueStats stats_;
};

}  // namespace trainyard::control
