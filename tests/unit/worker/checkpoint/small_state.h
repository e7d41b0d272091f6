#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/checkpoint/partition.h"
#include "worker/checkpoint/reader.h"
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

/// Rank `rank` of `size`'s part of the state at `step`: rows as balanced_rows cuts them. The slices
/// point into `state`.
inline Snapshot small_snapshot(const std::vector<WholeTensor>& state, int64_t step, int rank,
                               int size) {
  std::vector<std::vector<int64_t>> shapes;
  for (const WholeTensor& tensor : state)
    shapes.push_back(tensor.shape);
  const std::vector<int64_t> bytes(state.size(), 4);
  const auto parts = balanced_rows(shapes, bytes, rank, size);
  Snapshot snapshot;
  snapshot.step = step;
  snapshot.samples_consumed = step * 64;
  snapshot.config_json = R"({"model":{"layers":1}})";
  snapshot.scalars = {{kOptimizerStepScalar, step}, {kSeedScalar, uint64_t{0xfedcba9876543210}}};
  for (size_t i = 0; i < state.size(); ++i) {
    if (!parts[i]) continue;
    const int64_t rows = state[i].shape.empty() ? 1 : state[i].shape[0];
    const auto row = static_cast<int64_t>(state[i].values.size()) / rows;
    const int64_t first = state[i].shape.empty() ? 0 : parts[i]->offset[0];
    const int64_t count = state[i].shape.empty() ? 1 : parts[i]->shape[0];
    const std::span<const float> values = state[i].values;
    snapshot.slices.push_back({state[i].name, state[i].kind, DType::kFloat32, state[i].shape,
                               parts[i]->offset, parts[i]->shape,
                               std::as_bytes(values.subspan(static_cast<size_t>(first * row),
                                                            static_cast<size_t>(count * row)))});
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
