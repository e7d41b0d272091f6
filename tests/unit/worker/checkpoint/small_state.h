#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/layout/mesh.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/rectangle.h"
#include "worker/checkpoint/types.h"

namespace trainyard::checkpoint::testing {

/// One global tensor with values that say where they belong and at which step they were.
struct WholeTensor {
  std::string name;
  TensorKind kind;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

/// A training state small enough to be written thousands of times: a scalar, odd sizes, three axes.
inline std::vector<WholeTensor> small_state(int64_t step) {
  const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes = {
      {"h.0.ln_1.bias", {7}}, {"h.0.mlp.c_fc.weight", {11, 5}}, {"scale", {}}, {"wte", {13, 2, 3}}};
  std::vector<WholeTensor> tensors;
  float next = static_cast<float>(step) * 1000.0F;
  for (const auto& [name, shape] : shapes) {
    for (const TensorKind kind :
         {TensorKind::kParameter, TensorKind::kFirstMoment, TensorKind::kSecondMoment}) {
      WholeTensor tensor{name, kind, shape, {}};
      tensor.values.resize(static_cast<size_t>(*checked_volume(shape)));
      for (float& value : tensor.values)
        value = next++;
      tensors.push_back(std::move(tensor));
    }
  }
  return tensors;
}

/// Rank `rank` of `size`'s part of the state at `step`: an even share of each tensor's rows; what
/// has no axes goes to rank 0. The slices point into `state`.
inline Snapshot small_snapshot(const std::vector<WholeTensor>& state, int64_t step, int rank,
                               int size) {
  Snapshot snapshot;
  snapshot.step = step;
  snapshot.samples_consumed = step * 64;
  snapshot.config_json = R"({"model":{"layers":1}})";
  snapshot.scalars = {{kOptimizerStepScalar, step}, {kSeedScalar, uint64_t{0xfedcba9876543210}}};
  for (const WholeTensor& tensor : state) {
    const bool scalar = tensor.shape.empty();
    const layout::Range rows = scalar ? layout::Range{0, rank == 0 ? 1 : 0}
                                      : layout::even_share(tensor.shape[0], size, rank);
    if (rows.size() == 0) continue;
    Rectangle part{std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape};
    if (!scalar) {
      part.offset[0] = rows.begin;
      part.shape[0] = rows.size();
    }
    const auto row = static_cast<int64_t>(tensor.values.size()) / (scalar ? 1 : tensor.shape[0]);
    const std::span<const float> values = tensor.values;
    snapshot.slices.push_back(
        {tensor.name, tensor.kind, DType::kFloat32, tensor.shape, part,
         std::as_bytes(values.subspan(static_cast<size_t>(rows.begin * row),
                                      static_cast<size_t>(rows.size() * row)))});
  }
  return snapshot;
}

/// Whether a checkpoint holds exactly the state of its step: empty, or what is different.
inline std::string difference(CheckpointReader& reader) {
  const auto wanted = small_state(reader.manifest().step);
  if (reader.manifest().tensors.size() != wanted.size()) return "another number of tensors";
  if (reader.manifest().samples_consumed != reader.manifest().step * 64) return "samples consumed";
  for (const WholeTensor& tensor : wanted) {
    std::vector<float> found(tensor.values.size());
    const Status status = reader.read_all(tensor.name, tensor.kind, found);
    if (!status) return status.error().message;
    if (found != tensor.values) return "values of " + tensor.name;
  }
  return "";
}

}  // namespace trainyard::checkpoint::testing
