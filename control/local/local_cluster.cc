#include "control/local/local_cluster.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <mutex>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <stop_token>
#include <sys/eventfd.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "common/io/file.h"
#include "common/text/rfc3339.h"
#include "common/worker_contract.h"
#include "control/local/event_log.h"
#include "control/local/job_store.h"
#include "control/local/pod_exit.h"
#include "control/local/pod_record.h"
#include "control/local/process.h"

namespace trainyard::control::local {
namespace {

constexpr char kNodeName[] = "local";
/// Folders of pods that are gone, kept for their logs.
constexpr size_t kKeptLogFolders = 20;
constexpr int64_t kTailBytes = 1024;
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
  return variables;
}

Status check_command(const std::vector<std::string>& command) {
  if (!command.empty() && command.front().starts_with('/') &&
      ::access(command.front().c_str(), X_OK) == 0) {
    return {};
  }
  return Error{ErrorCode::kInvalidConfig,
               "pod command " + (command.empty() ? std::string("(none)") : command.front()) +
                   ": wanted the absolute path of an executable file"};
}

/// How a pod ended of which nobody was left to tell.
ContainerExit lost_exit(const PodRecord& record, Time now) {
  ContainerExit exit;
  exit.exit_code = 128 + SIGKILL;
  exit.reason = "Lost";
  exit.message = "process " + std::to_string(record.process.pid) +
                 " is gone and left no exit record: it was killed";
  exit.finished_at = now;
  return exit;
}

std::string reason_of(const ChildExit& exit) {
  if (exit.signal) return "Signaled";
  return exit.exit_code == 0 ? "Completed" : "Error";
}

}  // namespace

/// The state and the thread behind LocalCluster.
class LocalCluster::Impl {
 public:
  Impl(LocalClusterOptions options, FileLock lock, JobStore store, const api::TrainingJob& job)
      : options_(std::move(options)),
        lock_(std::move(lock)),
        store_(std::move(store)),
        key_{job.metadata.namespace_name, job.metadata.name},
        job_uid_(job.metadata.uid),
        rendezvous_port_(job.spec.rendezvous.port),
        has_engine_(job.spec.engine.has_value()),
        checkpoint_dir_(checkpoint_dir_of(options_.run_dir, job)),
        wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  /// Takes over the recorded pods of an earlier process and starts the watcher.
  Status adopt();
  void stop();

  Result<Observed> observe(const JobKey& key);
  Result<CreateReply> create_pod(const PodSpec& spec);
  Status delete_pod(const PodRef& ref, Duration grace);
  Status remove_member_label(const PodRef& ref);
  Status delete_job(const JobKey& key, const std::string& uid);
  Status emit_event(const Event& event);
  void kill_all();
  void set_listener(Listener listener);
  void set_environment(const std::string& name, const std::string& value);
  void tell();

  const JobKey& key() const { return key_; }
  const std::string& job_uid() const { return job_uid_; }
  const std::filesystem::path& run_dir() const { return options_.run_dir; }
  const std::filesystem::path& checkpoint_dir() const { return checkpoint_dir_; }
  JobStore& store() { return store_; }

 private:
  struct Pod {
    PodRecord record;
    UniqueFd pidfd;  ///< readable when it has ended; invalid once it was seen to
  };

  std::filesystem::path pods_dir() const { return options_.run_dir / "pods"; }
  std::filesystem::path dir_of(const std::string& name) const { return pods_dir() / name; }
  std::map<std::string, std::string> environment_of(const PodSpec& spec,
                                                    const std::string& pod_uid) const;
  Result<PodRecord> start(const PodSpec& spec, const std::string& pod_uid);
  Result<Pod*> find(const PodRef& ref);
  ObservedPod view_of(const Pod& pod) const;
  void note_end(Pod& pod);
  Status adopt_one(PodRecord record);
  Status forget(const std::string& name);
  void wake() const;

  void watch(const std::stop_token& stop);
  bool handle_ended(const std::vector<pollfd>& polled);
  int poll_timeout_ms() const;
  void kill_overdue();

