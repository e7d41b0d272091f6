#pragma once

#include <cstdint>
#include <span>

#include "common/layout/mesh.h"
#include "kernels/kernel_set.h"

namespace trainyard::engine {

/// Elements that round_sums() needs a buffer for: fits L2, so that the move down to the fp32
/// gradient costs no memory traffic.
inline constexpr int64_t kRoundElements = int64_t{64} * 1024;

/// A piece of a shard that is rounded at once, by threads in whatever order.
struct RoundedPiece {
  int64_t count = 0;   ///< elements
  bool apart = false;  ///< its images overlap none of its sums: they need no buffer
};

/// The piece that begins at element `at` of a shard that ends at `end`.
RoundedPiece rounded_piece(int64_t at, int64_t end);

/// gradient[i] = fp32(sums[i] * scale) for i of `shard`, where `gradient` lies over the first half
/// of `sums`: element i at byte 4i, its sum at byte 8i. Sums of the shard are lost, and of those
/// before it whatever the images reach. staging: kRoundElements.
void round_sums(kernels::KernelSet& kernels, std::span<const int64_t> sums, layout::Range shard,
                double scale, std::span<float> gradient, std::span<float> staging);

}  // namespace trainyard::engine
