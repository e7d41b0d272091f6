#include <algorithm>
#include <chrono>
#include <csignal>
#include <optional>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include "common/text/readable.h"
#include "common/worker_contract.h"
#include "control/local/local_impl.h"
#include "control/local/pod_exit.h"
#include "control/local/references.h"
#include "control/plan.h"

namespace trainyard::control::local {
namespace {

/// Folders of pods that are gone, kept for their logs.
constexpr size_t kKeptLogFolders = 20;
/// Made by a pod's launcher as the supervisor begins.
constexpr char kStartedFile[] = "started";
constexpr int64_t kTailBytes = 1024;
constexpr char kNodeName[] = "local";
/// How long killed pods of a spec that is no more are waited for.
constexpr std::chrono::seconds kKillPatience{5};
/// The watcher looks at its list again at least this often.
constexpr std::chrono::seconds kLongestPoll{60};
/// After SIGKILL the kernel may take this long to let go (a process in a system call).
constexpr std::chrono::seconds kKillAgain{1};

std::map<std::string, std::string> own_environment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    variables[std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
  }
  // Where this runs in a pod of the operator: what that pod's own agent is to speak by.
  for (const char* name : {kEnvControlAuthorities, kEnvControlToken, kEnvTerminationLog, kEnvStays,
                           kEnvKeepsStates, static_cast<const char*>(contract::kEnvHost)})
    variables.erase(name);
  return variables;
}

/// How a pod ended of which nobody was left to tell.
ContainerExit lost_exit(const PodRecord& record, Time now) {
  ContainerExit exit;
  exit.exit_code = 128 + SIGKILL;
  exit.reason = "Lost";
  exit.message = "process " + std::to_string(record.process.pid) +
                 " no longer exists and left no exit record: it was killed, or the disk was full";
  exit.finished_at = now;
  return exit;
}

std::string killed_text(const PodRecord& record, int signal_number) {
  return "its agent, process " + std::to_string(record.process.pid) + ", was killed by " +
         signal_text(signal_number) + "; its ranks ended with it";
}

std::string reason_of(const ChildExit& exit) {
  if (exit.signal) return "Signaled";
  return exit.exit_code == 0 ? "Completed" : "Error";
}

/// What a pod of one rank says of it, as in a cluster (operator/render/environment.cc); of several
/// ranks only their agent knows.
std::map<std::string, std::string> single_rank_of(const PodSpec& spec) {
  const auto of = [&](const char* name) {
    const auto found = spec.environment.find(name);
    return found == spec.environment.end() ? std::string() : found->second;
  };
  if (of(kEnvNumProcPerNode) != "1") return {};
  std::map<std::string, std::string> variables = {{contract::kEnvLocalRank, "0"},
                                                  {contract::kEnvLocalWorldSize, "1"}};
  for (const char* name : {contract::kEnvRank, "NODE_RANK", "GROUP_RANK", "JAX_PROCESS_ID"})
    variables[name] = of(kEnvNodeRank);
  for (const char* name : {contract::kEnvWorldSize, "GROUP_WORLD_SIZE", "JAX_NUM_PROCESSES"})
    variables[name] = of(kEnvNumNodes);
  return variables;
}

}  // namespace

ObservedPod view_of(const PodRecord& record) {
  ObservedPod seen;
  seen.name = record.name;
  seen.uid = record.uid;
  seen.node = kNodeName;
  seen.node_index = record.node_index;
  seen.spare = record.spare;
  seen.created_generation = record.created_generation;
  seen.member = record.member;
  seen.terminating = record.terminating();
  seen.node_state = NodeState::kReady;
  seen.created_at = record.created_at;
  seen.exit = record.exit;
  seen.phase = PodPhase::kRunning;
  if (!record.exit) seen.started_at = record.created_at;
  if (record.exit) {
    seen.phase = record.exit->exit_code == 0 ? PodPhase::kSucceeded : PodPhase::kFailed;
  }
  seen.ready = !record.exit && !seen.terminating;
  return seen;
}

// ---- Pods of a spec that is no more
// --------------------------------------------------------------

