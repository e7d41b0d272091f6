#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "worker/checkpoint/reader.h"

namespace trainyard::cli {

/// What a user means by a path: the job's checkpoint directory, where it is the directory of a
/// `trainyard run` (it holds job.json); else the path itself.
/// Errors: those of reading job.json, kInvalidConfig or kInvalidData where it is damaged.
Result<std::filesystem::path> checkpoints_at(const std::filesystem::path& path);

/// Opens what a user names: a checkpoint's own directory, or a job's checkpoint or run directory,
/// whose newest good one is taken; checkpoints passed over are told in `notes`.
/// Errors: as checkpoints_at, checkpoint::open_newest_good and CheckpointReader::open.
Result<std::unique_ptr<checkpoint::CheckpointReader>> open_checkpoint(
    checkpoint::FileSystem& files, const std::filesystem::path& path, checkpoint::Verify verify,
    std::vector<std::string>* notes);

/// Whether `path` is one checkpoint rather than a directory of them.
bool is_checkpoint(checkpoint::FileSystem& files, const std::filesystem::path& path);

}  // namespace trainyard::cli
