#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/fair_mutex.h"
#include "common/log/log.h"
#include "control/coordinator/control_transport.h"
#include "control/coordinator/exit_log.h"
#include "control/coordinator/job_run.h"
#include "control/facts.h"

namespace trainyard::control {

/// Something a rank wants people to know of though training goes on.
struct RankWarning {
  int64_t generation = 0;
  int rank = -1;
  std::string message;
};

/// Executes what status has persisted and collects what agents see: facts go to the brain through
/// FactsSource, generations, rank tables and resume plans go to the agents of the membership that
/// publish() names. It decides nothing and remembers nothing that agents do not tell again after a
/// reconnect, so it may be replaced at any time while training goes on.
///
/// publish(), retire() and facts() come from any thread; run() or poll() from one.
class Coordinator final : public FactsSource, public MembershipSink {
 public:
  struct Options {
    ControlTransport* transport = nullptr;  ///< required; outlives the coordinator
    const Clock* clock = nullptr;           ///< required; outlives the coordinator
    Logger* logger = nullptr;               ///< required; outlives the coordinator
    /// leaseTransitions of the Lease it serves under; 0 where there is none.
    int64_t term = 0;
    /// All agents run on this machine (StreamFacts::same_machine).
    bool same_machine = false;
    /// Called on the polling thread, no lock held, with each job that deserves a look of the brain:
    /// news of its agents, and its first order, as the look that led to that had no facts.
    std::function<void(const std::string& job_uid)> on_change;
    /// Called on the polling thread, no lock held.
    std::function<void(const std::string& job_uid, const RankExit&)> on_rank_exit;
    /// Called on the polling thread, no lock held.
    std::function<void(const std::string& job_uid, const RankWarning&)> on_rank_warning;
  };

  explicit Coordinator(Options options);
  ~Coordinator() override;
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// Handles what agents say until `stop` is requested.
  void run(std::stop_token stop);

  /// Handles what has arrived; waits up to `timeout` for the first of it.
  void poll(Duration timeout);

  /// The term of what agents are told from now on: a higher one than before. Thread-safe.
  void set_term(int64_t term);

  StreamFacts facts(const std::string& job_uid) const override;
  void publish(const MembershipOrder& order) override;
  void retire(const std::string& job_uid) override;

  /// What the ranks of the current generation last reported, by rank. Thread-safe.
  std::vector<RankReading> readings(const std::string& job_uid) const;

 private:
  /// What one batch of events leads to outside the lock.
  struct Effects {
    std::vector<std::string> changed;
    std::vector<std::pair<std::string, RankExit>> exits;
    std::vector<std::pair<std::string, RankWarning>> warnings;
  };

  void handle_locked(ServerEvent& event, Effects& effects);
  void introduce_locked(const ServerEvent& event, Effects& effects);
  void message_locked(const ServerEvent& event, JobRun& job, const std::string& job_uid,
                      Effects& effects);
  void send_locked(std::vector<JobRun::Decision> decisions);
  JobRun* job_locked(const std::string& job_uid);
  std::unique_ptr<JobRun> make_job_locked(const std::string& job_uid) const;
  void pass_time_locked(Effects& effects);
  /// What was missed between the last poll and now; nullopt: nothing.
  std::optional<DeafTime> deafness_locked() const;

  const Options options_;
  const Time listens_since_;
  MonoTime listened_until_;  ///< polling thread only, as exit_log_
  ExitLog exit_log_;
  mutable FairMutex mutex_;  ///< fair: the polling thread takes it again and again
  Time heard_until_;  ///< as listened_until_, by the clock that facts go by; guarded by mutex_
  std::vector<DeafTime> deaf_;                           ///< newest last; guarded by mutex_
  int64_t term_;                                         ///< guarded by mutex_
  std::map<std::string, std::unique_ptr<JobRun>> jobs_;  ///< by UID; guarded by mutex_
  /// Jobs whose first order has come since the last poll; guarded by mutex_.
  std::vector<std::string> newly_hosted_;
  /// Streams and the job they introduced themselves for; empty before. Guarded by mutex_.
  std::map<ConnectionId, std::string> connections_;
};

}  // namespace trainyard::control
