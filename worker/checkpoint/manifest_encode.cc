#include <cmath>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/manifest_json.h"
#include "worker/checkpoint/sealed_json.h"

namespace trainyard::checkpoint {
namespace {

using nlohmann::ordered_json;

ordered_json optional_number(const std::optional<int64_t>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json reference(const std::optional<ManifestRef>& ref) {
  if (!ref) return nullptr;
  return {{"directory", directory_name(ref->id)}, {"checksum", ref->checksum}};
}

Result<ordered_json> scalars_object(const Scalars& scalars) {
  ordered_json object = ordered_json::object();
  for (const auto& [name, scalar] : scalars) {
    const auto* number = std::get_if<double>(&scalar);
    if (number != nullptr && !std::isfinite(*number)) {
      return Error{ErrorCode::kInternal,
                   "scalar " + name + " is not finite; JSON has no such number"};
    }
    std::visit([&, key = name](const auto& value) { object[key] = value; }, scalar);
  }
  return object;
}

std::string text_of(const ordered_json& json) {
  return json.dump(-1, ' ', true, ordered_json::error_handler_t::replace);
}

/// "[\n a,\n b]": one element a line, so that a person can read and compare manifests.
std::string lines_of(const std::vector<std::string>& elements) {
  std::string text = "[";
  for (size_t i = 0; i < elements.size(); ++i) {
    text += i == 0 ? "\n " : ",\n ";
    text += elements[i];
  }
  return text + "]";
}

}  // namespace

ordered_json shard_object(const ShardRecord& shard, const std::string& file) {
  ordered_json chunks = ordered_json::array();
  for (const Hash128& chunk : shard.chunks)
    chunks.push_back(to_hex(chunk));
  return {{"file", file},
          {"bytes", shard.bytes},
          {"sha256", to_hex(shard.sha256)},
          {"chunks", std::move(chunks)}};
}

ordered_json tensor_object(const TensorRecord& tensor) {
  ordered_json slices = ordered_json::array();
  for (const SliceRecord& slice : tensor.slices) {
    slices.push_back({{"shard", slice.shard},
                      {"byteOffset", slice.byte_offset},
                      {"offset", slice.where.offset},
                      {"shape", slice.where.shape}});
  }
  return {{"name", tensor.name},
          {"kind", name_of(tensor.kind)},
          {"dtype", name_of(tensor.dtype)},
          {"shape", tensor.shape},
          {"slices", std::move(slices)}};
}

std::string shard_file_name(int64_t rank, int64_t size) {
  return "shard-" + std::to_string(rank) + "-of-" + std::to_string(size) + ".safetensors";
}

Result<std::string> encode(const Manifest& manifest) {
  const auto config = ordered_json::parse(manifest.config_json, nullptr, false);
  if (!config.is_object()) {
    return Error{ErrorCode::kInternal, "the snapshot's config_json is not a JSON object"};
  }
  TRAINYARD_ASSIGN(const ordered_json scalars, scalars_object(manifest.scalars));
  std::vector<std::string> shards;
  for (size_t i = 0; i < manifest.shards.size(); ++i) {
    const std::string file =
        shard_file_name(static_cast<int64_t>(i), static_cast<int64_t>(manifest.shards.size()));
    shards.push_back(text_of(shard_object(manifest.shards[i], file)));
  }
  std::vector<std::string> tensors;
  for (const TensorRecord& tensor : manifest.tensors)
    tensors.push_back(text_of(tensor_object(tensor)));

  std::string text = "{";
  const auto member = [&](const char* name, const std::string& value) {
    text += text.size() == 1 ? "\n\"" : ",\n\"";
    text += name;
    text += "\": ";
    text += value;
  };
  member("format", "\"trainyard-checkpoint\"");
  member("version", std::to_string(manifest.version));
  member("jobUid", text_of(manifest.job_uid));
  member("generation", std::to_string(manifest.generation));
  member("parentGeneration", text_of(optional_number(manifest.parent_generation)));
  member("forkStep", std::to_string(manifest.fork_step));
  if (!manifest.branch_id.empty()) member("branchId", text_of(manifest.branch_id));
  member("step", std::to_string(manifest.step));
  member("samplesConsumed", std::to_string(manifest.samples_consumed));
  member("previous", text_of(reference(manifest.previous)));
  member("adoptedFrom", text_of(reference(manifest.adopted_from)));
  member("config", text_of(config));
  member("scalars", text_of(scalars));
  member("chunkBytes", std::to_string(manifest.chunk_bytes));
  member("shards", lines_of(shards));
  member("tensors", lines_of(tensors));
  return seal_json(text + "}");
}

}  // namespace trainyard::checkpoint
