#include "worker/checkpoint/rectangle.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>

#include "common/base/check.h"
#include "common/random/philox.h"

namespace trainyard::checkpoint {
namespace {

constexpr int64_t kMaxVolume = int64_t{1} << 62;

std::string list(std::span<const int64_t> values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != 0) text += ',';
    text += std::to_string(values[i]);
  }
  return text + "]";
}

std::vector<int64_t> strides_of(std::span<const int64_t> shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t axis = shape.size(); axis-- > 1;) {
    strides[axis - 1] = strides[axis] * shape[axis];
  }
  return strides;
}

int64_t element_index(std::span<const int64_t> at, const Rectangle& within,
                      std::span<const int64_t> strides) {
  int64_t index = 0;
  for (size_t axis = 0; axis < at.size(); ++axis) {
    index += (at[axis] - within.offset[axis]) * strides[axis];
  }
  return index;
}

/// How many trailing axes of `common` form one contiguous run in both rectangles: all axes from the
/// returned one on. The axis before a run may be cut, the ones inside it must be whole in both.
size_t first_contiguous_axis(const Rectangle& common, const Rectangle& a, const Rectangle& b) {
  size_t axis = common.shape.size();
  while (axis > 0) {
    --axis;
    if (common.shape[axis] != a.shape[axis] || common.shape[axis] != b.shape[axis]) break;
  }
  return axis;
}

/// What both cover of one axis; begin >= end: nothing.
struct Extent {
  int64_t begin, end;
};
Extent common_extent(const Rectangle& a, const Rectangle& b, size_t axis) {
  return {std::max(a.offset[axis], b.offset[axis]),
          std::min(a.offset[axis] + a.shape[axis], b.offset[axis] + b.shape[axis])};
}

bool overlap(const Rectangle& a, const Rectangle& b) {
  for (size_t axis = 0; axis < a.offset.size(); ++axis) {
    const Extent extent = common_extent(a, b, axis);
    if (extent.begin >= extent.end) return false;
  }
  return true;
}

/// A size of rectangles other than their volume: along each axis places lie at random numbers of a
/// prime field, which nobody knows before. It adds up over rectangles side by side as the volume
/// does. Where parts cover some element twice or never, their sum is that of the whole by a chance
/// of no more than axes / 2^60 (Schwartz, J. ACM 27, 1980), so that parts are compared with the
/// whole and not with each other.
class RandomMeasure {
 public:
  uint64_t of(std::span<const int64_t> offset, std::span<const int64_t> shape) const {
    uint64_t size = 1;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      const uint64_t end = place(axis, offset[axis] + shape[axis]);
      size = times(size, sum(end, kPrime - place(axis, offset[axis])));
    }
    return size;
  }
  static uint64_t sum(uint64_t a, uint64_t b) { return (a + b) % kPrime; }

 private:
  static constexpr uint64_t kPrime = (uint64_t{1} << 61U) - 1;

  static uint64_t times(uint64_t a, uint64_t b) {
    using Wide = unsigned __int128;
    return static_cast<uint64_t>(Wide{a} * b % kPrime);
  }
  uint64_t place(size_t axis, int64_t at) const {
    return mix64(mix64(static_cast<uint64_t>(at) ^ keys_[0]) + axis + keys_[1]) % kPrime;
  }
  static uint64_t drawn() {
    std::random_device source;
    return uint64_t{source()} << 32U | source();
  }

  const std::array<uint64_t, 2> keys_{drawn(), drawn()};
};

