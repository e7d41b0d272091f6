#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/lineage.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/retention.h"

/// What lies in a job's checkpoint directory: the effects around lineage and retention.
namespace trainyard::checkpoint {

inline constexpr char kLineageDirectory[] = "lineage";
inline constexpr char kLatestLink[] = "latest";

/// The lineage files of a directory.
struct StoredLineage {
  LineageRecords records;
  std::set<int64_t> recorded;      ///< generations with a lineage file, readable or not
  std::vector<std::string> notes;  ///< one line a damaged file
};

/// Reads all lineage records. A damaged one is told again from a manifest of its generation where
/// there is one. A directory without lineage has none: not an error.
Result<StoredLineage> load_lineage(FileSystem& files, const std::filesystem::path& root);

/// Writes a generation's record durably, once and for all: readers see all of it or nothing.
/// Errors: kConflict when the generation has one already.
Status write_lineage(FileSystem& files, const std::filesystem::path& root,
                     const LineageRecord& record);

/// Every checkpoint directory below `root`, ascending; none when there is no such root. What
/// another process commits and removes meanwhile never makes it miss both: it looks until two
/// passes agree. Errors: kUnavailable when they never do, kIo.
Result<std::vector<FoundDirectory>> find_checkpoints(FileSystem& files,
                                                     const std::filesystem::path& root);

/// Whether a checkpoint may be removed, and as a whole. Errors: kConflict when it is of another job
/// than `records` (check_own), or when its directory holds another directory, which is no part of a
/// checkpoint and not ours to remove; kIo.
Status check_removable(FileSystem& files, const std::filesystem::path& root, const CheckpointId& id,
                       const LineageRecords& records);

/// Removes a checkpoint, its manifest first, so that nobody takes the rest for one. Errors:
/// kConflict where its directory holds another directory: then nothing is removed.
Status remove_checkpoint(FileSystem& files, const std::filesystem::path& root,
                         const CheckpointId& id);

/// Removes what generations older than `own` have left that died before they recorded themselves,
/// but nothing of another job. What cannot be removed stays.
void remove_unrecorded(FileSystem& files, const std::filesystem::path& root, int64_t own);

/// Moves `latest` to this checkpoint unless it points to a younger generation's. Convenience only:
/// nothing that matters may depend on it. A directory of that name, which a copy made with its
/// links followed has, is moved aside. Where the link cannot be moved it is removed. Returns what
/// people should know, empty: nothing; also where the file system has no symbolic links.
std::string point_latest(FileSystem& files, const std::filesystem::path& root,
                         const CheckpointId& id);

/// Where `latest` points; nullopt when it is not there or names no checkpoint.
std::optional<CheckpointId> read_latest(FileSystem& files, const std::filesystem::path& root);

/// What a clean-up came to.
struct CleanUp {
  std::vector<CheckpointId> removed;
  std::vector<std::string> left;   ///< one line for each directory that stays though it should go
  std::optional<Error> unremoved;  ///< the first of them that another attempt may remove
};

/// Removes these checkpoints, each whatever becomes of the others, but nothing of another job than
/// that of `records`.
CleanUp remove_checkpoints(FileSystem& files, const std::filesystem::path& root,
                           const LineageRecords& records, std::span<const CheckpointId> ids);

/// Removes what `plan_retention` says for generation `own` after it has committed `committed_step`.
/// Errors: kIo where the directory cannot be read.
Result<CleanUp> apply_retention(FileSystem& files, const std::filesystem::path& root, int64_t own,
                                int64_t committed_step, const RetentionPolicy& policy);

}  // namespace trainyard::checkpoint
