#include "common/layout/layout.h"

#include <algorithm>

#include "common/base/check.h"

namespace trainyard::layout {
namespace {

/// Rows of this fsdp rank's share of [0, rows), cut on multiples of `block`.
Range row_share(int64_t rows, int64_t block, int parts, int index) {
  const int64_t blocks = (rows + block - 1) / block;
  const Range share = even_share(blocks, parts, index);
  return {std::min(share.begin * block, rows), std::min(share.end * block, rows)};
}

/// Ranges along the tensor-parallel axis that tp rank `index` of `parts` holds.
std::vector<Range> tensor_ranges(int64_t length, const TensorSpec& tensor, int parts, int index) {
  std::vector<Range> ranges;
  const int64_t segment = length / tensor.segments;
  const Range chunks = even_share(tensor.chunks, parts, index);
  for (int s = 0; s < tensor.segments; ++s) {
    const int64_t begin = s * segment + even_share(segment, tensor.chunks, chunks.begin).begin;
    const int64_t end = s * segment + even_share(segment, tensor.chunks, chunks.end - 1).end;
    if (end > begin) ranges.push_back({begin, end});
  }
  return ranges;
}

}  // namespace

int64_t Slice::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape)
    count *= size;
  return count;
}

Result<std::vector<Slice>> slices(const TensorSpec& tensor, const Mesh& mesh, int rank,
                                  Sharding sharding, int64_t row_block) {
  TRAINYARD_CHECK(!tensor.shape.empty() && row_block > 0);
  const Coordinate at = coordinate_of(mesh, rank);
  const auto& owners = tensor.pipeline_owners;
  const bool owned = std::any_of(owners.begin(), owners.end(),
                                 [&](int chunk) { return chunk % mesh.pp == at.pp; });
  if (!owned) return std::vector<Slice>{};

  std::vector<Slice> parts = {
      {.offset = std::vector<int64_t>(tensor.shape.size(), 0), .shape = tensor.shape}};
  if (tensor.tensor_axis && mesh.tp > 1) {
    if (tensor.chunks % mesh.tp != 0) {
      return Error{ErrorCode::kInvalidConfig,
                   "parallelism.tensor: " + std::to_string(mesh.tp) + " must divide the " +
                       std::to_string(tensor.chunks) + " chunks of tensor " + tensor.name};
    }
    const auto axis = static_cast<size_t>(*tensor.tensor_axis);
    std::vector<Slice> cut;
    for (const Range& range : tensor_ranges(tensor.shape[axis], tensor, mesh.tp, at.tp)) {
      Slice slice = parts.front();
      slice.offset[axis] = range.begin;
      slice.shape[axis] = range.size();
      cut.push_back(std::move(slice));
    }
    parts = std::move(cut);
  }
  if (sharding == Sharding::kReplicated || mesh.fsdp == 1) return parts;

  std::vector<Slice> sharded;
  for (Slice slice : parts) {
    const Range rows = row_share(slice.shape[0], row_block, mesh.fsdp, at.fsdp);
    if (rows.size() == 0) continue;
    slice.offset[0] += rows.begin;
    slice.shape[0] = rows.size();
    sharded.push_back(std::move(slice));
  }
  return sharded;
}

int replica_count(const TensorSpec& tensor, const Mesh& mesh, Sharding sharding) {
  int stages = 0;
  for (int p = 0; p < mesh.pp; ++p) {
    stages += std::any_of(tensor.pipeline_owners.begin(), tensor.pipeline_owners.end(),
                          [&](int chunk) { return chunk % mesh.pp == p; })
                  ? 1
                  : 0;
  }
  const int over_tp = tensor.tensor_axis ? 1 : mesh.tp;
  const int over_fsdp = sharding == Sharding::kRows ? 1 : mesh.fsdp;
  return stages * mesh.dp * mesh.cp * over_tp * over_fsdp;
}

}  // namespace trainyard::layout
