#include "common/layout/layout.h"

#include <algorithm>

#include "common/base/check.h"

namespace trainyard::layout {
namespace {

/// Elements of which a copy's share of a unit is a multiple: half of what tensors are aligned to,
/// so that of the smallest unit two copies have one each.
constexpr int64_t kShareAlignment = kTensorAlignment / 2;

int64_t round_up(int64_t elements, int64_t to = kTensorAlignment) {
  return (elements + to - 1) / to * to;
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
  Layout layout;
  layout.mesh_ = mesh;
  layout.ownership_ = ownership;
  layout.sharding_ = {.parts = mesh.fsdp > 1 || mesh.copies() == 1,
                      .sums = zero_stage >= 2 && mesh.fsdp > 1,
                      .weights = zero_stage >= 3 && mesh.fsdp > 1};
  for (const Unit& unit : units) {
    const std::vector<int>& stages = unit.stages;
    TRAINYARD_CHECK(!stages.empty() && stages.front() >= 0 && stages.back() < mesh.pp);
    TRAINYARD_CHECK(std::is_sorted(stages.begin(), stages.end()));
  }
  layout.tensors_ = std::move(tensors);
  layout.units_ = std::move(units);
  for (const Unit& unit : layout.units_) {
    for (const int tensor : unit.tensors)
      TRAINYARD_CHECK(!unit.summed_over_tensor || !layout.is_cut(tensor));
  }
  layout.place_tensors();
  return layout;
}

Layout Layout::at_tensor_rank(int tp) const {
  TRAINYARD_CHECK(tp >= 0 && tp < mesh_.tp);
  Layout other = *this;
  other.tp_ = tp;
  other.place_tensors();
  return other;
}

void Layout::place_tensors() {
  elements_.clear();
  places_.assign(tensors_.size(), Place{.unit = -1});
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    int64_t next = 0;
    for (const int tensor : units_[unit].tensors) {
      Place& place = places_[static_cast<size_t>(tensor)];
      TRAINYARD_CHECK(place.unit == -1);
      int64_t count = 1;
      for (size_t axis = 0; axis < tensors_[static_cast<size_t>(tensor)].shape.size(); ++axis) {
        int64_t size = 0;
        for (const Range& range : here(tensor, axis))
          size += range.size();
        count *= size;
      }
      place = {.unit = static_cast<int>(unit), .offset = next, .elements = count};
      next += round_up(count);
    }
    elements_.push_back(next);
  }
  for (const Place& place : places_)
    TRAINYARD_CHECK(place.unit >= 0);
}

std::vector<Range> Layout::here(int tensor, size_t axis) const {
  const TensorSpec& spec = tensors_[static_cast<size_t>(tensor)];
  if (!is_cut(tensor) || static_cast<size_t>(spec.cut.axis) != axis) return {{0, spec.shape[axis]}};
  std::vector<Range> ranges;
  int64_t begin = 0;
  for (const int64_t segment : spec.cut.segments) {
    const Range share = even_share(segment, mesh_.tp, tp_);
    ranges.push_back({begin + share.begin, begin + share.end});
    begin += segment;
  }
  // Of an inner axis what a rank has is one rectangle, as which it is held.
  TRAINYARD_CHECK(begin == spec.shape[axis] && (axis == 0 || ranges.size() == 1));
  return ranges;
}

std::vector<Rectangle> Layout::global(int tensor, const Range& range) const {
  const TensorSpec& spec = tensors_[static_cast<size_t>(tensor)];
  if (!is_cut(tensor)) return rectangles(spec.shape, range);
  const auto axis = static_cast<size_t>(spec.cut.axis);
  const std::vector<Range> ranges = here(tensor, axis);
  std::vector<int64_t> shape = spec.shape;
  shape[axis] = 0;
  for (const Range& part : ranges)
    shape[axis] += part.size();
  std::vector<Rectangle> found;
  for (const Rectangle& local : rectangles(shape, range)) {
    // Inner axes are whole where a rectangle has more than one index of the axis that is cut, and
    // the outer ones where it has one: what lies in each part follows what lies in the one before.
    int64_t before = 0;
    for (const Range& part : ranges) {
      const int64_t begin = std::max(local.offset[axis], before);
      const int64_t end = std::min(local.offset[axis] + local.shape[axis], before + part.size());
      if (begin < end) {
        Rectangle slice = local;
        slice.offset[axis] = part.begin + begin - before;
        slice.shape[axis] = end - begin;
        found.push_back(std::move(slice));
      }
      before += part.size();
    }
  }
  return found;
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
  const int tensor = tensor_copies(unit);
  const int before =
      static_cast<int>(stage - stages.begin()) * mesh_.copies() + at.dp * mesh_.cp + at.cp;
  return {.count = static_cast<int>(stages.size()) * mesh_.copies() * tensor,
          .index = before * tensor + (tensor > 1 ? at.tp : 0)};
}

Range Layout::rounded_part(int unit, const Coordinate& at) const {
  const Range part = shard(unit, at);
  const Copies among = copies(unit, at);
  const int64_t share = round_up((part.size() + among.count - 1) / among.count, kShareAlignment);
  return {std::min(part.begin + among.index * share, part.end),
          std::min(part.begin + (among.index + 1) * share, part.end)};
}

std::vector<int64_t> Layout::rounded_sizes(int unit, const Coordinate& at) const {
  std::vector<int64_t> sizes;
  for (const int stage : this->unit(unit).stages) {
    for (int index = 0; index < mesh_.copies(); ++index) {
      Coordinate copy = at;
      copy.pp = stage;
      copy.dp = index / mesh_.cp;
      copy.cp = index % mesh_.cp;
      for (int tensor = 0; tensor < tensor_copies(unit); ++tensor) {
        if (tensor_copies(unit) > 1) copy.tp = tensor;
        sizes.push_back(rounded_part(unit, copy).size());
      }
    }
  }
  return sizes;
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

/// What of a tensor, counted in it, lies in a range of its unit's buffer.
Range Layout::within(int tensor, const Range& of_unit) const {
  const Range here = place(tensor);
  const int64_t begin = std::clamp(of_unit.begin, here.begin, here.end);
  const int64_t end = std::clamp(of_unit.end, here.begin, here.end);
  return {begin - here.begin, end - here.begin};
}

Range Layout::owned(int tensor, const Coordinate& at) const {
  return within(tensor, shard(unit_of(tensor), at));
}

Range Layout::rounded(int tensor, const Coordinate& at) const {
  const int unit = unit_of(tensor);
  return holds(unit, at) ? within(tensor, rounded_part(unit, at)) : Range();
}

std::vector<Rectangle> Layout::owned_slices(int tensor, const Coordinate& at) const {
  return global(tensor, owned(tensor, at));
}

Range Layout::stored(int tensor, const Coordinate& at) const {
  const Range all = owned(tensor, at);
  if (all.size() == 0) return all;
  if (repeats(tensor)) return {all.begin, all.begin};
  const Copies among = copies(unit_of(tensor), at);
  const Range part = even_share(all.size(), among.count, among.index);
  return {all.begin + part.begin, all.begin + part.end};
}

std::vector<Rectangle> Layout::stored_slices(int tensor, const Coordinate& at) const {
  return global(tensor, stored(tensor, at));
}

std::vector<Owner> Layout::owners(int tensor) const {
  std::vector<Layout> others;  // by tp coordinate
  for (int tp = 0; tp < (is_cut(tensor) ? mesh_.tp : 1); ++tp)
    others.push_back(at_tensor_rank(tp));
  std::vector<Owner> owners;
  Coordinate at{.pp = unit(unit_of(tensor)).stages.front()};
  for (; at.fsdp < mesh_.fsdp; ++at.fsdp) {
    for (at.tp = 0; at.tp < static_cast<int>(others.size()); ++at.tp) {
      Owner owner{rank_of(mesh_, at), others[static_cast<size_t>(at.tp)].owned_slices(tensor, at)};
      if (!owner.slices.empty()) owners.push_back(std::move(owner));
    }
  }
  return owners;
}

}  // namespace trainyard::layout
