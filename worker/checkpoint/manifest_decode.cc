#include <algorithm>
#include <limits>

#include "common/text/bounded_json.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/manifest_json.h"
#include "worker/checkpoint/sealed_json.h"

namespace trainyard::checkpoint {
namespace {

/// Of a manifest with the configuration in it.
constexpr int kManifestDepthMax = 64;

template <size_t N>
Result<std::array<uint8_t, N>> hash_of(const Json& json, const std::string& path) {
  std::array<uint8_t, N> hash{};
  const auto* text = json.get_ptr<const std::string*>();
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  bool good = text != nullptr && text->size() == 2 * N;
  for (size_t i = 0; good && i < N; ++i) {
    const int high = digit((*text)[2 * i]);
    const int low = digit((*text)[2 * i + 1]);
    good = high >= 0 && low >= 0;
    hash[i] = static_cast<uint8_t>(high * 16 + low);
  }
  if (!good) {
    return field_error(path, "wanted " + std::to_string(2 * N) + " lower-case hexadecimal digits");
  }
  return hash;
}

Result<std::optional<ManifestRef>> reference_member(const Json& object, const char* name) {
  TRAINYARD_ASSIGN(const Json* json, member_of(object, name, ""));
  if (json->is_null()) return std::optional<ManifestRef>();
  if (!json->is_object()) return field_error(name, "wanted an object or null");
  const std::string path = std::string(name) + ".";
  TRAINYARD_ASSIGN(const std::string directory, string_member(*json, "directory", path));
  TRAINYARD_ASSIGN(std::string checksum, string_member(*json, "checksum", path));
  const std::optional<CheckpointId> id = parse_directory_name(directory);
  if (!id) return field_error(path + "directory", "\"" + directory + "\" names no checkpoint");
  return std::optional(ManifestRef{*id, std::move(checksum)});
}

Result<Scalars> decode_scalars(const Json& object) {
  TRAINYARD_ASSIGN(const Json* json, member_of(object, "scalars", ""));
  if (!json->is_object()) return field_error("scalars", "wanted an object");
  Scalars scalars;
  for (const auto& [name, value] : json->items()) {
    if (value.is_string()) {
      scalars[name] = value.get<std::string>();
    } else if (value.is_number_float()) {
      scalars[name] = value.get<double>();
    } else if (value.is_number_unsigned() &&
               value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
      scalars[name] = value.get<uint64_t>();
    } else if (value.is_number_integer()) {
      scalars[name] = value.get<int64_t>();
    } else {
      return field_error("scalars." + name,
                         std::string("is ") + value.type_name() + ", wanted a number or string");
    }
  }
  return scalars;
}

Result<SliceRecord> decode_slice(const Json& json, const std::string& path) {
  if (!json.is_object()) return field_error(path, "wanted an object");
  SliceRecord slice;
  TRAINYARD_ASSIGN(slice.shard, integer_member(json, "shard", path, 0, kMaxShards));
  TRAINYARD_ASSIGN(slice.byte_offset, integer_member(json, "byteOffset", path, 0));
  TRAINYARD_ASSIGN(slice.where.offset, integers_member(json, "offset", path, 0, kMaxAxes));
  TRAINYARD_ASSIGN(slice.where.shape, integers_member(json, "shape", path, 1, kMaxAxes));
  return slice;
}

Result<Manifest> decode_head(const Json& json) {
  Manifest manifest;
  TRAINYARD_ASSIGN(const std::string format, string_member(json, "format", ""));
  if (format != "trainyard-checkpoint") {
    return field_error("format", "is \"" + format + "\", wanted \"trainyard-checkpoint\"");
  }
  TRAINYARD_ASSIGN(manifest.version, integer_member(json, "version", "", 1));
  if (manifest.version > kFormatVersion) {
    return field_error("version", "is " + std::to_string(manifest.version) +
                                      ", this program reads 1 to " +
                                      std::to_string(kFormatVersion) + "; use a newer one");
  }
  TRAINYARD_ASSIGN(manifest.job_uid, string_member(json, "jobUid", ""));
  TRAINYARD_ASSIGN(manifest.generation, integer_member(json, "generation", "", 0));
  TRAINYARD_ASSIGN(const Json* parent, member_of(json, "parentGeneration", ""));
  if (!parent->is_null()) {
    TRAINYARD_ASSIGN(manifest.parent_generation, integer_of(*parent, "parentGeneration", 0));
  }
  TRAINYARD_ASSIGN(manifest.fork_step, integer_member(json, "forkStep", "", kFromScratch));
  if (json.contains("branchId")) {
    TRAINYARD_ASSIGN(manifest.branch_id, string_member(json, "branchId", ""));
  }
  TRAINYARD_ASSIGN(manifest.step, integer_member(json, "step", "", 0));
  TRAINYARD_ASSIGN(manifest.samples_consumed, integer_member(json, "samplesConsumed", "", 0));
  TRAINYARD_ASSIGN(manifest.previous, reference_member(json, "previous"));
  TRAINYARD_ASSIGN(manifest.adopted_from, reference_member(json, "adoptedFrom"));
  TRAINYARD_ASSIGN(const Json* config, member_of(json, "config", ""));
  if (!config->is_object()) return field_error("config", "wanted an object");
  manifest.config_json = config->dump();
  TRAINYARD_ASSIGN(manifest.scalars, decode_scalars(json));
  TRAINYARD_ASSIGN(manifest.chunk_bytes,
                   integer_member(json, "chunkBytes", "", kMinChunkBytes, kMaxChunkBytes));
  return manifest;
}

}  // namespace

Result<ShardRecord> decode_shard(const Json& json, size_t index, size_t count,
                                 int64_t chunk_bytes) {
  const std::string path = "shards[" + std::to_string(index) + "].";
  if (!json.is_object()) return field_error(path, "wanted an object");
  ShardRecord shard;
  TRAINYARD_ASSIGN(const std::string file, string_member(json, "file", path));
  const std::string wanted =
      shard_file_name(static_cast<int64_t>(index), static_cast<int64_t>(count));
  if (file != wanted) {
    return field_error(path + "file", "is \"" + file + "\", wanted \"" + wanted + "\"");
  }
  TRAINYARD_ASSIGN(shard.bytes, integer_member(json, "bytes", path, 8));
  TRAINYARD_ASSIGN(const Json* sha256, member_of(json, "sha256", path));
  TRAINYARD_ASSIGN(shard.sha256, hash_of<32>(*sha256, path + "sha256"));
  TRAINYARD_ASSIGN(const Json* chunks, member_of(json, "chunks", path));
  const int64_t wanted_chunks = (shard.bytes - 1) / chunk_bytes + 1;
  if (!chunks->is_array() || static_cast<int64_t>(chunks->size()) != wanted_chunks) {
    return field_error(path + "chunks", "wanted an array of " + std::to_string(wanted_chunks));
  }
  shard.chunks.reserve(chunks->size());
  for (const Json& chunk : *chunks) {
    TRAINYARD_ASSIGN(const Hash128 hash, hash_of<16>(chunk, path + "chunks"));
    shard.chunks.push_back(hash);
  }
  return shard;
}

Result<TensorRecord> decode_tensor(const Json& json, size_t index) {
  const std::string path = "tensors[" + std::to_string(index) + "].";
  if (!json.is_object()) return field_error(path, "wanted an object");
  TensorRecord tensor;
  TRAINYARD_ASSIGN(tensor.name, string_member(json, "name", path));
  TRAINYARD_ASSIGN(const std::string kind, string_member(json, "kind", path));
  bool known = false;
  for (const TensorKind candidate : {TensorKind::kParameter, TensorKind::kFirstMoment,
                                     TensorKind::kSecondMoment, TensorKind::kState}) {
    if (kind != name_of(candidate)) continue;
    tensor.kind = candidate;
    known = true;
  }
  if (!known) {
    return field_error(path + "kind", "is \"" + kind + "\", wanted parameter, m, v or state");
  }
  TRAINYARD_ASSIGN(const std::string dtype, string_member(json, "dtype", path));
  const std::optional<DType> parsed = dtype_from_name(dtype);
  if (!parsed) return field_error(path + "dtype", "\"" + dtype + "\" is not a known type");
  tensor.dtype = *parsed;
  TRAINYARD_ASSIGN(tensor.shape, integers_member(json, "shape", path, 1, kMaxAxes));
  TRAINYARD_ASSIGN(const Json* slices,
                   array_member(json, "slices", path, static_cast<size_t>(kMaxSlicesPerTensor)));
  for (size_t i = 0; i < slices->size(); ++i) {
    TRAINYARD_ASSIGN(SliceRecord slice,
                     decode_slice((*slices)[i], path + "slices[" + std::to_string(i) + "]."));
    tensor.slices.push_back(std::move(slice));
  }
  return tensor;
}

Result<Manifest> decode_manifest(std::string_view text) {
  TRAINYARD_TRY(check_seal(text, kManifestFile));
  const auto in_file = [](const Error& error) { return error.with_context(kManifestFile); };
  const Result<Json> parsed = parse_bounded_json<Json>(text, kManifestDepthMax);
  if (!parsed) return in_file(parsed.error());
  const Json& json = *parsed;
  if (!json.is_object()) return in_file({ErrorCode::kInvalidData, "not a JSON object"});
  Result<Manifest> head = decode_head(json);
  if (!head) return in_file(head.error());
  Manifest manifest = *std::move(head);
  const auto shards = array_member(json, "shards", "", static_cast<size_t>(kMaxShards));
  if (!shards) return in_file(shards.error());
  for (size_t i = 0; i < (*shards)->size(); ++i) {
    auto shard = decode_shard((**shards)[i], i, (*shards)->size(), manifest.chunk_bytes);
    if (!shard) return in_file(shard.error());
    manifest.shards.push_back(*std::move(shard));
  }
  const auto tensors = array_member(json, "tensors", "", kMaxTensors);
  if (!tensors) return in_file(tensors.error());
  for (size_t i = 0; i < (*tensors)->size(); ++i) {
    auto tensor = decode_tensor((**tensors)[i], i);
    if (!tensor) return in_file(tensor.error());
    manifest.tensors.push_back(*std::move(tensor));
  }
  if (const Status valid = validate(manifest); !valid) return in_file(valid.error());
  return manifest;
}

Result<std::string> manifest_checksum(std::string_view text) {
  return check_seal(text, kManifestFile);
}

}  // namespace trainyard::checkpoint
