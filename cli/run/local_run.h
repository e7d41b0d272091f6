#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/run/control_socket.h"
#include "cli/run/crash_points.h"
#include "cli/run/event_tap.h"
#include "cli/run/left_facts.h"
#include "cli/run/run_view.h"
#include "cli/run/snapshot.h"
#include "cli/run/warning_filter.h"
#include "common/api/training_job.h"
#include "common/base/clock.h"
#include "common/http/status_server.h"
#include "common/log/log.h"
#include "control/coordinator/coordinator.h"
#include "control/coordinator/grpc_log.h"
#include "control/coordinator/grpc_transport.h"
#include "control/local/local_cluster.h"
#include "control/reconciler.h"

namespace trainyard::cli {

/// Where ranks leave their traces, in the run directory.
inline constexpr char kTraceFolder[] = "trace";

/// One job on this machine.
struct LocalRunOptions {
  api::TrainingJob job;  ///< valid, its paths absolute
  std::filesystem::path run_dir;
  std::filesystem::path agent;   ///< the agent's binary, absolute
  std::filesystem::path worker;  ///< the built-in engine's, absolute; as the agents will find it
  control::local::AfterFailure after_failure = control::local::AfterFailure::kStay;
  /// For tests: where this process kills itself.
  std::optional<CrashPoints::Point> crash;
  /// What stands for the ConfigMaps and Secrets of envFrom (foreign_program.h).
  std::map<std::string, std::string> env_files;
  int64_t trace_steps = 0;  ///< ranks trace as many of their newest steps; 0: none
};

/// The brain, the coordinator and this machine as a cluster in one process: observe, plan, apply on
/// one thread, the control stream on another. Pods outlive it. Used from one thread.
class LocalRun {
 public:
  /// kLost: the run directory is gone from under it; kUnrecorded: stopped where that could not be
  /// written down. Nothing is left running then.
  enum class State { kRunning, kFinished, kStopped, kLost, kUnrecorded };

  /// Takes the run directory and starts, or goes on. Errors: those of LocalCluster::open and
  /// GrpcTransport::listen_on_unix_socket; kInvalidConfig for a job that cannot run here, or a
  /// directory that the system lets nobody use.
  static Result<std::unique_ptr<LocalRun>> start(LocalRunOptions options);
  ~LocalRun();
  LocalRun(const LocalRun&) = delete;
  LocalRun& operator=(const LocalRun&) = delete;

  const RunHeader& header() const { return header_; }
  State state() const;
  /// Looks whether the run directory is still there; where it is not, ends everything: kLost. A
  /// control socket that somebody has removed is made again.
  void check_directory();
  Snapshot snapshot();
  /// What happened since the last call.
  std::vector<Notice> take_notices();
  Summary summary();
  /// The body of /metrics. Thread-safe.
  std::string metrics_text(const http::ServerCounters& server);
  /// What /readyz says. Thread-safe.
  http::Health readiness() const;

  /// Checkpoint and stop: the state becomes kStopped once no pod is left (or kFinished).
  void request_stop();
  /// A stop is written down before pods hear of it. Where that fails (a full disk) this tells them
  /// all the same, and once none is left the state becomes kUnrecorded.
  void press_stop();
  /// How long a requested stop may take: the time to checkpoint, and what pods have beyond it.
  std::chrono::seconds stop_limit() const;
  /// Kills all processes of the job and waits until they are gone, at most a few seconds.
  void kill();

 private:
  explicit LocalRun(LocalRunOptions options);
  Status check_programs() const;
  Status open();
  void fill_header(const control::Observed& before, bool over);
  int64_t step_on_disk() const;
  int64_t checkpoint_on_disk() const;
  /// Whether a process of the job is there, or it cannot be known.
  bool may_be_alive() const;
  void begin_threads();
  void on_reconciled(const control::Reconciled& reconciled);
  void on_rank_exit(const control::RankExit& exit);
  void on_rank_warning(const control::RankWarning& warning);
  void on_error(const Error& error);
  void on_event(const control::Event& event);
  void keep_readings();
  void keep_reachable();
  /// Under mutex_.
  RunFacts facts() const;
  void keep_result();
  /// Under mutex_.
  void find_result();
  void add_notice(Notice notice);
  std::map<std::string, std::string> pod_environment() const;

  const LocalRunOptions options_;
  const SystemClock clock_;
  RunHeader header_;
  std::unique_ptr<Logger> logger_;
  std::optional<control::GrpcLog> grpc_log_;
  std::unique_ptr<control::local::LocalCluster> cluster_;
  std::unique_ptr<CrashPoints> crash_points_;
  std::unique_ptr<EventTap> tap_;
  std::optional<ControlSocketFolder> socket_folder_;
  std::unique_ptr<control::GrpcTransport> transport_;
  std::unique_ptr<control::Coordinator> coordinator_;
  std::unique_ptr<LeftFacts> facts_;
  std::unique_ptr<control::Reconciler> reconciler_;

  mutable std::mutex mutex_;  ///< guards what follows
  State state_ = State::kRunning;
  bool killed_ = false;  ///< by kill()
  std::optional<MonoTime> stop_requested_at_;
  std::optional<MonoTime> failing_since_;  ///< of reconciles, one after the other
  std::string failing_;                    ///< the newest of their errors
  api::TrainingJobStatus status_;
  std::vector<control::RankReading> readings_;  ///< newest that were not empty
  std::optional<contract::RunResult> result_;
  std::vector<Notice> notices_;
  std::string last_error_;        ///< reconciling thread only
  std::string last_unreachable_;  ///< thread of check_directory() only
  bool pressed_ = false;          ///< thread of press_stop() only
  bool result_kept_ = false;      ///< polling thread only
  WarningFilter warnings_;        ///< polling thread only

  std::jthread coordinating_;
  std::jthread reconciling_;
};

/// Threads of one rank when `ranks` share this machine's `cores`: at least one.
int64_t threads_per_rank(int64_t cores, int64_t ranks);

}  // namespace trainyard::cli