/// Two parts that overlap, for a message: the search ends after kMostCompared pairs, and sorted
/// along axis 0 two can only overlap while the second begins before the first ends.
std::optional<Error> find_overlap(std::span<const Rectangle> parts) {
  constexpr int64_t kMostCompared = 1'000'000;
  const auto begin_of = [](const Rectangle* part) {
    return part->offset.empty() ? 0 : part->offset[0];
  };
  std::vector<const Rectangle*> sorted;
  for (const Rectangle& part : parts)
    sorted.push_back(&part);
  std::sort(sorted.begin(), sorted.end(),
            [&](const Rectangle* a, const Rectangle* b) { return begin_of(a) < begin_of(b); });
  int64_t compared = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const int64_t end = begin_of(sorted[i]) + (sorted[i]->shape.empty() ? 1 : sorted[i]->shape[0]);
    for (size_t j = i + 1; j < sorted.size() && begin_of(sorted[j]) < end; ++j) {
      if (overlap(*sorted[i], *sorted[j])) {
        return Error{ErrorCode::kInvalidData, "slices " + to_string(*sorted[i]) + " and " +
                                                  to_string(*sorted[j]) + " overlap"};
      }
      if (++compared == kMostCompared) return std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> checked_volume(std::span<const int64_t> shape) {
  int64_t volume = 1;
  for (const int64_t size : shape) {
    if (size <= 0 || volume > kMaxVolume / size) return std::nullopt;
    volume *= size;
  }
  return volume;
}

bool contains(std::span<const int64_t> global, const Rectangle& part) {
  if (part.offset.size() != global.size() || part.shape.size() != global.size()) return false;
  for (size_t axis = 0; axis < global.size(); ++axis) {
    if (part.offset[axis] < 0 || part.shape[axis] <= 0) return false;
    if (part.offset[axis] > global[axis] || part.shape[axis] > global[axis] - part.offset[axis]) {
      return false;
    }
  }
  return true;
}

std::optional<Rectangle> intersection(const Rectangle& a, const Rectangle& b) {
  TRAINYARD_CHECK(a.offset.size() == b.offset.size());
  Rectangle common;
  for (size_t axis = 0; axis < a.offset.size(); ++axis) {
    const auto [begin, end] = common_extent(a, b, axis);
    if (begin >= end) return std::nullopt;
    common.offset.push_back(begin);
    common.shape.push_back(end - begin);
  }
  return common;
}

Status check_partition(std::span<const int64_t> global, std::span<const Rectangle> parts) {
  const std::optional<int64_t> wanted = checked_volume(global);
  if (!wanted) {
    return Error{ErrorCode::kInvalidData, "shape " + list(global) + ": sizes must be positive"};
  }
  static const RandomMeasure measure;
  const uint64_t whole = measure.of(std::vector<int64_t>(global.size()), global);
  uint64_t sum = 0;
  int64_t covered = 0;
  size_t seen = 0;
  for (const Rectangle& part : parts) {
    ++seen;
    if (!contains(global, part)) {
      return Error{ErrorCode::kInvalidData,
                   "slice " + to_string(part) + " lies outside the shape " + list(global)};
    }
    // No overflow: a contained part's volume is at most the whole's, and the sum stops above it.
    covered += *checked_volume(part.shape);
    sum = RandomMeasure::sum(sum, measure.of(part.offset, part.shape));
    if (covered > *wanted) break;
  }
  if (covered == *wanted && sum == whole) return {};
  if (std::optional<Error> overlapping = find_overlap(parts.first(seen))) {
    return *std::move(overlapping);
  }
  if (covered != *wanted) {
    return Error{ErrorCode::kInvalidData, "slices cover " + std::to_string(covered) + " of the " +
                                              std::to_string(*wanted) + " elements of shape " +
                                              list(global)};
  }
  return Error{ErrorCode::kInvalidData, "slices of shape " + list(global) + " overlap"};
}

Status for_each_run(const Rectangle& source, const Rectangle& destination,
                    const std::function<Status(const Run&)>& visit) {
  const std::optional<Rectangle> common = intersection(source, destination);
  if (!common) return {};
  const size_t axes = common->shape.size();
  const std::vector<int64_t> source_strides = strides_of(source.shape);
  const std::vector<int64_t> destination_strides = strides_of(destination.shape);
  const size_t run_axis = axes == 0 ? 0 : first_contiguous_axis(*common, source, destination);
  const int64_t count = std::accumulate(common->shape.begin() + static_cast<ptrdiff_t>(run_axis),
                                        common->shape.end(), int64_t{1}, std::multiplies<>());
  std::vector<int64_t> at = common->offset;
  while (true) {
    TRAINYARD_TRY(visit(Run{element_index(at, source, source_strides),
                            element_index(at, destination, destination_strides), count}));
    // An odometer over the axes before the run, the last of them fastest.
    size_t axis = run_axis;
    while (axis > 0) {
      --axis;
      if (++at[axis] < common->offset[axis] + common->shape[axis]) break;
      at[axis] = common->offset[axis];
      if (axis == 0) return {};
    }
    if (run_axis == 0) return {};
  }
}

std::string to_string(const Rectangle& rectangle) {
  return list(rectangle.offset) + "+" + list(rectangle.shape);
}

}  // namespace trainyard::checkpoint
