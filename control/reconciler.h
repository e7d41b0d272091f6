#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "control/cluster.h"
#include "control/facts.h"
#include "control/observed.h"

namespace trainyard::control {

/// What one reconcile saw and came to.
struct Reconciled {
  Observed observed;
  /// Status after the reconcile: what was written, else what was observed.
  api::TrainingJobStatus status;
  /// When to look again though nothing changes; nullopt: only on a wake.
  std::optional<Duration> requeue_after;
  bool finished = false;  ///< Complete or Failed, and no pod is alive
  bool stopped = false;   ///< Suspended (spec.suspend or request_stop), and no pod is alive
};

/// Level-triggered loop over jobs: observe, plan, apply. One key is never reconciled twice at once;
/// a wake during its reconcile makes one more. Errors come back with back-off (5 ms doubled to
/// 1000 s, as client-go's per-item limiter).
class Reconciler {
 public:
  struct Options {
    Cluster* cluster = nullptr;            ///< required; outlives the reconciler
    const Clock* clock = nullptr;          ///< required; outlives the reconciler
    const FactsSource* facts = nullptr;    ///< absent: no control stream
    MembershipSink* membership = nullptr;  ///< absent: nobody executes generations
    /// Called after every successful reconcile, on the reconciling thread; must not block.
    std::function<void(const Reconciled&)> on_reconciled;
    /// Called with each failed reconcile's key and error, for the log.
    std::function<void(const JobKey&, const Error&)> on_error;
  };

  explicit Reconciler(Options options);
  ~Reconciler();
  Reconciler(const Reconciler&) = delete;
  Reconciler& operator=(const Reconciler&) = delete;

  /// One observe -> plan -> apply, now. Errors: the cluster's; kConflict asks for another try.
  /// kNotFound: the job is gone and forgotten. Not to be called while run() is running.
  Result<Reconciled> reconcile(const JobKey& key);

  /// Marks a job as worth a look. Thread-safe, does not block.
  void wake(const JobKey& key);

  /// From now on `requested_stop` is set for this job. Thread-safe, wakes it.
  void request_stop(const JobKey& key);

  /// Reconciles what is woken or due until `stop` is requested. One call at a time.
  void run(const std::stop_token& stop);

 private:
  /// What must not be taken back by a stale look.
  struct Memory {
    std::string uid;
    int64_t generation = 0;
    int failures = 0;
  };

  Result<Reconciled> reconcile_unguarded(const JobKey& key);
  void schedule(const JobKey& key, const Result<Reconciled>& result);
  void tell_membership(const Reconciled& reconciled);
  void enqueue(const JobKey& key);
  std::optional<JobKey> next_key();
  void wait(const std::stop_token& stop);

  const Options options_;
  std::map<JobKey, Memory> memory_;  ///< reconciling thread only

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<JobKey> queue_;         ///< first come, first served; guarded by mutex_
  std::set<JobKey> dirty_;           ///< the keys in queue_; guarded by mutex_
  std::map<JobKey, MonoTime> due_;   ///< guarded by mutex_
  std::set<JobKey> stop_requested_;  ///< guarded by mutex_
};

}  // namespace trainyard::control
