#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/types.h"

namespace trainyard::checkpoint {

/// What one rank has written: its part of the manifest. Slices carry the rank as their shard.
struct ShardReport {
  ShardRecord shard;
  std::vector<TensorRecord> tensors;
  double cpu_s = 0;  ///< processor time of hashing and writing; not part of the text
};

/// The name of a slice inside its safetensors file: the tensor's name, ":m", ":v" or ":state"
/// behind it where it is no parameter, and "@<offset>,<offset>..." where the slice is not the whole
/// tensor.
std::string entry_name(const TensorSlice& slice);

/// Errors: kInternal naming the slice whose name, shape, offset and data do not fit together.
Status check_slice(const TensorSlice& slice);

/// Writes shard `rank` of `size` into `directory`: a temporary, sync, rename, sync of the
/// directory. A large one is hashed by a second thread while it is written. Errors: kIo and others
/// of `files`; the temporary is removed then, as far as possible.
Result<ShardReport> write_shard(FileSystem& files, const std::filesystem::path& directory, int rank,
                                int size, std::vector<TensorSlice> slices, int64_t chunk_bytes);

/// A report as text for rank 0, and back. Errors of decode: kInvalidData.
std::string encode(const ShardReport& report, int rank, int size);
Result<ShardReport> decode_shard_report(std::string_view text, int rank, int size,
                                        int64_t chunk_bytes);

/// The manifest's shards and tensors out of all ranks' reports. Pure. Errors: kInternal when ranks
/// contradict each other, or the slices of a tensor overlap or leave a hole (a bug of the layout).
Status merge_reports(std::vector<ShardReport> reports, Manifest* manifest);

}  // namespace trainyard::checkpoint
