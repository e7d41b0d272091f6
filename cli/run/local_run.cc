#include "cli/run/local_run.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "cli/run/foreign_program.h"
#include "cli/run/result_file.h"
#include "cli/run/run_metrics.h"
#include "cli/run/snapshot.h"
#include "common/api/job_size.h"
#include "common/text/readable.h"
#include "control/local/process.h"
#include "control/policies/elastic.h"
#include "worker/checkpoint/reader.h"

namespace trainyard::cli {
namespace {

bool any_alive(const control::Observed& observed) {
  return std::any_of(observed.pods.begin(), observed.pods.end(),
                     [](const control::ObservedPod& pod) { return !pod.exit; });
}

/// An agent whose run has died ends after this long without it (docs/concepts/control-stream.md).
constexpr int kOrphanSeconds = 10;
constexpr std::chrono::seconds kKillTimeout{5};
/// How long a requested stop may fail to be written down before the ranks are told without.
constexpr std::chrono::seconds kStopPatience{3};
constexpr std::chrono::milliseconds kKillPoll{20};
/// Notices nobody has taken yet; the newest are kept.
constexpr size_t kMaxNotices = 256;
constexpr size_t kShownLastLines = 8;
constexpr char kLogName[] = "run.log";

std::string exit_text(const control::RankExit& exit) {
  const std::string how = exit.signal != 0 ? "was killed by " + signal_text(exit.signal)
                                           : "exited with code " + std::to_string(exit.exit_code);
  return "rank " + std::to_string(exit.rank) + " (" + exit.pod_name + ") " + how;
}

/// Before anything runs, what the system refuses (no room, no such place) is for the user to mend.
Error unusable(const std::filesystem::path& run_dir, Error error) {
  if (error.code != ErrorCode::kIo) return error;
  return {ErrorCode::kInvalidConfig,
          "run directory " + run_dir.string() + ": " + error.message +
              "; fix that (free space if the disk is full) or name another directory (--run-dir)"};
}

std::optional<std::string> variable_here(const std::string& name) {
  const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): only ever read
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

int64_t threads_per_rank(int64_t cores, int64_t ranks) {
  return std::max<int64_t>(1, cores / std::max<int64_t>(1, ranks));
}

LocalRun::LocalRun(LocalRunOptions options) : options_(std::move(options)) {}

Result<std::unique_ptr<LocalRun>> LocalRun::start(LocalRunOptions options) {
  std::unique_ptr<LocalRun> run(new LocalRun(std::move(options)));
  if (Status opened = run->open(); !opened) {
    return unusable(run->options_.run_dir, std::move(opened).error());
  }
  if (run->state_ == State::kRunning) run->begin_threads();
  return run;
}

std::map<std::string, std::string> LocalRun::pod_environment() const {
  const api::TrainingJobSpec& spec = options_.job.spec;
  std::map<std::string, std::string> environment;
  environment[control::kEnvOrphanLimit] = std::to_string(kOrphanSeconds);
  environment[control::kEnvStopGrace] =
      std::to_string(spec.checkpoint_policy.preemption_checkpoint.count());
  if (options_.trace_steps > 0 && spec.engine) {
    environment[contract::kEnvTraceDir] =
        (std::filesystem::absolute(options_.run_dir) / kTraceFolder).string();
    environment[contract::kEnvTraceSteps] = std::to_string(options_.trace_steps);
  }
  return environment;
}

Status LocalRun::check_programs() const {
  TRAINYARD_TRY(control::local::check_program(options_.agent, "trainyard-agent"));
  if (!options_.job.spec.engine) return {};
  return control::local::check_program(options_.worker, "trainyard-worker");
}

Status LocalRun::open() {
  TRAINYARD_TRY(check_programs());
  control::local::LocalClusterOptions cluster_options;
  cluster_options.run_dir = options_.run_dir;
  cluster_options.job = options_.job;
  cluster_options.pod_command = {options_.agent.string()};
  const api::TrainingJobSpec& spec = options_.job.spec;
  TRAINYARD_TRY(check_foreign_folders(spec));
  TRAINYARD_ASSIGN(cluster_options.program, foreign_command(spec));
  TRAINYARD_ASSIGN(cluster_options.program_environment,
                   foreign_environment(spec, variable_here, options_.env_files));
  if (!cluster_options.program.empty()) {
    cluster_options.working_directory = foreign_working_dir(spec);
    header_.unapplied_fields = unapplied_fields(spec);
  }
  cluster_options.environment = pod_environment();
  cluster_options.clock = &clock_;
  cluster_options.after_failure = options_.after_failure;
  TRAINYARD_TRY(settle_ended_run(cluster_options));
  TRAINYARD_ASSIGN(cluster_, control::local::LocalCluster::open(std::move(cluster_options)));
  TRAINYARD_ASSIGN(const control::Observed before, cluster_->observe(cluster_->key()));
  status_ = before.status;
  const bool over = has_condition(status_, api::ConditionType::kComplete) ||
                    has_condition(status_, api::ConditionType::kFailed);
  if (over && !any_alive(before)) state_ = State::kFinished;
  fill_header(before, over);
  TRAINYARD_ASSIGN(
      logger_, Logger::to_file(cluster_->run_dir() / kLogName, LogLevel::kInfo, LogFormat::kJson));
  grpc_log_.emplace(*logger_);
  if (state_ == State::kFinished) {
    ControlSocketFolder::clean(cluster_->run_dir());
    return {};
  }
  TRAINYARD_ASSIGN(socket_folder_, ControlSocketFolder::prepare(cluster_->run_dir()));
  TRAINYARD_ASSIGN(transport_, control::GrpcTransport::listen_on_unix_socket(
                                   socket_folder_->socket_path().string()));
  cluster_->set_environment(contract::kEnvControlAddress, transport_->address());
  return {};
}

void LocalRun::fill_header(const control::Observed& before, bool over) {
  api::TrainingJobSpec spec = options_.job.spec;
  spec.num_nodes = control::policies::nodes_at_start(spec);
  header_.job_name = options_.job.metadata.name;
  header_.run_dir = cluster_->run_dir().string();
  header_.nodes = spec.num_nodes;
  header_.ranks = api::ranks_of(spec);
  if (spec.engine) header_.threads_per_rank = spec.engine->runtime.threads;
  header_.generation = status_.membership.generation;
  header_.resumed = header_.generation > 0 && !over;
  if (status_.checkpoint) header_.step = status_.checkpoint->last_step;
  if (header_.resumed) header_.step = std::max(header_.step, step_on_disk());
  header_.manifest_changed =
      header_.resumed && status_.observed_generation < before.metadata.generation;
  header_.taken_up = cluster_->taken_up();
}

/// What ranks have done after the run before this one had died: nobody wrote it down.
int64_t LocalRun::step_on_disk() const {
  if (const auto result = read_result(cluster_->run_dir())) return result->step;
  return options_.job.spec.engine ? std::max<int64_t>(0, checkpoint_on_disk()) : 0;
}

/// The step of the newest good checkpoint; -1: there is none.
int64_t LocalRun::checkpoint_on_disk() const {
  checkpoint::PosixFileSystem files;
  const auto newest = checkpoint::open_newest_good(files, cluster_->checkpoint_dir(), std::nullopt,
                                                   checkpoint::Verify::kManifest, nullptr);
  return newest ? (*newest)->manifest().step : -1;
}

void LocalRun::begin_threads() {
  const std::string job_uid = cluster_->job_uid();
  const control::JobKey key = cluster_->key();
  control::Cluster* cluster = cluster_.get();
  if (options_.crash) {
    crash_points_ = std::make_unique<CrashPoints>(*cluster_, *options_.crash);
    cluster = crash_points_.get();
  }
  tap_ = std::make_unique<EventTap>(*cluster,
                                    [this](const control::Event& event) { on_event(event); });
  coordinator_ = std::make_unique<control::Coordinator>(control::Coordinator::Options{
      .transport = transport_.get(),
      .clock = &clock_,
      .logger = logger_.get(),
      .term = 0,
      .same_machine = true,
      .on_change =
          [this, key](const std::string&) {
            keep_readings();
            keep_result();  // before the brain may end the job by it
            reconciler_->wake(key);
          },
      .on_rank_exit = [this](const std::string&,
                             const control::RankExit& exit) { on_rank_exit(exit); },
      .on_rank_warning = [this](
                             const std::string&,
                             const control::RankWarning& warning) { on_rank_warning(warning); }});
  facts_ = std::make_unique<LeftFacts>(*coordinator_, *cluster_);
  reconciler_ = std::make_unique<control::Reconciler>(control::Reconciler::Options{
      .cluster = tap_.get(),
      .clock = &clock_,
      .facts = facts_.get(),
      .membership = coordinator_.get(),
      .on_reconciled = [this](const control::Reconciled& reconciled) { on_reconciled(reconciled); },
      .on_error = [this](const control::JobKey&, const Error& error) { on_error(error); }});
  cluster_->set_listener([this](const control::JobKey& changed) { reconciler_->wake(changed); });
  coordinating_ = std::jthread([this](std::stop_token stop) { coordinator_->run(stop); });
  reconciling_ = std::jthread([this](std::stop_token stop) { reconciler_->run(stop); });
  reconciler_->wake(key);
}

LocalRun::~LocalRun() {
  if (cluster_) cluster_->set_listener({});
  for (std::jthread* thread : {&reconciling_, &coordinating_}) {
    thread->request_stop();
    if (thread->joinable()) thread->join();
  }
  transport_.reset();
  if (!socket_folder_ || !cluster_) return;
  // Agents that are left look for the socket's folder until another run listens there.
  if (!may_be_alive()) socket_folder_->remove();
}

void LocalRun::on_error(const Error& error) {
  logger_->warning("reconcile failed", {{"error", error.message}});
  // A lost race is tried again and no news; the same complaint is told once.
  if (error.code == ErrorCode::kConflict) return;
  bool stopping = false;  // to whom one Ctrl-C would be the second
  {
    const std::lock_guard lock(mutex_);
    if (!failing_since_) failing_since_ = clock_.mono();
    failing_ = error.message;
    stopping = stop_requested_at_.has_value();
  }
  if (error.message == std::exchange(last_error_, error.message)) return;
  std::string text = error.message;
  if (error.code == ErrorCode::kIo) {
    text += "; the run retries until it works: fix that (free space if the disk is full)";
    if (!stopping) text += ", or stop with Ctrl-C";
  }
  add_notice({Notice::Kind::kWarning, "ReconcileFailed", std::move(text), {}});
}

void LocalRun::on_reconciled(const control::Reconciled& reconciled) {
  const std::lock_guard lock(mutex_);
  failing_since_.reset();
  status_ = reconciled.status;
  if (reconciled.observed.facts.result) result_ = reconciled.observed.facts.result;
  if (reconciled.finished) {
    state_ = State::kFinished;
    find_result();
  }
  if (reconciled.stopped && state_ == State::kRunning) state_ = State::kStopped;
}

void LocalRun::on_rank_exit(const control::RankExit& exit) {
  keep_readings();
  if (exit.expected || (exit.exit_code == contract::kExitDone && exit.signal == 0)) return;
  Notice notice{Notice::Kind::kRankExit, "RankExited", exit_text(exit), {}};
  const std::vector<std::string> lines = readable_lines(exit.last_lines);
  const size_t count = std::min(lines.size(), kShownLastLines);
  notice.details.assign(lines.end() - static_cast<std::ptrdiff_t>(count), lines.end());
  add_notice(std::move(notice));
}

void LocalRun::on_rank_warning(const control::RankWarning& warning) {
  logger_->warning("rank warns", {{"rank", warning.rank}, {"text", warning.message}});
  const std::optional<std::string> text = warnings_.take(warning.message);
  if (!text) return;
  add_notice({Notice::Kind::kWarning,
              "RankWarning",
              "rank " + std::to_string(warning.rank) + ": " + *text,
              {}});
}

void LocalRun::on_event(const control::Event& event) {
  const bool warning = event.type == control::EventType::kWarning;
  logger_->info("event", {{"reason", event.reason}, {"text", event.message}});
  add_notice(
      {warning ? Notice::Kind::kWarning : Notice::Kind::kEvent, event.reason, event.message, {}});
}

void LocalRun::keep_readings() {
  std::vector<control::RankReading> readings = coordinator_->readings(cluster_->job_uid());
  if (readings.empty()) return;
  const std::lock_guard lock(mutex_);
  readings_ = std::move(readings);
}

void LocalRun::keep_result() {
  if (result_kept_) return;
  const control::StreamFacts facts = coordinator_->facts(cluster_->job_uid());
  if (!facts.result) return;
  result_kept_ = true;
  const Status kept = write_result(cluster_->run_dir(), *facts.result);
  if (!kept) logger_->warning("result not written", {{"error", kept.error().message}});
}

/// Of a complete run: it may have been told to a run before this one, or to none, where that had
/// died and the ranks ended on their own.
void LocalRun::find_result() {
  if (!has_condition(status_, api::ConditionType::kComplete)) return;
  if (!result_) result_ = read_result(cluster_->run_dir());
  std::error_code error;
  if (!result_ || std::filesystem::exists(cluster_->run_dir() / contract::kResultFile, error)) {
    return;
  }
  const Status kept = write_result(cluster_->run_dir(), *result_);
  if (!kept) logger_->warning("result not written", {{"error", kept.error().message}});
}

void LocalRun::add_notice(Notice notice) {
  const std::lock_guard lock(mutex_);
  for (const control::RankReading& reading : readings_)
    notice.step = std::max(notice.step, reading.step);
  notices_.push_back(std::move(notice));
  if (notices_.size() > kMaxNotices) notices_.erase(notices_.begin());
}

LocalRun::State LocalRun::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void LocalRun::check_directory() {
  if (state() != State::kRunning) return;
  if (cluster_->is_in_place()) return keep_reachable();
  kill();
  const std::lock_guard lock(mutex_);
  state_ = State::kLost;
}

/// Agents yet to be started look for the socket by its path.
void LocalRun::keep_reachable() {
  if (transport_->is_reachable()) return;
  Status restored = socket_folder_->restore();
  if (restored) restored = transport_->listen_again();
  if (restored) {
    last_unreachable_.clear();
    return add_notice(
        {Notice::Kind::kWarning,
         "ControlSocketRestored",
         socket_folder_->socket_path().string() +
             " had been removed; it was created again, so that new agents find the run",
         {}});
  }
  if (restored.error().message == std::exchange(last_unreachable_, restored.error().message))
    return;
  add_notice({Notice::Kind::kWarning, "ControlSocketLost", restored.error().message, {}});
}

RunFacts LocalRun::facts() const {
  return {.job = &options_.job,
          .status = &status_,
          .readings = &readings_,
          .result = result_,
          .stop_requested = stop_requested_at_.has_value()};
}

std::string LocalRun::metrics_text(const http::ServerCounters& server) {
  keep_readings();
  const std::lock_guard lock(mutex_);
  return run_metrics_text(facts(), server, clock_.now());
}

http::Health LocalRun::readiness() const {
  const std::lock_guard lock(mutex_);
  return run_readiness(facts());
}

Snapshot LocalRun::snapshot() {
  keep_readings();
  const std::lock_guard lock(mutex_);
  return make_snapshot(facts(), clock_.now());
}

std::vector<Notice> LocalRun::take_notices() {
  const std::lock_guard lock(mutex_);
  return std::exchange(notices_, {});
}

Summary LocalRun::summary() {
  const std::lock_guard lock(mutex_);
  find_result();
  Summary summary = make_summary(facts(), clock_.now());
  if (state_ == State::kLost) {
    summary.outcome = Summary::Outcome::kFailed;
    summary.exit_code = contract::kExitBadData;
    summary.directory_gone = true;
    summary.reason = "RunDirectoryGone: " + header_.run_dir +
                     " was removed, moved or replaced while the run used it; its ranks were "
                     "stopped. Put it back to resume from its checkpoints, or start a new run";
    return summary;
  }
  if (state_ == State::kUnrecorded && summary.outcome == Summary::Outcome::kStopped) {
    summary.reason =
        "NotRecorded: its ranks have ended, but the status of the run could not be written: " +
        failing_ + ". Fix that (free space if the disk is full) and run it again to resume";
  }
  if (!options_.job.spec.engine) return summary;
  summary.checkpoint_dir = cluster_->checkpoint_dir().string();
  if (summary.outcome == Summary::Outcome::kComplete) {
    summary.export_dir = options_.job.spec.engine->export_to.hugging_face;
    return summary;
  }
  if (!killed_) return summary;
  // Ranks that are killed tell nobody of the checkpoint that they have just committed.
  const int64_t stored = checkpoint_on_disk();
  if (stored > summary.checkpoint_step.value_or(-1)) summary.checkpoint_step = stored;
  summary.step = std::max(summary.step, stored);
  return summary;
}

void LocalRun::request_stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_requested_at_ = clock_.mono();
  }
  reconciler_->request_stop(cluster_->key());
}

