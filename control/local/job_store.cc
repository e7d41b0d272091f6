#include "control/local/job_store.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/api/decode.h"
#include "common/api/encode.h"
#include "common/api/numerics.h"
#include "common/io/file.h"
#include "common/text/whole_number.h"
#include "common/worker_contract.h"
#include "control/local/json_fault.h"
#include "control/local/moved_paths.h"
#include "control/status_edit.h"

namespace trainyard::control::local {
namespace {

using nlohmann::json;

constexpr char kStatusFile[] = "status.json";
constexpr char kEngineFile[] = "engine.json";
constexpr char kPolicyFile[] = "checkpoint-policy.json";
constexpr int64_t kMaxBytes = 1 << 20;
constexpr char kPutBack[] =
    "; put back a copy of it, or train in another run directory (the checkpoints here stay as they "
    "are)";

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

Error refused(const std::string& field, const std::filesystem::path& run_dir) {
  return {ErrorCode::kInvalidConfig,
          "spec." + field + ": differs from the job in " + run_dir.string() +
              ", where it never changes; use another run directory or the value there"};
}

/// Whether another job is wanted. How many threads a rank has follows the machine's cores where the
/// manifest leaves it open, and changes no result.
bool differs(const api::TrainingJobSpec& stored, api::TrainingJobSpec wanted,
             const std::filesystem::path& run_dir) {
  if (stored.engine && wanted.engine) {
    wanted.engine = with_stored_paths(*stored.engine, *std::move(wanted.engine), run_dir);
    wanted.engine->runtime.threads = stored.engine->runtime.threads;
  }
  return stored != wanted;
}

/// Where in its storage a job's checkpoints are.
std::filesystem::path place_of(const api::CheckpointPolicy& policy, const std::string& name) {
  const std::filesystem::path place(policy.path.empty() ? name : policy.path);
  return (place / "").lexically_normal();
}

/// Refuses changes of controller, storage, model, start, seed and numerics, which hold for a run.
Status check_immutable(const api::TrainingJobSpec& stored, const api::TrainingJobSpec& wanted,
                       const std::string& name, const std::filesystem::path& run_dir) {
  const api::CheckpointPolicy& a = stored.checkpoint_policy;
  const api::CheckpointPolicy& b = wanted.checkpoint_policy;
  if (stored.managed_by != wanted.managed_by) return refused("managedBy", run_dir);
  if (a.storage != b.storage) return refused("checkpointPolicy.storage", run_dir);
  if (place_of(a, name) != place_of(b, name)) return refused("checkpointPolicy.path", run_dir);
  if (!stored.engine || !wanted.engine) return {};
  const api::ModelSpec& was = stored.engine->model;
  api::ModelSpec model = wanted.engine->model;
  if (!may_be_same_import(was.import_path, model.import_path, run_dir)) {
    return refused("engine.model.import", run_dir);
  }
  model.import_path = was.import_path;
  model.preset = was.preset;  // stands for sizes, which are compared
  if (was != model) return refused("engine.model", run_dir);
  const auto& start = stored.engine->start_from;
  const auto& other = wanted.engine->start_from;
  const bool same_start =
      start.has_value() == other.has_value() &&
      (!start || (start->what == other->what &&
                  is_same_place(start->checkpoint, other->checkpoint, run_dir)));
  if (!same_start) return refused("engine.startFrom", run_dir);
  if (stored.engine->seed != wanted.engine->seed) return refused("engine.seed", run_dir);
  // A value that the stored job does not name is held against the checkpoint's by whoever reads it.
  if (api::with_values_of(stored.engine->numerics, wanted.engine->numerics) !=
      wanted.engine->numerics) {
    return refused("engine.numerics", run_dir);
  }
  return {};
}

/// Whether pods made from one spec fit the other: what may change at any time is levelled out.
bool pods_fit(api::TrainingJobSpec a, const api::TrainingJobSpec& b) {
  a.suspend = b.suspend;
  a.active_deadline = b.active_deadline;
  a.ttl_after_finished = b.ttl_after_finished;
  a.failure_policy = b.failure_policy;
  a.progress_policy = b.progress_policy;
  a.success_policy = b.success_policy;
  a.elastic_policy = b.elastic_policy;
  a.keep_failed_pods = b.keep_failed_pods;
  // Ranks read these as they start: they count from the next generation on. How many threads a rank
  // has also follows the cores that this run may use, so it differs where nobody changed anything.
  a.checkpoint_policy.every_steps = b.checkpoint_policy.every_steps;
  a.checkpoint_policy.keep_last = b.checkpoint_policy.keep_last;
  a.checkpoint_policy.memory_every_steps = b.checkpoint_policy.memory_every_steps;
  a.checkpoint_policy.memory_replicas = b.checkpoint_policy.memory_replicas;
  if (a.engine && b.engine) a.engine->runtime = b.engine->runtime;
  // A different number of nodes or ranks is a resize, which plan decides.
  a.num_nodes = b.num_nodes;
  a.num_proc_per_node = b.num_proc_per_node;
  return a == b;
}

/// The files made from the spec, and what is in each; job.json last, which makes the others count.
std::vector<std::pair<const char*, std::string>> job_files(api::TrainingJob job) {
  job.status = {};
  job.metadata.resource_version.clear();
  const auto style = api::JsonStyle::kIndented;
  std::vector<std::pair<const char*, std::string>> files;
  if (job.spec.engine) {
    files.emplace_back(kEngineFile, api::encode_engine(*job.spec.engine, style) + "\n");
  }
  files.emplace_back(kPolicyFile,
                     api::encode_checkpoint_policy(job.spec.checkpoint_policy, style) + "\n");
  files.emplace_back(kJobFile, api::encode_training_job(job, style) + "\n");
  return files;
}

/// Refuses a job of which whoever reads a file would find it too long. Errors: kInvalidConfig.
Status check_job_files(const api::TrainingJob& job) {
  for (const auto& [name, text] : job_files(job)) {
    if (std::ssize(text) <= kMaxBytes) continue;
    return Error{ErrorCode::kInvalidConfig,
                 "the manifest, its paths made absolute and its defaults written out, takes " +
                     std::to_string(text.size()) + " bytes as " + name + ", wanted at most " +
                     std::to_string(kMaxBytes) +
                     "; name folders of token shards in spec.engine.data instead of files"};
  }
  return {};
}

Status write_job_files(const std::filesystem::path& run_dir, const api::TrainingJob& job) {
  for (const auto& [name, text] : job_files(job))
    TRAINYARD_TRY(write_file_atomic(run_dir / name, text));
  return {};
}

Error damaged(const std::filesystem::path& path, const std::string& fault) {
  return {ErrorCode::kInvalidData, path.string() + ": damaged: " + fault + kPutBack};
}

Error damaged(const std::filesystem::path& path, api::Fault fault) {
  const int line = std::exchange(fault.line, 0);
  return damaged(path, (line > 0 ? "line " + std::to_string(line) + ": " : "") + to_string(fault));
}

bool is_over(const api::TrainingJobStatus& status) {
  return is_true(status, api::ConditionType::kComplete) ||
         is_true(status, api::ConditionType::kFailed);
}

struct StoredStatus {
  std::string uid;  ///< of the job whose status it is
  int64_t version = 1;
  api::TrainingJobStatus status;
};

Status write_status(const std::filesystem::path& run_dir, const StoredStatus& stored) {
  const json object = {{"uid", stored.uid},
                       {"version", stored.version},
                       {"status", json::parse(api::encode_status(stored.status))}};
  return write_file_atomic(run_dir / kStatusFile, object.dump(2) + "\n");
}

/// nullopt: none, or none of the job `of`.
Result<std::optional<StoredStatus>> read_status(const std::filesystem::path& run_dir,
                                                const std::optional<std::string>& of = {}) {
  const std::filesystem::path path = run_dir / kStatusFile;
  Result<std::string> text = read_file(path, kMaxBytes);
  if (!text && text.error().code == ErrorCode::kNotFound) return std::optional<StoredStatus>();
  if (!text) return std::move(text).error();
  try {
    const json object = parse_record(*text);
    if (!object.is_object()) return damaged(path, "no JSON object");
    StoredStatus stored;
    stored.uid = object.at("uid").get<std::string>();
    stored.version = whole_number(object.at("version"));
    if (of && stored.uid != *of) return std::optional<StoredStatus>();
    Result<api::TrainingJobStatus> status = api::decode_status(object.at("status").dump());
    if (!status) return damaged(path, first_line(status.error().message));
    stored.status = *std::move(status);
    return std::optional(std::move(stored));
  } catch (const json::exception& error) {
    return damaged(path, fault_of(error));
  }
}

/// Without its job a run that is not over is not begun anew over what it has counted.
Status check_no_run(const std::filesystem::path& run_dir) {
  TRAINYARD_ASSIGN(const std::optional<StoredStatus> stored, read_status(run_dir));
  if (!stored || stored->status.membership.generation == 0 ||
      is_true(stored->status, api::ConditionType::kComplete)) {
    return {};
  }
  return Error{ErrorCode::kInvalidData, (run_dir / kJobFile).string() +
                                            ": found nothing, wanted the job " +
                                            json(stored->uid).dump() + " of the run that " +
                                            kStatusFile + " describes" + kPutBack};
}

/// A job that is over as one that was stopped: its next life begins where its checkpoints end.
void take_up_again(api::TrainingJobStatus& status, const char* message, Time now) {
  std::erase_if(status.conditions, [](const api::Condition& condition) {
    return condition.type == api::ConditionType::kFailed ||
           condition.type == api::ConditionType::kFailureTarget ||
           condition.type == api::ConditionType::kComplete ||
           condition.type == api::ConditionType::kSuccessCriteriaMet;
  });
  status.completion_time.reset();
  status.completed_indexes.clear();
  for (api::ClassRestarts& entry : status.restarts.classes)
    entry.recent.clear();
  set_condition(status,
                {api::ConditionType::kSuspended, api::ConditionStatus::kTrue,
                 api::reason::kSuspended, message},
                now);
}

bool any_checkpoint(const std::filesystem::path& directory) {
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(directory, code)) {
    if (entry.path().filename().string().find("-step-") != std::string::npos) return true;
  }
  return false;
}

/// Whether a run that early stopping may have ended is to have more patience.
bool waits_longer(const api::EvaluationSpec& stored, const api::EvaluationSpec& wanted) {
  const int64_t was = stored.early_stop_patience;
  const int64_t now = wanted.early_stop_patience;
  return was > 0 && (now == 0 || now > was);
}

bool goes_further(const api::TrainingJobSpec& stored, const api::TrainingJobSpec& wanted) {
  return stored.engine && wanted.engine &&
         (wanted.engine->steps > stored.engine->steps ||
          waits_longer(stored.engine->evaluation, wanted.engine->evaluation));
}

/// Whether a complete job goes on under the spec that is wanted now. Errors: kInvalidConfig, as a
/// complete one takes no other change.
Status check_further(const api::TrainingJobSpec& stored, const api::TrainingJob& wanted,
                     const std::filesystem::path& run_dir) {
  const bool further = goes_further(stored, wanted.spec);
  if (further && any_checkpoint(checkpoint_dir_of(run_dir, wanted))) return {};
  const std::string why = further ? " and no checkpoint to train it further from"
                                  : " of another manifest or other options";
  return Error{ErrorCode::kInvalidConfig,
               run_dir.string() + ": holds a finished run" + why +
                   (further || !stored.engine
                        ? "; use another run directory to train this one"
                        : "; use --steps or raise engine.steps above " +
                              std::to_string(stored.engine->steps) +
                              (stored.engine->evaluation.early_stop_patience > 0
                                   ? " or engine.evaluation.earlyStopPatience"
                                   : "") +
                              " to train it further, or use another run directory to train this "
                              "one")};
}

/// What the run came to so far.
Status remove_results(const std::filesystem::path& run_dir) {
  std::vector<std::filesystem::path> files = {run_dir / contract::kResultFile};
  std::error_code none;
  for (const auto& pod : std::filesystem::directory_iterator(run_dir / "pods", none))
    files.push_back(pod.path() / contract::kResultFile);
  for (const std::filesystem::path& file : files) {
    if (::unlink(file.c_str()) != 0 && errno != ENOENT && errno != ENOTDIR)
      return io_error("remove " + file.string(), errno);
  }
  return {};
}

/// Whoever owns a folder or file of a run directory decides what the run reads and trains.
Status check_owner(const std::filesystem::path& path, uid_t owner, uid_t user) {
  if (owner == user || owner == 0) return {};
  return Error{ErrorCode::kInvalidConfig,
               path.string() + ": belongs to user " + std::to_string(owner) + ", wanted user " +
                   std::to_string(user) +
                   ", who runs this, or root; use another run directory, or run as that user"};
}

}  // namespace

