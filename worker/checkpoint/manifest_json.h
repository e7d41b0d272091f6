#pragma once

#include <cstddef>
#include <cstdint>

#include <nlohmann/json.hpp>

#include "worker/checkpoint/json_fields.h"
#include "worker/checkpoint/manifest.h"

/// The parts of a manifest as JSON values, shared by the manifest itself and by what ranks report
/// to rank 0. For this folder's .cc files only.
namespace trainyard::checkpoint {

nlohmann::ordered_json shard_object(const ShardRecord& shard, const std::string& file);
nlohmann::ordered_json tensor_object(const TensorRecord& tensor);

/// Errors: kInvalidData naming the member. `index` of `count` is the shard's expected place.
Result<ShardRecord> decode_shard(const Json& json, size_t index, size_t count, int64_t chunk_bytes);
Result<TensorRecord> decode_tensor(const Json& json, size_t index);

}  // namespace trainyard::checkpoint
