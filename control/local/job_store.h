#pragma once

#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <unistd.h>

#include "common/api/training_job.h"
#include "common/base/error.h"
#include "common/base/time.h"

namespace trainyard::control::local {

/// The job's own file in its run directory.
inline constexpr char kJobFile[] = "job.json";

/// A run that has failed: whether the same manifest tries again. A changed one always does.
enum class AfterFailure { kStay, kTryAgain };

/// Whether opening a run directory took up a run that was over.
enum class TakenUp { kNo, kAfterFailure, kAfterCompletion };

/// The pods of a job whose spec another one replaces.
struct OldPods {
  /// Ends them, and returns the status that the job then has: stopped, or over where their exits
  /// have decided it.
  std::function<Result<api::TrainingJobStatus>(const api::TrainingJob&)> stop;
  /// Forgets them: none of their exits is one of the new spec's.
  std::function<Status()> forget;
};

/// The job object of a run directory: job.json (metadata and spec) and status.json, a versioned
/// file that is replaced durably, compare-and-swap. Beside them engine.json and
/// checkpoint-policy.json for the ranks. Thread-safe within the process that holds the directory's
/// lock.
class JobStore {
 public:
  /// Opens or makes the store. A spec that differs from the stored one replaces it under the next
  /// generation. A run that has failed is taken up again, as one that was stopped, when the spec
  /// has changed or `after_failure` says so; its budgets are then fresh, its counts go on, and
  /// until a checkpoint was committed even what otherwise never changes may be corrected. A
  /// complete one is taken up when its engine is to do more steps than it has, or early stopping is
  /// to wait longer. One that is not over is stopped where the pods of its spec do not fit the new
  /// one. Errors: kInvalidConfig when the directory belongs to a job of another name, or the new
  /// spec changes what never changes, or else changes a complete one; kInvalidData for damaged
  /// files; kIo; those of `old_pods`.
  static Result<JobStore> open(const std::filesystem::path& run_dir, const api::TrainingJob& wanted,
                               Time now, AfterFailure after_failure, const OldPods& old_pods);

  JobStore(JobStore&& other) noexcept;

  /// The object with its newest status and resource version. Errors: kNotFound after remove().
  Result<api::TrainingJob> get() const;

  /// Replaces the status; returns the new version. Errors: kConflict, kNotFound, kIo.
  Result<std::string> put_status(const std::string& uid, const api::TrainingJobStatus& status,
                                 const std::string& resource_version);

  /// Puts back what ranks read and the job itself, where the files are gone or were changed: the
  /// job is what this object holds. Errors: kIo.
  Status restore_files() const;

  /// Forgets the job; checkpoints and logs stay. Errors: kNotFound, kConflict, kIo.
  Status remove(const std::string& uid);

  TakenUp taken_up() const { return taken_up_; }

 private:
  JobStore(std::filesystem::path run_dir, api::TrainingJob job);

  const std::filesystem::path run_dir_;
  mutable std::mutex mutex_;
  api::TrainingJob job_;
  int64_t version_ = 1;
  bool exists_ = true;
  TakenUp taken_up_ = TakenUp::kNo;
};

/// The job that a run directory holds, with its status; nullopt where there is none that can be
/// read.
std::optional<api::TrainingJob> stored_job(const std::filesystem::path& run_dir);

/// Whether the job asks for more steps, or more patience of early stopping, than the one that the
/// run directory holds; false where it holds none that can be read.
bool asks_for_more(const std::filesystem::path& run_dir, const api::TrainingJob& wanted);

/// A random UUID. Errors: kIo.
Result<std::string> new_uid();

/// Whether a run directory and what lies in it belong to `user` or root, without pipes, which would
/// be waited for, and without links (but to folders), which would be written through. Errors:
/// kInvalidConfig naming the entry.
Status check_entries(const std::filesystem::path& run_dir, uid_t user = ::geteuid());

/// Where checkpoints of this job lie: RUN/pvc/<claim>/<path>, or RUN/checkpoints/<path> without
/// storage; an absolute path of the policy without storage is taken as it is.
std::filesystem::path checkpoint_dir_of(const std::filesystem::path& run_dir,
                                        const api::TrainingJob& job);

}  // namespace trainyard::control::local
