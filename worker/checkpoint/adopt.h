#pragma once

#include <filesystem>
#include <memory>

#include "common/base/error.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/lineage.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/reader.h"

namespace trainyard::checkpoint {

/// A checkpoint taken over, under its new name.
struct Adopted {
  ManifestRef checkpoint;
  bool copied = false;  ///< some of its bytes lie on the disk twice now
};

/// Opens checkpoint `id` in order to adopt it. Errors: kNotFound when it vanished meanwhile (look
/// again), kInvalidData when its manifest is damaged or a shard is missing or of another size,
/// kConflict when it is not of the job and history that `records` are of (open_own), kIo.
Result<std::unique_ptr<CheckpointReader>> open_source(FileSystem& files,
                                                      const std::filesystem::path& root,
                                                      const CheckpointId& id,
                                                      const LineageRecords& records);

/// Takes checkpoint `source` over under the name of the generation of `record`: its shards by hard
/// link (by copy where the file system has none), with a manifest of its own, durably. From then on
/// no other generation's clean-up can take the data away: nobody touches a younger generation's
/// directories, and a linked file outlives its other names. Leftovers under that name are replaced.
/// Before the first copy goes what older generations have left that never recorded themselves, or
/// each start that fails would take the room of a checkpoint.
///
/// Errors: kNotFound when the source vanished meanwhile (look again), kInvalidData when a shard is
/// missing or of another size, kIo.
Result<Adopted> adopt(FileSystem& files, const std::filesystem::path& root,
                      const CheckpointReader& source, const LineageRecord& record);

}  // namespace trainyard::checkpoint