std::optional<api::TrainingJob> stored_job(const std::filesystem::path& run_dir) {
  const Result<std::string> text = read_file(run_dir / kJobFile, kMaxBytes);
  if (!text) return std::nullopt;
  api::CheckedJob stored = api::check_training_job(*text, {"", api::UnknownKeys::kIgnore});
  if (!stored.faults.empty()) return std::nullopt;
  auto status = read_status(run_dir, stored.job.metadata.uid);
  if (!status) return std::nullopt;
  if (*status) stored.job.status = std::move((*status)->status);
  return std::move(stored.job);
}

bool asks_for_more(const std::filesystem::path& run_dir, const api::TrainingJob& wanted) {
  const std::optional<api::TrainingJob> stored = stored_job(run_dir);
  return stored && goes_further(stored->spec, wanted.spec);
}

Result<std::string> new_uid() {
  TRAINYARD_ASSIGN(std::string uid, read_file("/proc/sys/kernel/random/uuid", 256));
  while (!uid.empty() && uid.back() == '\n')
    uid.pop_back();
  return uid;
}

Status check_entries(const std::filesystem::path& run_dir, uid_t user) {
  struct stat status {};
  if (::stat(run_dir.c_str(), &status) == 0)
    TRAINYARD_TRY(check_owner(run_dir, status.st_uid, user));
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir, code)) {
    std::error_code ignored;
    if (::lstat(entry.path().c_str(), &status) == 0)
      TRAINYARD_TRY(check_owner(entry.path(), status.st_uid, user));
    if (entry.is_symlink(ignored) && !entry.is_directory(ignored)) {
      return Error{ErrorCode::kInvalidConfig,
                   entry.path().string() +
                       ": found a link, wanted a regular file or folder (a folder may be a link); "
                       "what is written to it would be written elsewhere; remove it"};
    }
    if (!entry.is_fifo(ignored) && !entry.is_socket(ignored)) continue;
    return Error{ErrorCode::kInvalidConfig,
                 entry.path().string() +
                     ": found a pipe or socket, wanted a regular file or folder; move it "
                     "away, or use another run directory"};
  }
  return {};
}