  LocalClusterOptions options_;
  FileLock lock_;
  JobStore store_;
  const JobKey key_;
  const std::string job_uid_;
  const int64_t rendezvous_port_;
  const bool has_engine_;
  const std::filesystem::path checkpoint_dir_;
  UniqueFd wake_fd_;

  mutable std::mutex mutex_;         ///< guards pods_, options_.environment, events_
  std::map<std::string, Pod> pods_;  ///< by name
  EventLog events_;

  std::mutex listener_mutex_;  ///< held while the listener runs; taken with mutex_ free
  Listener listener_;
  std::jthread watcher_;
};

// ---- Opening -----------------------------------------------------------------------------------

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
  // Pods of a deleted job end; so do those of a spec that is no more, which is a restart under the
  // new one.
  const bool misfit = of_deleted_job || store_.replaced_running_spec();
  if (misfit && !record.exit) kill_session(record.process);
  if (of_deleted_job || (record.exit && record.terminating())) return forget(record.name);

  Pod pod{std::move(record), {}};
  if (!pod.record.exit) {
    Result<UniqueFd> pidfd = open_process(pod.record.process);
    if (!pidfd && pidfd.error().code != ErrorCode::kNotFound) return std::move(pidfd).error();
    if (pidfd) {
      pod.pidfd = *std::move(pidfd);
    } else {
      note_end(pod);
    }
  }
  if (pod.record.exit && pod.record.terminating()) return {};
  std::string name = pod.record.name;
  pods_.emplace(std::move(name), std::move(pod));
  return {};
}

void LocalCluster::Impl::stop() {
  set_listener({});
  watcher_.request_stop();
  wake();
  if (watcher_.joinable()) watcher_.join();
}

Result<std::unique_ptr<LocalCluster>> LocalCluster::open(LocalClusterOptions options) {
  TRAINYARD_TRY(check_command(options.pod_command));
  std::error_code code;
  options.run_dir = std::filesystem::absolute(options.run_dir, code).lexically_normal();
  if (code) return Error{ErrorCode::kIo, "absolute path of the run directory: " + code.message()};
  TRAINYARD_TRY(make_directories(options.run_dir / "pods"));
  TRAINYARD_ASSIGN(FileLock lock, FileLock::acquire(options.run_dir / "lock"));
  TRAINYARD_ASSIGN(JobStore store,
                   JobStore::open(options.run_dir, options.job, options.clock->now()));
  TRAINYARD_ASSIGN(const api::TrainingJob job, store.get());
  auto impl =
      std::make_unique<Impl>(std::move(options), std::move(lock), std::move(store), std::move(job));
  TRAINYARD_TRY(make_directories(impl->checkpoint_dir()));
  TRAINYARD_TRY(impl->adopt());
  return std::unique_ptr<LocalCluster>(new LocalCluster(std::move(impl)));
}

// ---- Pods --------------------------------------------------------------------------------------

