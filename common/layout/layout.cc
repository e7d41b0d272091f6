#include "common/layout/layout.h"

#include <algorithm>

#include "common/base/check.h"

namespace trainyard::layout {
namespace {

int64_t round_up(int64_t elements) {
  return (elements + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

}  // namespace

int64_t Rectangle::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape)
    count *= size;
  return count;
}

std::vector<Rectangle> rectangles(std::span<const int64_t> shape, Range range) {
  std::vector<Rectangle> found;
  while (range.size() > 0) {
    // The largest rectangle that begins here and is contiguous: outer axes grow only while all
    // inner ones are whole.
    Rectangle slice{.offset = std::vector<int64_t>(shape.size(), 0),
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

Result<Layout> Layout::make(std::vector<TensorSpec> tensors, std::vector<Unit> units,
                            const Mesh& mesh, int zero_stage, Ownership ownership) {
  const int whole = mesh.pp * mesh.data_ranks();
  if (mesh.size() != whole) {
    return Error{ErrorCode::kInternal, "layout: found " + std::to_string(mesh.size()) +
                                           " ranks, of which only " + std::to_string(whole) +
                                           " hold whole tensors; wanted all of them"};
  }
  Layout layout;
  layout.mesh_ = mesh;
  layout.ownership_ = ownership;
  layout.sharding_ = {.parts = mesh.fsdp > 1 || mesh.dp == 1,
                      .sums = zero_stage >= 2 && mesh.fsdp > 1,
                      .weights = zero_stage >= 3 && mesh.fsdp > 1};
  layout.places_.assign(tensors.size(), Place{.unit = -1});
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const std::vector<int>& stages = units[unit].stages;
    TRAINYARD_CHECK(!stages.empty() && stages.front() >= 0 && stages.back() < mesh.pp);
    TRAINYARD_CHECK(std::is_sorted(stages.begin(), stages.end()));
    int64_t next = 0;
    for (const int tensor : units[unit].tensors) {
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

bool Layout::holds(int unit, const Coordinate& at) const {
  const std::vector<int>& stages = this->unit(unit).stages;
  return std::binary_search(stages.begin(), stages.end(), at.pp);
}

Range Layout::shard(int unit, const Coordinate& at) const {
  TRAINYARD_CHECK(at.fsdp >= 0 && at.fsdp < mesh_.fsdp);
  if (!holds(unit, at)) return {};
  const int64_t all = elements(unit);
  const int64_t part =
      ownership_ == Ownership::kFirst ? all : round_up((all + mesh_.fsdp - 1) / mesh_.fsdp);
  return {std::min(at.fsdp * part, all), std::min((at.fsdp + 1) * part, all)};
}

Copies Layout::copies(int unit, const Coordinate& at) const {
  const std::vector<int>& stages = this->unit(unit).stages;
  const auto stage = std::lower_bound(stages.begin(), stages.end(), at.pp);
  TRAINYARD_CHECK(stage != stages.end() && *stage == at.pp);
  return {.count = static_cast<int>(stages.size()) * mesh_.dp,
          .index = static_cast<int>(stage - stages.begin()) * mesh_.dp + at.dp};
}

std::vector<int64_t> Layout::part_sizes(int unit) const {
  std::vector<int64_t> sizes;
  for (int rank = 0; rank < mesh_.fsdp; ++rank)
    sizes.push_back(shard(unit, {.pp = this->unit(unit).stages.front(), .fsdp = rank}).size());
  return sizes;
}

Range Layout::place(int tensor) const {
  const Place& place = places_[static_cast<size_t>(tensor)];
  return {place.offset, place.offset + place.elements};
}

Range Layout::owned(int tensor, const Coordinate& at) const {
  const Range here = place(tensor);
  const Range part = shard(unit_of(tensor), at);
  const int64_t begin = std::clamp(part.begin, here.begin, here.end);
  const int64_t end = std::clamp(part.end, here.begin, here.end);
  return {begin - here.begin, end - here.begin};
}

std::vector<Rectangle> Layout::owned_slices(int tensor, const Coordinate& at) const {
  return rectangles(tensors_[static_cast<size_t>(tensor)].shape, owned(tensor, at));
}

Range Layout::stored(int tensor, const Coordinate& at) const {
  const Range all = owned(tensor, at);
  if (all.size() == 0) return all;
  const Copies among = copies(unit_of(tensor), at);
  const Range part = even_share(all.size(), among.count, among.index);
  return {all.begin + part.begin, all.begin + part.end};
}

std::vector<Rectangle> Layout::stored_slices(int tensor, const Coordinate& at) const {
  return rectangles(tensors_[static_cast<size_t>(tensor)].shape, stored(tensor, at));
}

std::vector<Owner> Layout::owners(int tensor) const {
  std::vector<Owner> owners;
  Coordinate at{.pp = unit(unit_of(tensor)).stages.front()};
  for (; at.fsdp < mesh_.fsdp; ++at.fsdp) {
    const Range range = owned(tensor, at);
    if (range.size() > 0) owners.push_back({rank_of(mesh_, at), range});
  }
  return owners;
}

}  // namespace trainyard::layout