std::filesystem::path checkpoint_dir_of(const std::filesystem::path& run_dir,
                                        const api::TrainingJob& job) {
  const api::CheckpointPolicy& policy = job.spec.checkpoint_policy;
  const std::string path = policy.path.empty() ? job.metadata.name : policy.path;
  if (policy.storage)
    return run_dir / "pvc" / policy.storage->persistent_volume_claim.claim_name / path;
  return run_dir / "checkpoints" / path;
}

JobStore::JobStore(std::filesystem::path run_dir, api::TrainingJob job)
    : run_dir_(std::move(run_dir)), job_(std::move(job)) {}

JobStore::JobStore(JobStore&& other) noexcept
    : run_dir_(other.run_dir_),
      job_(std::move(other.job_)),
      version_(other.version_),
      exists_(other.exists_),
      taken_up_(other.taken_up_) {}

Result<JobStore> JobStore::open(const std::filesystem::path& run_dir, const api::TrainingJob& given,
                                Time now, AfterFailure after_failure, const OldPods& old_pods) {
  Result<std::string> text = read_file(run_dir / kJobFile, kMaxBytes);
  api::TrainingJob wanted = given;
  wanted.status = {};  // a manifest's, as `kubectl get -o yaml` has it, is of another run
  std::optional<StoredStatus> stored_status;
  bool misfit = false;
  bool changed = false;
  bool stopped = false;
  TakenUp taken_up = TakenUp::kNo;
  if (text) {
    const std::string file = (run_dir / kJobFile).string();
    const api::CheckedJob decoded = api::check_training_job(*text, {"", api::UnknownKeys::kIgnore});
    if (!decoded.faults.empty()) return damaged(file, decoded.faults.front());
    const api::TrainingJob& stored = decoded.job;
    if (stored.metadata.name != wanted.metadata.name) {
      return Error{ErrorCode::kInvalidConfig, file + ": metadata.name is " + stored.metadata.name +
                                                  ", the manifest's is " + wanted.metadata.name +
                                                  "; use another run directory"};
    }
    TRAINYARD_ASSIGN(stored_status, read_status(run_dir, stored.metadata.uid));
    const bool nothing_trained =
        stored_status && is_true(stored_status->status, api::ConditionType::kFailed) &&
        !stored_status->status.checkpoint && !any_checkpoint(checkpoint_dir_of(run_dir, stored));
    if (!nothing_trained) {
      if (stored.spec.engine && wanted.spec.engine) {
        wanted.spec.engine->numerics =
            api::with_values_of(wanted.spec.engine->numerics, stored.spec.engine->numerics);
        // It had another default, and says nothing without context ranks.
        api::ParallelismSpec& layout = wanted.spec.engine->parallelism;
        if (layout.context == 1) layout.context_mode = stored.spec.engine->parallelism.context_mode;
      }
      TRAINYARD_TRY(check_immutable(stored.spec, wanted.spec, wanted.metadata.name, run_dir));
    }
    wanted.metadata = stored.metadata;
    changed = differs(stored.spec, wanted.spec, run_dir);
    if (changed) ++wanted.metadata.generation;
    TRAINYARD_TRY(check_job_files(wanted));
    misfit = changed && !pods_fit(stored.spec, wanted.spec);
    stopped = misfit && stored_status && stored_status->status.membership.generation > 0 &&
              !is_over(stored_status->status);
    if (stopped) {
      api::TrainingJob job = stored;
      job.status = stored_status->status;
      TRAINYARD_ASSIGN(stored_status->status, old_pods.stop(job));
    }
    const bool complete =
        stored_status && is_true(stored_status->status, api::ConditionType::kComplete);
    if (changed && complete) {
      TRAINYARD_TRY(check_further(stored.spec, wanted, run_dir));
      taken_up = TakenUp::kAfterCompletion;
    }
  } else if (text.error().code == ErrorCode::kNotFound) {
    TRAINYARD_TRY(check_no_run(run_dir));
    TRAINYARD_ASSIGN(wanted.metadata.uid, new_uid());
    wanted.metadata.generation = 1;
    wanted.metadata.creation_timestamp = now;
    wanted.metadata.resource_version.clear();
    TRAINYARD_TRY(check_job_files(wanted));
  } else {
    return std::move(text).error();
  }
  if (stored_status) wanted.status = std::move(stored_status->status);
  const bool failed = is_true(wanted.status, api::ConditionType::kFailed);
  if (failed && (changed || after_failure == AfterFailure::kTryAgain))
    taken_up = TakenUp::kAfterFailure;
  // The status before the pods, these before the spec: a crash in between leaves a stopped run, and
  // no exit counts for another spec than the pod's own.
  if (stopped || taken_up != TakenUp::kNo) {
    const bool complete = taken_up == TakenUp::kAfterCompletion;
    if (taken_up != TakenUp::kNo) {
      take_up_again(wanted.status,
                    complete ? "complete; about to train further" : "failed; about to try again",
                    now);
    }
    ++stored_status->version;
    TRAINYARD_TRY(
        write_status(run_dir, {wanted.metadata.uid, stored_status->version, wanted.status}));
  }
  if (misfit) TRAINYARD_TRY(old_pods.forget());
  if (stopped || taken_up != TakenUp::kNo) TRAINYARD_TRY(remove_results(run_dir));
  TRAINYARD_TRY(write_job_files(run_dir, wanted));
  JobStore store(run_dir, std::move(wanted));
  if (stored_status) store.version_ = stored_status->version;
  store.taken_up_ = taken_up;
  return store;
}