std::map<std::string, std::string> LocalCluster::Impl::environment_of(
    const PodSpec& spec, const std::string& pod_uid) const {
  std::map<std::string, std::string> variables = own_environment();
  for (const auto& [name, value] : options_.environment)
    variables[name] = value;
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

Result<PodRecord> LocalCluster::Impl::start(const PodSpec& spec, const std::string& pod_uid) {
  const std::filesystem::path dir = dir_of(spec.name);
  TRAINYARD_TRY(make_directories(dir));
  // A pod of this name may have been here before: its exit is not this one's.
  ::unlink((dir / "exit.json").c_str());
  PodRecord record;
  record.name = spec.name;
  record.uid = pod_uid;
  record.job_uid = spec.job_uid;
  record.node_index = spec.node_index;
  record.created_generation = spec.created_generation;
  record.member = spec.member;
  record.created_at = options_.clock->now();
  const LaunchSpec what{options_.pod_command, environment_of(spec, pod_uid), dir / kLogFile,
                        options_.working_directory};
  const auto on_identified = [&](const ProcessId& process) {
    record.process = process;
    return write_pod_record(dir, record);
  };
  Result<ProcessId> process = launch(what, on_identified);
  if (!process) {
    static_cast<void>(remove_pod_record(dir));  // what is left there would only be taken for lost
    return std::move(process).error();
  }
  record.process = *std::move(process);
  return record;
}

Result<CreateReply> LocalCluster::Impl::create_pod(const PodSpec& spec) {
  using Outcome = CreateReply::Outcome;
  const std::lock_guard lock(mutex_);
  if (const auto found = pods_.find(spec.name); found != pods_.end()) {
    const PodRecord& record = found->second.record;
    const bool ours = record.job_uid == spec.job_uid && !record.terminating();
    return CreateReply{ours ? Outcome::kExists : Outcome::kNameConflict, record.uid,
                       record.job_uid};
  }
  TRAINYARD_ASSIGN(std::string pod_uid, new_uid());
  TRAINYARD_ASSIGN(PodRecord record, start(spec, pod_uid));
  Pod pod{std::move(record), {}};
  Result<UniqueFd> pidfd = open_process(pod.record.process);
  if (!pidfd && pidfd.error().code != ErrorCode::kNotFound) {
    // Nobody could watch it: rather none than that.
    kill_session(pod.record.process);
    TRAINYARD_TRY(remove_pod_record(dir_of(spec.name)));
    return std::move(pidfd).error();
  }
  if (pidfd) {
    pod.pidfd = *std::move(pidfd);
  } else {
    note_end(pod);
  }
  pods_.emplace(spec.name, std::move(pod));
  wake();
  return CreateReply{Outcome::kCreated, pod_uid, {}};
}

Result<LocalCluster::Impl::Pod*> LocalCluster::Impl::find(const PodRef& ref) {
  const auto found = pods_.find(ref.name);
  if (found == pods_.end()) return Error{ErrorCode::kNotFound, "no pod " + ref.name};
  const std::string& uid = found->second.record.uid;
  if (uid != ref.uid) {
    return Error{ErrorCode::kConflict,
                 "pod " + ref.name + " has UID " + uid + ", the precondition wanted " + ref.uid};
  }
  return &found->second;
}

Status LocalCluster::Impl::delete_pod(const PodRef& ref, Duration grace) {
  const std::lock_guard lock(mutex_);
  TRAINYARD_ASSIGN(Pod * pod, find(ref));
  if (pod->record.exit) {
    TRAINYARD_TRY(forget(ref.name));
    pods_.erase(ref.name);
    wake();
    return {};
  }
  if (pod->record.terminating()) return {};
  PodRecord record = pod->record;
  record.kill_at = options_.clock->now() + grace;
  TRAINYARD_TRY(write_pod_record(dir_of(ref.name), record));
  pod->record = std::move(record);
  send_signal(pod->pidfd.get(), SIGTERM);
  wake();
  return {};
}

Status LocalCluster::Impl::remove_member_label(const PodRef& ref) {
  const std::lock_guard lock(mutex_);
  TRAINYARD_ASSIGN(Pod * pod, find(ref));
  if (!pod->record.member) return {};
  PodRecord record = pod->record;
  record.member = false;
  TRAINYARD_TRY(write_pod_record(dir_of(ref.name), record));
  pod->record = std::move(record);
  return {};
}

Status LocalCluster::Impl::forget(const std::string& name) {
  return remove_pod_record(dir_of(name));
}

Status LocalCluster::Impl::delete_job(const JobKey& key, const std::string& uid) {
  if (key != key_) return Error{ErrorCode::kNotFound, "no TrainingJob " + key.name};
  TRAINYARD_TRY(store_.remove(uid));
  kill_all();
  return {};
}

void LocalCluster::Impl::kill_all() {
  const std::lock_guard lock(mutex_);
  for (auto& [name, pod] : pods_) {
    if (!pod.record.exit) kill_session(pod.record.process);
  }
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
    record.exit->message = tail_of(dir / kLogFile, kTailBytes);
  }
  if (pod.pidfd.valid()) reap(pod.pidfd.get());
  pod.pidfd.reset();
  // Lost writes cost nothing: the same end is found again from exit.json, or as lost.
  static_cast<void>(record.terminating() ? remove_pod_record(dir) : write_pod_record(dir, record));
}