namespace {

/// Records of pods as they have ended; what lives of them is killed first, and waited for.
Result<std::vector<PodRecord>> end_all(const std::filesystem::path& pods_dir, const Clock& clock) {
  TRAINYARD_ASSIGN(std::vector<PodRecord> records, read_pod_records(pods_dir));
  for (const PodRecord& record : records) {
    if (!record.exit) kill_session(record.process);
  }
  const auto deadline = std::chrono::steady_clock::now() + kKillPatience;
  for (PodRecord& record : records) {
    if (record.exit) continue;
    const Result<UniqueFd> pidfd = open_process(record.process);
    if (!pidfd && pidfd.error().code != ErrorCode::kNotFound) return pidfd.error();
    if (pidfd) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(
          std::max<Duration>(deadline - std::chrono::steady_clock::now(), Duration::zero()));
      pollfd entry{pidfd->get(), POLLIN, 0};
      ::poll(&entry, 1, static_cast<int>(left.count()));
    }
    record.exit =
        read_pod_exit(pods_dir / record.name, record.uid).value_or(lost_exit(record, clock.now()));
    if (!record.exit->finished_at) record.exit->finished_at = clock.now();
  }
  return records;
}

Result<api::TrainingJobStatus> stop_job(const std::filesystem::path& pods_dir,
                                        const api::TrainingJob& job, const Clock& clock) {
  TRAINYARD_ASSIGN(const std::vector<PodRecord> records, end_all(pods_dir, clock));
  Observed observed;
  observed.key = {job.metadata.namespace_name, job.metadata.name};
  observed.metadata = job.metadata;
  observed.spec = job.spec;
  observed.status = job.status;
  observed.requested_stop = true;
  for (const PodRecord& record : records) {
    if (record.job_uid == job.metadata.uid && !record.terminating())
      observed.pods.push_back(view_of(record));
  }
  constexpr int kPlansMax = 4;  // the decision, then the end
  for (int plans = 0; plans < kPlansMax; ++plans) {
    Plan next = plan(observed, clock.now());
    std::optional<api::TrainingJobStatus>& status = next.intent ? next.intent : next.outcome;
    if (!status) break;
    observed.status = *std::move(status);
  }
  return observed.status;
}

Status forget_all(const std::filesystem::path& pods_dir, const Clock& clock) {
  TRAINYARD_ASSIGN(std::vector<PodRecord> records, read_pod_records(pods_dir));
  for (PodRecord& record : records) {
    const Result<UniqueFd> pidfd =
        record.exit ? Error{ErrorCode::kNotFound, ""} : open_process(record.process);
    if (!pidfd && pidfd.error().code != ErrorCode::kNotFound) return pidfd.error();
    const bool lives = pidfd.has_value();
    record.kill_at = clock.now();
    TRAINYARD_TRY(lives ? write_pod_record(pods_dir / record.name, record)
                        : remove_pod_record(pods_dir / record.name));
    if (lives) kill_session(record.process);
  }
  return {};
}

}  // namespace

OldPods old_pods_of(const std::filesystem::path& pods_dir, const Clock& clock) {
  return {.stop = [pods_dir,
                   &clock](const api::TrainingJob& job) { return stop_job(pods_dir, job, clock); },
          .forget = [pods_dir, &clock] { return forget_all(pods_dir, clock); }};
}

// ---- Adoption ----------------------------------------------------------------------------------

Status LocalCluster::Impl::adopt() {
  TRAINYARD_ASSIGN(std::vector<PodRecord> records, read_pod_records(pods_dir()));
  {
    const std::lock_guard lock(mutex_);
    for (PodRecord& record : records)
      TRAINYARD_TRY(adopt_one(std::move(record)));
  }
  prune_logs(pods_dir(), kKeptLogFolders);
  watcher_ = std::jthread([this](const std::stop_token& token) { watch(token); });
  return {};
}

Status LocalCluster::Impl::adopt_one(PodRecord record) {
  const bool of_deleted_job = record.job_uid != job_uid_;
  if (of_deleted_job && !record.exit) kill_session(record.process);
  if (of_deleted_job || (record.exit && record.terminating())) return forget(record.name);

  Pod pod{std::move(record), {}};
  if (!pod.record.exit) {
    Result<UniqueFd> pidfd = open_process(pod.record.process);
    if (!pidfd && pidfd.error().code != ErrorCode::kNotFound) return std::move(pidfd).error();
    if (pidfd) {
      pod.pidfd = *std::move(pidfd);
      // One that nobody has reaped yet.
      pollfd entry{pod.pidfd.get(), POLLIN, 0};
      if (::poll(&entry, 1, 0) > 0 && !never_began(pod)) note_end(pod);
    } else if (never_began(pod)) {
      return forget(pod.record.name);
    } else {
      note_end(pod);
    }
  }
  if (pod.record.exit && pod.record.terminating()) return {};
  std::string name = pod.record.name;
  pods_.emplace(std::move(name), std::move(pod));
  return {};
}

