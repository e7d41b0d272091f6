#include "common/layout/layout.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"

namespace trainyard::layout {
namespace {

int64_t round_up(int64_t elements) {
  return (elements + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

}  // namespace

int64_t Slice::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape)
    count *= size;
  return count;
}

std::vector<Slice> rectangles(std::span<const int64_t> shape, Range range) {
  std::vector<Slice> found;
  while (range.size() > 0) {
    // The largest rectangle that begins here and is contiguous: outer axes grow only while all
    // inner ones are whole.
    Slice slice{.offset = std::vector<int64_t>(shape.size(), 0),
                .shape = std::vector<int64_t>(shape.size(), 1)};
    int64_t inner = 1;  // elements of one index along the axis
    int64_t rest = range.begin;
    for (size_t axis = shape.size(); axis-- > 0;) {
      slice.offset[axis] = rest % shape[axis];
      rest /= shape[axis];
    }
    for (size_t axis = shape.size(); axis-- > 0;) {
      const int64_t wanted = std::min(shape[axis] - slice.offset[axis], range.size() / inner);
      slice.shape[axis] = wanted;
      if (wanted < shape[axis]) break;
      inner *= shape[axis];
    }
    range.begin += slice.elements();
    found.push_back(std::move(slice));
  }
  return found;
}

Result<Layout> Layout::make(std::vector<TensorSpec> tensors, std::vector<std::vector<int>> units,
                            const Mesh& mesh, int zero_stage, Ownership ownership) {
  if (mesh.size() != mesh.data_ranks()) {
    return Error{ErrorCode::kInternal,
                 "layout: found " + std::to_string(mesh.size()) + " ranks, of which only " +
                     std::to_string(mesh.data_ranks()) + " hold whole tensors; wanted all of them"};
  }
  Layout layout;
  layout.mesh_ = mesh;
  layout.ownership_ = ownership;
  layout.sharding_ = {.parts = mesh.fsdp > 1 || mesh.dp == 1,
                      .copies = mesh.dp > 1,
                      .sums = zero_stage >= 2 && mesh.fsdp > 1,
                      .weights = zero_stage >= 3 && mesh.fsdp > 1};
  layout.places_.assign(tensors.size(), Place{.unit = -1});
  for (size_t unit = 0; unit < units.size(); ++unit) {
    int64_t next = 0;
    for (const int tensor : units[unit]) {
      Place& place = layout.places_[static_cast<size_t>(tensor)];
      TRAINYARD_CHECK(place.unit == -1);
      int64_t count = 1;
      for (const int64_t size : tensors[static_cast<size_t>(tensor)].shape)
        count *= size;
      place = {.unit = static_cast<int>(unit), .offset = next, .elements = count};
      next += round_up(count);
    }
    layout.elements_.push_back(next);
  }
  for (const Place& place : layout.places_)
    TRAINYARD_CHECK(place.unit >= 0);
  layout.tensors_ = std::move(tensors);
  layout.units_ = std::move(units);
  return layout;
}

int64_t Layout::elements() const {
  return std::accumulate(elements_.begin(), elements_.end(), int64_t{0});
}

Range Layout::shard(int unit, int shard_rank) const {
  TRAINYARD_CHECK(shard_rank >= 0 && shard_rank < mesh_.fsdp);
  const int64_t all = elements(unit);
  const int64_t part =
      ownership_ == Ownership::kFirst ? all : round_up((all + mesh_.fsdp - 1) / mesh_.fsdp);
  return {std::min(shard_rank * part, all), std::min((shard_rank + 1) * part, all)};
}

std::vector<int64_t> Layout::counts(int unit) const {
  std::vector<int64_t> counts;
  for (int rank = 0; rank < mesh_.fsdp; ++rank)
    counts.push_back(shard(unit, rank).size());
  return counts;
}

int64_t Layout::owned_elements(int shard_rank) const {
  int64_t owned = 0;
  for (int unit = 0; unit < units(); ++unit)
    owned += shard(unit, shard_rank).size();
  return owned;
}

Range Layout::place(int tensor) const {
  const Place& place = places_[static_cast<size_t>(tensor)];
  return {place.offset, place.offset + place.elements};
}

Range Layout::owned(int tensor, int shard_rank) const {
  const Range here = place(tensor);
  const Range part = shard(unit_of(tensor), shard_rank);
  const int64_t begin = std::clamp(part.begin, here.begin, here.end);
  const int64_t end = std::clamp(part.end, here.begin, here.end);
  return {begin - here.begin, end - here.begin};
}

std::vector<Slice> Layout::owned_slices(int tensor, int shard_rank) const {
  return rectangles(tensors_[static_cast<size_t>(tensor)].shape, owned(tensor, shard_rank));
}

Range Layout::stored(int tensor, const Coordinate& at) const {
  const Range all = owned(tensor, at.fsdp);
  const Range part = even_share(all.size(), mesh_.dp, at.dp);
  return {all.begin + part.begin, all.begin + part.end};
}

std::vector<Slice> Layout::stored_slices(int tensor, const Coordinate& at) const {
  return rectangles(tensors_[static_cast<size_t>(tensor)].shape, stored(tensor, at));
}

}  // namespace trainyard::layout
