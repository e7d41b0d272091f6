#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/layout/layout.h"

/// Hyper-rectangles of row-major tensors: pure arithmetic, no input or output.
namespace trainyard::checkpoint {

using layout::Rectangle;

/// Most axes a stored tensor may have.
inline constexpr size_t kMaxAxes = 8;

/// Number of elements; nullopt when a size is not positive or the product exceeds 2^62.
std::optional<int64_t> checked_volume(std::span<const int64_t> shape);

/// Whether `part` lies within a tensor of shape `global` (same number of axes, sizes > 0).
bool contains(std::span<const int64_t> global, const Rectangle& part);

/// What both have in common; nullopt when that is nothing. Both must have the same number of axes.
std::optional<Rectangle> intersection(const Rectangle& a, const Rectangle& b);

/// Errors: kInvalidData unless `parts` lie within `global`, do not overlap and cover it wholly; the
/// message names the offsets concerned.
Status check_partition(std::span<const int64_t> global, std::span<const Rectangle> parts);

/// One contiguous run of elements shared by a source and a destination rectangle.
struct Run {
  int64_t source = 0;       ///< element index within the source rectangle's row-major data
  int64_t destination = 0;  ///< the same within the destination
  int64_t count = 0;
};

/// Calls `visit` for every contiguous run of the intersection of `source` and `destination`, in
/// ascending order of the source index; stops at the first error. No call when they are disjoint.
Status for_each_run(const Rectangle& source, const Rectangle& destination,
                    const std::function<Status(const Run&)>& visit);

/// "[2,0]+[4,32]": offset and shape, for messages.
std::string to_string(const Rectangle& rectangle);

}  // namespace trainyard::checkpoint
