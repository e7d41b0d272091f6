#include "control/local/local_cluster.h"

#include <csignal>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

#include "common/api/job_size.h"
#include "control/local/local_impl.h"

namespace trainyard::control::local {
namespace {

/// Files with which a `trainyard run` that was killed here was about to replace others
/// (write_file_atomic). Agents, which may be writing, have other names in their pods' folders.
void remove_unfinished(const std::filesystem::path& folder, std::string_view prefix) {
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
    const std::string name = entry.path().filename().string();
    std::error_code ignored;
    const bool unfinished = name.starts_with(prefix) && name.find(".tmp.") != std::string::npos;
    if (unfinished) std::filesystem::remove(entry.path(), ignored);
  }
}

void remove_all_unfinished(const std::filesystem::path& run_dir) {
  remove_unfinished(run_dir, "");
  std::error_code code;
  for (const auto& pod : std::filesystem::directory_iterator(run_dir / "pods", code))
    remove_unfinished(pod.path(), "pod.json");
}

/// What cannot become a run directory is the caller's to mend, unlike an error later on.
Status check_run_dir(const std::filesystem::path& run_dir) {
  std::error_code code;
  std::filesystem::path nearest = run_dir;
  while (!std::filesystem::exists(nearest, code) && nearest.has_relative_path())
    nearest = nearest.parent_path();
  const auto refused = [&](const std::string& found) {
    return Error{ErrorCode::kInvalidConfig, "run directory " + run_dir.string() + ": " +
                                                (nearest == run_dir ? "it" : nearest.string()) +
                                                " is " + found + "; name another one"};
  };
  if (!std::filesystem::is_directory(nearest, code)) return refused("not a directory");
  if (::access(nearest.c_str(), W_OK | X_OK) != 0) return refused("not writable for this user");
  return check_entries(run_dir);
}

}  // namespace

LocalCluster::Impl::Impl(LocalClusterOptions options, DirectoryLock lock, JobStore store,
                         const api::TrainingJob& job)
    : options_(std::move(options)),
      lock_(std::move(lock)),
      store_(std::move(store)),
      key_{job.metadata.namespace_name, job.metadata.name},
      job_uid_(job.metadata.uid),
      rendezvous_port_(job.spec.rendezvous.port),
      has_engine_(job.spec.engine.has_value()),
      checkpoint_dir_(checkpoint_dir_of(options_.run_dir, job)),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

// ---- Opening -----------------------------------------------------------------------------------

void LocalCluster::Impl::stop() {
  set_listener({});
  watcher_.request_stop();
  wake();
  if (watcher_.joinable()) watcher_.join();
}

Result<std::unique_ptr<LocalCluster>> LocalCluster::open(LocalClusterOptions options) {
  const std::string program = options.pod_command.empty() ? "" : options.pod_command.front();
  TRAINYARD_TRY(check_program(program, "pod command"));
  std::error_code code;
  options.run_dir = std::filesystem::absolute(options.run_dir, code).lexically_normal();
  if (code) return Error{ErrorCode::kIo, "absolute path of the run directory: " + code.message()};
  TRAINYARD_TRY(check_run_dir(options.run_dir));
  TRAINYARD_TRY(make_directories(options.run_dir / "pods"));
  TRAINYARD_ASSIGN(DirectoryLock lock, DirectoryLock::acquire(options.run_dir));
  remove_all_unfinished(options.run_dir);
  TRAINYARD_ASSIGN(
      JobStore store,
      JobStore::open(options.run_dir, options.job, options.clock->now(), options.after_failure,
                     old_pods_of(options.run_dir / "pods", *options.clock)));
  TRAINYARD_ASSIGN(const api::TrainingJob job, store.get());
  auto impl = std::make_unique<Impl>(std::move(options), std::move(lock), std::move(store), job);
  TRAINYARD_TRY(make_directories(impl->checkpoint_dir()));
  TRAINYARD_TRY(impl->adopt());
  return std::unique_ptr<LocalCluster>(new LocalCluster(std::move(impl)));
}

// ---- Pods --------------------------------------------------------------------------------------

Result<CreateReply> LocalCluster::Impl::create_pod(const PodSpec& spec) {
  using Outcome = CreateReply::Outcome;
  const std::lock_guard lock(mutex_);
  if (const auto found = pods_.find(spec.name); found != pods_.end()) {
    const PodRecord& record = found->second.record;
    const bool ours = record.job_uid == spec.job_uid && !record.terminating();
    return CreateReply{
        ours ? Outcome::kExists : Outcome::kNameConflict, record.uid, record.job_uid, {}};
  }
  TRAINYARD_ASSIGN(std::string pod_uid, new_uid());
  TRAINYARD_ASSIGN(Pod pod, start(spec, pod_uid));
  pods_.emplace(spec.name, std::move(pod));
  wake();
  return CreateReply{Outcome::kCreated, pod_uid, {}, {}};
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

void LocalCluster::Impl::ask_to_end(const Pod& pod) {
  send_signal(pod.pidfd.get(), SIGTERM);
  // One that somebody has stopped would not hear it before the grace is over.
  send_signal(pod.pidfd.get(), SIGCONT);
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
  ask_to_end(*pod);
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

Status LocalCluster::Impl::promote_pod(const PodRef& ref, int node_index) {
  const std::lock_guard lock(mutex_);
  TRAINYARD_ASSIGN(Pod * pod, find(ref));
  // One that has an index was promoted already, and condemned where it is no member any more.
  if (pod->record.node_index >= 0 || pod->record.terminating()) return {};
  PodRecord record = pod->record;
  record.node_index = node_index;
  record.member = true;
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

bool LocalCluster::Impl::is_in_place() const { return lock_.is_at(options_.run_dir); }

void LocalCluster::Impl::terminate_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, pod] : pods_) {
    if (!pod.record.exit) ask_to_end(pod);
  }
}

void LocalCluster::Impl::kill_all() {
  const std::lock_guard lock(mutex_);
  for (auto& [name, pod] : pods_) {
    if (!pod.record.exit) kill_session(pod.record.process);
  }
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
  const api::Container* const trainer = api::trainer_of(observed.spec);
  for (const auto& [name, pod] : pods_) {
    ObservedPod& seen = observed.pods.emplace_back(view_of(pod.record));
    // Agents do not know under which name their container stands in the template.
    if (seen.exit && trainer != nullptr) seen.exit->container = trainer->name;
  }
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
void LocalCluster::terminate_all() { impl_->terminate_all(); }
void LocalCluster::kill_all() { impl_->kill_all(); }
bool LocalCluster::is_in_place() const { return impl_->is_in_place(); }
TakenUp LocalCluster::taken_up() const { return impl_->store().taken_up(); }

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
Status LocalCluster::promote_pod(const PodRef& pod, int node_index) {
  return impl_->promote_pod(pod, node_index);
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