Result<api::TrainingJob> JobStore::get() const {
  const std::lock_guard lock(mutex_);
  if (!exists_) return Error{ErrorCode::kNotFound, run_dir_.string() + ": the job was removed"};
  api::TrainingJob job = job_;
  job.metadata.resource_version = std::to_string(version_);
  return job;
}

Result<std::string> JobStore::put_status(const std::string& uid,
                                         const api::TrainingJobStatus& status,
                                         const std::string& resource_version) {
  const std::lock_guard lock(mutex_);
  if (!exists_) return Error{ErrorCode::kNotFound, run_dir_.string() + ": the job was removed"};
  const std::string version = std::to_string(version_);
  if (uid != job_.metadata.uid || resource_version != version) {
    return Error{ErrorCode::kConflict, "status of job " + job_.metadata.name + " is at version " +
                                           version + ", the write wanted " + resource_version};
  }
  TRAINYARD_TRY(write_status(run_dir_, {uid, version_ + 1, status}));
  ++version_;
  job_.status = status;
  return std::to_string(version_);
}

Status JobStore::restore_files() const {
  const std::lock_guard lock(mutex_);
  if (!exists_) return Error{ErrorCode::kNotFound, run_dir_.string() + ": the job was removed"};
  for (const auto& [name, text] : job_files(job_)) {
    const Result<std::string> found = read_file(run_dir_ / name, kMaxBytes);
    if (!found || *found != text) TRAINYARD_TRY(write_file_atomic(run_dir_ / name, text));
  }
  return {};
}

Status JobStore::remove(const std::string& uid) {
  const std::lock_guard lock(mutex_);
  if (!exists_) return Error{ErrorCode::kNotFound, run_dir_.string() + ": the job was removed"};
  if (uid != job_.metadata.uid) {
    return Error{ErrorCode::kConflict,
                 "job " + job_.metadata.name + " has another UID than " + uid};
  }
  for (const char* file : {kJobFile, kStatusFile}) {
    if (::unlink((run_dir_ / file).c_str()) != 0 && errno != ENOENT) {
      return io_error("remove " + (run_dir_ / file).string(), errno);
    }
  }
  exists_ = false;
  return sync_directory(run_dir_);
}

}  // namespace trainyard::control::local
