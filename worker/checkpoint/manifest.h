#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/error.h"
#include "common/hash/hash.h"
#include "worker/checkpoint/lineage.h"
#include "worker/checkpoint/rectangle.h"
#include "worker/checkpoint/types.h"

/// manifest.json: what a checkpoint consists of. Pure encode and decode; the definition is
/// docs/formats/checkpoint.md.
namespace trainyard::checkpoint {

/// The newest; earlier ones are read. Programs of version 1 do not know
/// config.numerics.tensorChunks and would go on with other bits: what they would continue as it was
/// begun is written as version 1.
inline constexpr int64_t kFormatVersion = 2;
inline constexpr int64_t kDefaultChunkBytes = 1 << 20;
inline constexpr int64_t kMaxManifestBytes = 256 << 20;
/// Limits that keep the work on a hostile manifest small.
inline constexpr int64_t kMinChunkBytes = 256;
inline constexpr int64_t kMaxChunkBytes = 64 << 20;
inline constexpr int64_t kMaxShards = 1 << 16;
inline constexpr size_t kMaxTensors = 1 << 20;
inline constexpr int64_t kMaxSlicesPerTensor = 1 << 14;
inline constexpr size_t kMaxNameBytes = 256;
inline constexpr char kManifestFile[] = "manifest.json";

/// One shard file: its size and what its bytes must hash to.
struct ShardRecord {
  int64_t bytes = 0;
  Hash256 sha256{};             ///< of the whole file
  std::vector<Hash128> chunks;  ///< XXH3-128 of every chunk_bytes of the file, the last one shorter
  bool operator==(const ShardRecord&) const = default;
};

/// Where one slice of a tensor lies.
struct SliceRecord {
  int64_t shard = 0;        ///< index in Manifest::shards
  int64_t byte_offset = 0;  ///< from the beginning of the shard file
  Rectangle where;
  bool operator==(const SliceRecord&) const = default;
};

/// One global tensor and the slices that together are it.
struct TensorRecord {
  std::string name;
  TensorKind kind = TensorKind::kParameter;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  std::vector<SliceRecord> slices;
  bool operator==(const TensorRecord&) const = default;
};

/// A manifest somewhere in a directory, by name and by its own checksum.
struct ManifestRef {
  CheckpointId id;
  std::string checksum;  ///< lower-case hexadecimal
  bool operator==(const ManifestRef&) const = default;
};

struct Manifest {
  int64_t version = kFormatVersion;
  std::string job_uid;
  int64_t generation = 0;
  std::optional<int64_t> parent_generation;  ///< as in the lineage record, as are fork_step
  int64_t fork_step = kFromScratch;          ///< and with branch_id, so that a damaged record
  std::string branch_id;                     ///< can be told again
  int64_t step = 0;
  int64_t samples_consumed = 0;
  std::optional<ManifestRef> previous;      ///< the checkpoint before this one in the same history
  std::optional<ManifestRef> adopted_from;  ///< set when the shards are another generation's
  std::string config_json = "{}";           ///< a JSON object
  Scalars scalars;
  int64_t chunk_bytes = kDefaultChunkBytes;
  std::vector<ShardRecord> shards;    ///< index = rank that wrote it
  std::vector<TensorRecord> tensors;  ///< ascending by (name, kind)

  CheckpointId id() const { return {generation, step}; }
  bool operator==(const Manifest&) const = default;
};

/// "shard-<rank>-of-<size>.safetensors".
std::string shard_file_name(int64_t rank, int64_t size);

/// JSON text whose last member is the XXH3-128 of everything before it. Errors: kInternal when
/// config_json is no JSON object or a scalar is not finite.
Result<std::string> encode(const Manifest& manifest);

/// Errors: kInvalidData naming the member that is wrong: the checksum does not match, a member is
/// missing or of the wrong type, another format version, slices that overlap, leave a hole or lie
/// outside their shard. Never more memory than a small multiple of the text.
Result<Manifest> decode_manifest(std::string_view text);

/// The checksum that an encoded manifest carries (its last member).
Result<std::string> manifest_checksum(std::string_view text);

/// Errors: kInvalidData as decode_manifest. For a manifest just assembled.
Status validate(const Manifest& manifest);

/// Whether a tensor may be called so: 1..kMaxNameBytes of [A-Za-z0-9_.-].
bool is_tensor_name(std::string_view name);

/// The tensor, or nullptr.
const TensorRecord* find_tensor(const Manifest& manifest, std::string_view name, TensorKind kind);

/// Typed access to scalars. Errors: kInvalidData naming the scalar, what it is and what was wanted.
Result<int64_t> scalar_int64(const Scalars& scalars, const std::string& name);
Result<uint64_t> scalar_uint64(const Scalars& scalars, const std::string& name);
Result<double> scalar_double(const Scalars& scalars, const std::string& name);
/// kBestStepScalar; -1 where there is none.
int64_t best_step_of(const Scalars& scalars);
Result<std::string> scalar_string(const Scalars& scalars, const std::string& name);

}  // namespace trainyard::checkpoint
