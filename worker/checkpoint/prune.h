#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/lineage.h"
#include "worker/checkpoint/retention.h"
#include "worker/checkpoint/store.h"

/// Removing checkpoints of a job that does not run. A running one cleans up after itself.
namespace trainyard::checkpoint {

struct PrunePlan {
  LineageRecords records;             ///< of the directory
  std::vector<CheckpointId> removed;  ///< ascending
  std::vector<CheckpointId> kept;     ///< ascending; committed ones of the newest history
  /// One line each: what is left alone although no policy keeps it (found damaged, unfinished by
  /// the newest generation, of another branch or another job, or with a directory in it that is no
  /// part of a checkpoint).
  std::vector<std::string> left_alone;
};

/// What a policy removes from the newest generation's history. The `keep_last` newest that verify
/// byte for byte are kept, however many damaged ones lie between them, and the one with the best
/// model where the newest names it; those, what the newest
/// generation has not finished and other branches are left alone. Reads in full until it has found
/// those `keep_last`; what is older is not read, so that nobody knows whether it is damaged.
/// Errors: kNotFound when there is no checkpoint; kInvalidData when none of them is good, so that
/// nothing may be removed; kIo where one that would be kept cannot be read.
Result<PrunePlan> plan_prune(FileSystem& files, const std::filesystem::path& root,
                             const RetentionPolicy& policy);

/// Carries a plan out, each removal whatever becomes of the others. `latest` is moved before what
/// it points to is removed; `notes`, which may be null, has a line where that could not be done.
CleanUp prune(FileSystem& files, const std::filesystem::path& root, const PrunePlan& plan,
              std::vector<std::string>* notes);

}  // namespace trainyard::checkpoint
