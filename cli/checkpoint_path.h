#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "worker/checkpoint/reader.h"

namespace trainyard::cli {

/// Opens what a user names: a checkpoint's own directory, or a job's checkpoint directory, whose
/// newest good one is taken; checkpoints passed over are told in `notes`.
/// Errors: as checkpoint::open_newest_good and CheckpointReader::open.
Result<std::unique_ptr<checkpoint::CheckpointReader>> open_checkpoint(
    checkpoint::FileSystem& files, const std::filesystem::path& path, checkpoint::Verify verify,
    std::vector<std::string>* notes);

/// Whether `path` is one checkpoint rather than a directory of them.
bool is_checkpoint(checkpoint::FileSystem& files, const std::filesystem::path& path);

}  // namespace trainyard::cli