ObservedPod LocalCluster::Impl::view_of(const Pod& pod) const {
  const PodRecord& record = pod.record;
  ObservedPod seen;
  seen.name = record.name;
  seen.uid = record.uid;
  seen.node = kNodeName;
  seen.node_index = record.node_index;
  seen.created_generation = record.created_generation;
  seen.member = record.member;
  seen.terminating = record.terminating();
  seen.node_state = NodeState::kReady;
  seen.created_at = record.created_at;
  seen.exit = record.exit;
  seen.phase = PodPhase::kRunning;
  if (record.exit) {
    seen.phase = record.exit->exit_code == 0 ? PodPhase::kSucceeded : PodPhase::kFailed;
  }
  seen.ready = !record.exit && !seen.terminating;
  return seen;
}

Result<Observed> LocalCluster::Impl::observe(const JobKey& key) {
  if (key != key_) {
    return Error{ErrorCode::kNotFound, "no TrainingJob " + key.name + " in " +
                                           options_.run_dir.string() + ", which holds " +
                                           key_.name};
  }
  TRAINYARD_ASSIGN(api::TrainingJob job, store_.get());
  Observed observed;
  observed.key = key_;
  observed.metadata = std::move(job.metadata);
  observed.spec = std::move(job.spec);
  observed.status = std::move(job.status);
  const std::lock_guard lock(mutex_);
  for (const auto& [name, pod] : pods_)
    observed.pods.push_back(view_of(pod));
  return observed;
}

Status LocalCluster::Impl::emit_event(const Event& event) {
  const std::lock_guard lock(mutex_);
  return events_.append(options_.run_dir / "events.jsonl", event, options_.clock->now());
}

void LocalCluster::Impl::set_environment(const std::string& name, const std::string& value) {
  const std::lock_guard lock(mutex_);
  options_.environment[name] = value;
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
    wait = std::clamp<Duration>(*pod.record.kill_at - now, Duration::zero(), wait);
    if (*pod.record.kill_at <= now) wait = std::min<Duration>(kLongestPoll, kKillAgain);
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
    if (ended) {
      note_end(pod);
      any = true;
    }
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

// ---- The public face ---------------------------------------------------------------------------

LocalCluster::LocalCluster(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LocalCluster::~LocalCluster() { impl_->stop(); }

const JobKey& LocalCluster::key() const { return impl_->key(); }
const std::string& LocalCluster::job_uid() const { return impl_->job_uid(); }
const std::filesystem::path& LocalCluster::run_dir() const { return impl_->run_dir(); }
const std::filesystem::path& LocalCluster::checkpoint_dir() const {
  return impl_->checkpoint_dir();
}
void LocalCluster::set_environment(const std::string& name, const std::string& value) {
  impl_->set_environment(name, value);
}
void LocalCluster::kill_all() { impl_->kill_all(); }

Result<Observed> LocalCluster::observe(const JobKey& key) { return impl_->observe(key); }

Result<std::string> LocalCluster::put_status(const JobKey& key, const std::string& uid,
                                             const api::TrainingJobStatus& status,
                                             const std::string& resource_version) {
  if (key != impl_->key()) return Error{ErrorCode::kNotFound, "no TrainingJob " + key.name};
  return impl_->store().put_status(uid, status, resource_version);
}

Result<CreateReply> LocalCluster::create_pod(const PodSpec& spec) {
  return impl_->create_pod(spec);
}
Status LocalCluster::delete_pod(const PodRef& pod, Duration grace) {
  return impl_->delete_pod(pod, grace);
}
Status LocalCluster::remove_member_label(const PodRef& pod) {
  return impl_->remove_member_label(pod);
}
Status LocalCluster::delete_job(const JobKey& key, const std::string& uid) {
  return impl_->delete_job(key, uid);
}
Status LocalCluster::emit_event(const JobKey& key, const Event& event) {
  if (key != impl_->key()) return Error{ErrorCode::kNotFound, "no TrainingJob " + key.name};
  return impl_->emit_event(event);
}
void LocalCluster::set_listener(Listener listener) { impl_->set_listener(std::move(listener)); }

}  // namespace trainyard::control::local