// ---- A pod's beginning and end -----------------------------------------------------------------

/// What "$(NAME)" may refer to in a pod's program: our variables, then its own.
std::map<std::string, std::string> LocalCluster::Impl::referable(const PodSpec& spec) const {
  std::map<std::string, std::string> variables = single_rank_of(spec);
  variables.insert(spec.environment.begin(), spec.environment.end());
  const std::string port = std::to_string(rendezvous_port_);
  for (const char* name : {"MASTER_ADDR", "PET_MASTER_ADDR"})
    variables[name] = "127.0.0.1";
  for (const char* name : {"MASTER_PORT", "PET_MASTER_PORT"})
    variables[name] = port;
  variables[contract::kEnvCheckpointDir] = checkpoint_dir_.string();
  for (const ProgramVariable& variable : options_.program_environment) {
    variables[variable.name] =
        variable.refers ? expand_references(variable.value, variables) : variable.value;
  }
  return variables;
}

std::map<std::string, std::string> LocalCluster::Impl::environment_of(
    const PodSpec& spec, const std::string& pod_uid) const {
  std::map<std::string, std::string> variables = own_environment();
  for (const auto& [name, value] : options_.environment)
    variables[name] = value;
  const std::map<std::string, std::string> expanded = referable(spec);
  for (const ProgramVariable& variable : options_.program_environment)
    variables[variable.name] = expanded.at(variable.name);
  for (const auto& [name, value] : spec.environment)
    variables[name] = value;
  const std::string port = std::to_string(rendezvous_port_);
  for (const char* name : {"MASTER_ADDR", "PET_MASTER_ADDR"})
    variables[name] = "127.0.0.1";
  for (const char* name : {"MASTER_PORT", "PET_MASTER_PORT"})
    variables[name] = port;
  variables[kEnvPodUid] = pod_uid;
  variables[kEnvPodDir] = dir_of(spec.name).string();
  variables[contract::kEnvCheckpointDir] = checkpoint_dir_.string();
  variables[contract::kEnvCheckpointPolicy] =
      (options_.run_dir / "checkpoint-policy.json").string();
  if (has_engine_) variables[contract::kEnvEngineConfig] = options_.run_dir / "engine.json";
  return variables;
}

Result<LocalCluster::Impl::Pod> LocalCluster::Impl::start(const PodSpec& spec,
                                                          const std::string& pod_uid) {
  const std::filesystem::path dir = dir_of(spec.name);
  TRAINYARD_TRY(store_.restore_files());
  TRAINYARD_TRY(make_directories(dir));
  // A pod of this name may have been here before: its exit is not this one's.
  ::unlink((dir / "exit.json").c_str());
  ::unlink((dir / kStartedFile).c_str());
  Pod pod;
  PodRecord& record = pod.record;
  record.name = spec.name;
  record.uid = pod_uid;
  record.job_uid = spec.job_uid;
  record.node_index = spec.node_index;
  record.spare = spec.spare;
  record.created_generation = spec.created_generation;
  record.member = spec.member;
  record.created_at = options_.clock->now();
  std::vector<std::string> command = options_.pod_command;
  if (!options_.program.empty()) command.emplace_back("--");
  const std::map<std::string, std::string> variables = referable(spec);
  for (const std::string& word : options_.program)
    command.push_back(expand_references(word, variables));
  const LaunchSpec what{std::move(command), environment_of(spec, pod_uid), dir / kLogFile,
                        options_.working_directory, dir / kStartedFile};
  const auto on_identified = [&](const ProcessId& process) -> Status {
    // What nobody could watch is not to run.
    TRAINYARD_ASSIGN(pod.pidfd, open_process(process));
    record.process = process;
    return write_pod_record(dir, record);
  };
  // A record that a failure leaves is that of a pod that never began.
  TRAINYARD_TRY(launch(what, on_identified));
  return pod;
}

/// Whoever made it died before it let it pass the gate (process.h, launch): it has run nothing, so
/// it is no loss but yet to be made.
bool LocalCluster::Impl::never_began(const Pod& pod) const {
  std::error_code code;
  return !std::filesystem::exists(dir_of(pod.record.name) / kStartedFile, code) && !code;
}

