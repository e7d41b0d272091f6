#include "worker/checkpoint/manifest.h"

#include <algorithm>
#include <limits>

namespace trainyard::checkpoint {
namespace {

Error invalid(const std::string& why) { return {ErrorCode::kInvalidData, why}; }

std::pair<std::string_view, TensorKind> key_of(const TensorRecord& tensor) {
  return {tensor.name, tensor.kind};
}

Status validate_slice(const Manifest& manifest, const TensorRecord& tensor,
                      const SliceRecord& slice) {
  const std::string what = "slice " + to_string(slice.where);
  if (slice.shard < 0 || slice.shard >= static_cast<int64_t>(manifest.shards.size())) {
    return invalid(what + " is in shard " + std::to_string(slice.shard) + " of " +
                   std::to_string(manifest.shards.size()));
  }
  const int64_t shard_bytes = manifest.shards[static_cast<size_t>(slice.shard)].bytes;
  const std::optional<int64_t> volume = checked_volume(slice.where.shape);
  if (!volume || *volume > shard_bytes / size_of(tensor.dtype) ||
      slice.byte_offset > shard_bytes - *volume * size_of(tensor.dtype)) {
    return invalid(what + " at byte " + std::to_string(slice.byte_offset) +
                   " does not fit into its shard of " + std::to_string(shard_bytes) + " bytes");
  }
  return {};
}

Status validate_tensor(const Manifest& manifest, const TensorRecord& tensor) {
  if (!is_tensor_name(tensor.name)) {
    return invalid("the name must be 1 to " + std::to_string(kMaxNameBytes) +
                   " characters of [A-Za-z0-9_.-]");
  }
  if (tensor.shape.size() > kMaxAxes) return invalid("more than 8 axes");
  if (static_cast<int64_t>(tensor.slices.size()) > kMaxSlicesPerTensor) {
    return invalid("more than " + std::to_string(kMaxSlicesPerTensor) + " slices");
  }
  std::vector<Rectangle> parts;
  for (const SliceRecord& slice : tensor.slices) {
    if (slice.where.offset.size() != tensor.shape.size() ||
        slice.where.shape.size() != tensor.shape.size()) {
      return invalid("slice " + to_string(slice.where) + " has another number of axes than the " +
                     std::to_string(tensor.shape.size()) + " of the tensor");
    }
    TRAINYARD_TRY(validate_slice(manifest, tensor, slice));
    parts.push_back(slice.where);
  }
  return check_partition(tensor.shape, parts);
}

template <class T>
Result<T> wrong_scalar(const std::string& name, const Scalar& found, const char* wanted) {
  static constexpr const char* kTypes[] = {"an integer", "an integer above 2^63-1", "a float",
                                           "a string"};
  return invalid("scalar " + name + " is " + kTypes[found.index()] + ", wanted " + wanted);
}

Result<const Scalar*> find_scalar(const Scalars& scalars, const std::string& name) {
  const auto found = scalars.find(name);
  if (found == scalars.end()) return invalid("scalar " + name + " is missing");
  return &found->second;
}

}  // namespace

bool is_tensor_name(std::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  });
}

Status validate(const Manifest& manifest) {
  if (manifest.shards.empty()) return invalid("shards: there must be at least one");
  if (static_cast<int64_t>(manifest.shards.size()) > kMaxShards) return invalid("shards: too many");
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    const TensorRecord& tensor = manifest.tensors[i];
    const std::string what =
        "tensor " + tensor.name + " (" + std::string(name_of(tensor.kind)) + ")";
    if (i > 0 && !(key_of(manifest.tensors[i - 1]) < key_of(tensor))) {
      return invalid(what + ": twice, or not in ascending order of name and kind");
    }
    const Status status = validate_tensor(manifest, tensor);
    if (!status) return status.error().with_context(what);
  }
  return {};
}

const TensorRecord* find_tensor(const Manifest& manifest, std::string_view name, TensorKind kind) {
  const std::pair wanted(name, kind);
  const auto found = std::lower_bound(
      manifest.tensors.begin(), manifest.tensors.end(), wanted,
      [](const TensorRecord& tensor, const auto& key) { return key_of(tensor) < key; });
  if (found == manifest.tensors.end() || key_of(*found) != wanted) return nullptr;
  return &*found;
}

Result<int64_t> scalar_int64(const Scalars& scalars, const std::string& name) {
  TRAINYARD_ASSIGN(const Scalar* scalar, find_scalar(scalars, name));
  if (const auto* value = std::get_if<int64_t>(scalar)) return *value;
  const auto* value = std::get_if<uint64_t>(scalar);
  if (value != nullptr && *value <= uint64_t{std::numeric_limits<int64_t>::max()}) {
    return static_cast<int64_t>(*value);
  }
  return wrong_scalar<int64_t>(name, *scalar, "a signed 64-bit integer");
}

Result<uint64_t> scalar_uint64(const Scalars& scalars, const std::string& name) {
  TRAINYARD_ASSIGN(const Scalar* scalar, find_scalar(scalars, name));
  if (const auto* value = std::get_if<uint64_t>(scalar)) return *value;
  const auto* value = std::get_if<int64_t>(scalar);
  if (value != nullptr && *value >= 0) return static_cast<uint64_t>(*value);
  return wrong_scalar<uint64_t>(name, *scalar, "an unsigned 64-bit integer");
}

Result<double> scalar_double(const Scalars& scalars, const std::string& name) {
  TRAINYARD_ASSIGN(const Scalar* scalar, find_scalar(scalars, name));
  if (const auto* value = std::get_if<double>(scalar)) return *value;
  return wrong_scalar<double>(name, *scalar, "a float");
}

int64_t best_step_of(const Scalars& scalars) {
  const auto found = scalars.find(kBestStepScalar);
  const auto* step = found == scalars.end() ? nullptr : std::get_if<int64_t>(&found->second);
  return step == nullptr ? -1 : *step;
}

Result<std::string> scalar_string(const Scalars& scalars, const std::string& name) {
  TRAINYARD_ASSIGN(const Scalar* scalar, find_scalar(scalars, name));
  if (const auto* value = std::get_if<std::string>(scalar)) return *value;
  return wrong_scalar<std::string>(name, *scalar, "a string");
}

}  // namespace trainyard::checkpoint