void LocalRun::press_stop() {
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kRunning || !stop_requested_at_) return;
    if (reconciling_.joinable()) {  // else this has begun to end it
      if (!failing_since_) return;
      if (clock_.mono() - std::max(*stop_requested_at_, *failing_since_) < kStopPatience) return;
    }
    why = failing_;
  }
  if (!may_be_alive()) {
    // From now on no pod is started, and no status written that would belie what is said below.
    reconciling_.request_stop();
    if (reconciling_.joinable()) reconciling_.join();
    if (!may_be_alive()) {
      const std::lock_guard lock(mutex_);
      if (state_ == State::kRunning) state_ = State::kUnrecorded;
      return;
    }
    pressed_ = false;  // one was started meanwhile
  }
  if (std::exchange(pressed_, true)) return;
  cluster_->terminate_all();
  add_notice({Notice::Kind::kWarning,
              "StopNotRecorded",
              why + ": the ranks are told to write a checkpoint and stop anyway",
              {}});
}

bool LocalRun::may_be_alive() const {
  const auto observed = cluster_->observe(cluster_->key());
  return !observed || any_alive(*observed);
}

std::chrono::seconds LocalRun::stop_limit() const {
  // As terminationGracePeriodSeconds of a pod: 30 s for all that is no checkpoint.
  return options_.job.spec.checkpoint_policy.preemption_checkpoint + std::chrono::seconds(30);
}

void LocalRun::kill() {
  // Nothing may be started again meanwhile.
  reconciling_.request_stop();
  if (reconciling_.joinable()) reconciling_.join();
  cluster_->kill_all();
  {
    const std::lock_guard lock(mutex_);
    killed_ = true;
  }
  const auto deadline = std::chrono::steady_clock::now() + kKillTimeout;
  while (std::chrono::steady_clock::now() < deadline) {
    if (!may_be_alive()) return;
    std::this_thread::sleep_for(kKillPoll);
  }
}

}  // namespace trainyard::cli