/// Takes down how a pod ended; what is left of its session ends with it.
void LocalCluster::Impl::note_end(Pod& pod) {
  PodRecord& record = pod.record;
  const Time now = options_.clock->now();
  const std::filesystem::path dir = dir_of(record.name);
  std::optional<ChildExit> child;
  if (pod.pidfd.valid()) child = child_exit(pod.pidfd.get());
  kill_session(record.process);
  Result<ContainerExit> told = read_pod_exit(dir, record.uid);
  if (told) {
    record.exit = *std::move(told);
  } else if (child) {
    record.exit = ContainerExit{};
    record.exit->reason = reason_of(*child);
    if (child->signal) record.exit->message = killed_text(record, *child->signal);
  } else {
    record.exit = lost_exit(record, now);
  }
  if (child) {
    record.exit->exit_code = child->exit_code;
    // The record's signal is the rank's; ours says how the supervisor itself ended.
    if (child->signal) record.exit->signal = child->signal;
  }
  if (!record.exit->finished_at) record.exit->finished_at = now;
  if (record.exit->message.empty() && record.exit->exit_code != 0) {
    record.exit->message = readable_text(tail_of(dir / kLogFile, kTailBytes));
  }
  if (pod.pidfd.valid()) reap(pod.pidfd.get());
  pod.pidfd.reset();
  // Lost writes cost nothing: the same end is found again from exit.json, or as lost.
  static_cast<void>(record.terminating() ? remove_pod_record(dir) : write_pod_record(dir, record));
}

// ---- The watcher -------------------------------------------------------------------------------

void LocalCluster::Impl::wake() const {
  const uint64_t one = 1;
  // A full counter means that the watcher is woken already.
  [[maybe_unused]] const ssize_t n = ::write(wake_fd_.get(), &one, sizeof one);
}

void LocalCluster::Impl::tell() {
  const std::lock_guard lock(listener_mutex_);
  if (listener_) listener_(key_);
}

void LocalCluster::Impl::set_listener(Listener listener) {
  const std::lock_guard lock(listener_mutex_);
  listener_ = std::move(listener);
}

int LocalCluster::Impl::poll_timeout_ms() const {
  Duration wait = kLongestPoll;
  const Time now = options_.clock->now();
  for (const auto& [name, pod] : pods_) {
    if (pod.record.exit || !pod.record.kill_at) continue;
    const bool overdue = *pod.record.kill_at <= now;
    wait = std::min<Duration>(wait, overdue ? Duration(kKillAgain) : *pod.record.kill_at - now);
  }
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count());
}

void LocalCluster::Impl::kill_overdue() {
  const Time now = options_.clock->now();
  for (auto& [name, pod] : pods_) {
    if (!pod.record.exit && pod.record.kill_at && *pod.record.kill_at <= now) {
      kill_session(pod.record.process);
    }
  }
}

/// Takes down the pods whose descriptor is readable.
bool LocalCluster::Impl::handle_ended(const std::vector<pollfd>& polled) {
  bool any = false;
  for (auto it = pods_.begin(); it != pods_.end();) {
    Pod& pod = it->second;
    const bool ended =
        pod.pidfd.valid() && std::any_of(polled.begin(), polled.end(), [&](const pollfd& entry) {
          return entry.fd == pod.pidfd.get() && (entry.revents & POLLIN) != 0;
        });
    any = any || ended;
    if (ended && never_began(pod)) {
      reap(pod.pidfd.get());
      // A record that cannot be removed is found again, as one of a pod that never began.
      static_cast<void>(forget(pod.record.name));
      it = pods_.erase(it);
      continue;
    }
    if (ended) note_end(pod);
    it = pod.record.exit && pod.record.terminating() ? pods_.erase(it) : std::next(it);
  }
  return any;
}

void LocalCluster::Impl::watch(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::vector<pollfd> polled = {{wake_fd_.get(), POLLIN, 0}};
    int timeout_ms = 0;
    {
      const std::lock_guard lock(mutex_);
      kill_overdue();
      timeout_ms = poll_timeout_ms();
      for (const auto& [name, pod] : pods_) {
        if (pod.pidfd.valid()) polled.push_back({pod.pidfd.get(), POLLIN, 0});
      }
    }
    if (::poll(polled.data(), polled.size(), timeout_ms) <= 0) continue;
    bool changed = (polled.front().revents & POLLIN) != 0;
    uint64_t count = 0;
    if (changed) {
      [[maybe_unused]] const ssize_t n = ::read(wake_fd_.get(), &count, sizeof count);
    }
    {
      const std::lock_guard lock(mutex_);
      changed = handle_ended(polled) || changed;
    }
    if (changed) tell();
  }
}

}  // namespace trainyard::control::local
