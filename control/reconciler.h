#pragma once

#include <atomic>
#include <cstdint>
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
#include "control/queue/work_queue.h"

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
  bool refused = false;   ///< the cluster did not take a pod: tried again with back-off
};

/// How a reconcile ended, for metrics and the log.
struct ReconcileReport {
  /// The values of `result` in controller_runtime_reconcile_total.
  enum class Result { kSuccess, kError, kRequeue, kRequeueAfter };
  JobKey key;
  int64_t id = 0;  ///< of this reconcile, unique within the process
  Result result = Result::kSuccess;
  std::optional<Error> error;
  Duration took{0};
};

/// Level-triggered loop over jobs: observe, plan, apply. One key is never reconciled twice at once;
/// a wake during its reconcile makes one more. Errors come back with back-off (WorkQueue).
/// Thread-safe.
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
    /// Called after every reconcile, on its thread; must not block.
    std::function<void(const ReconcileReport&)> on_report;
    RateLimits limits;
    /// Wakes of one job are gathered for so long after its last reconcile: a thousand pods that
    /// become ready one by one are a few looks, not a thousand.
    Duration gather{0};
    /// A status in which only counts of pods have changed follows the one before after so long.
    Duration counts_period{0};
    /// Jobs whose pods speak the control stream; absent: all do.
    std::function<bool(const api::TrainingJobSpec&)> has_agents;
  };

  explicit Reconciler(Options options);
  ~Reconciler();
  Reconciler(const Reconciler&) = delete;
  Reconciler& operator=(const Reconciler&) = delete;

  /// One observe -> plan -> apply, now. Errors: the cluster's; kConflict asks for another try.
  /// kNotFound: the job is gone and forgotten. Not to be called while run() is running.
  Result<Reconciled> reconcile(const JobKey& key);

  /// Marks a job as worth a look. Does not block.
  void wake(const JobKey& key);

  /// From now on `requested_stop` is set for this job; wakes it.
  void request_stop(const JobKey& key);

  /// Reconciles what is woken or due until `stop` is requested; what is begun is ended first. Any
  /// number of threads at once.
  void run(const std::stop_token& stop);

  /// Reconciles the next job that is woken or due, if there is one; whether there was. For whoever
  /// drives the loop without threads.
  bool run_next();

  /// When run_next() has something to do; nullopt: not without a wake.
  std::optional<MonoTime> next_due() const { return queue_.next_due(); }

  /// Of the queue behind run().
  WorkQueueStats queue_stats() const { return queue_.stats(); }

 private:
  /// What must not be taken back by a stale look, and what need not be asked twice.
  struct Memory {
    std::string uid;
    /// A generation was not written by this process, or its answer was lost: there may be pods that
    /// this process has not seen.
    bool inherited = false;
    int64_t listed = 0;      ///< generation for which they were listed, and all older ones went
    int64_t generation = 0;  ///< of the membership
    int64_t tried_spec = 0;  ///< metadata.generation of which the cluster would take a pod
    bool reports = false;    ///< its ranks tell of their progress
    std::string version;     ///< of the job, when this process last found it to be the newest
    std::optional<MonoTime> looked_at;
    std::optional<MonoTime> wrote_at;  ///< the status
    bool crowded = false;              ///< pods on their way out held places at the last look
    std::optional<Time> room_since;    ///< Observed::room_since
    std::string behind;                ///< version of the job whose status is behind its pods
    std::optional<MonoTime> behind_since;
  };

  void work_on(const JobKey& key);
  Result<Reconciled> reconcile_guarded(const JobKey& key);
  Result<Reconciled> reconcile_unguarded(const JobKey& key);
  std::optional<int64_t> lost_generation(const Observed& observed, Memory& memory) const;
  Result<Plan> plan_taken_pods(Observed& observed, Memory& memory, Time now);
  Status try_growth(Observed& observed, Plan& planned, Time now);
  Status confirm(Observed& observed, const Plan& planned, Memory& memory);
  void schedule(const JobKey& key, const Result<Reconciled>& result);
  void report(const JobKey& key, const Result<Reconciled>& result, MonoTime began);
  bool has_agents(const api::TrainingJobSpec& spec) const;
  void tell_membership(const Observed& observed, const api::TrainingJobStatus& status);
  void retire_namesake(const JobKey& key, const std::string& uid);
  Memory recall(const JobKey& key, const Observed& observed);
  static void note_room(Observed& observed, Memory& memory, Time now);
  void remember(const JobKey& key, const Memory& memory);

  const Options options_;
  WorkQueue queue_;
  std::atomic<int64_t> reconciles_ = 0;

  mutable std::mutex mutex_;
  std::map<JobKey, Memory> memory_;  ///< guarded by mutex_; an entry is its worker's alone
  int64_t reporting_ = 0;            ///< jobs in memory_ that report; guarded by mutex_
  std::set<JobKey> stop_requested_;  ///< guarded by mutex_
};

}  // namespace trainyard::control
