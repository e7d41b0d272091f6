#pragma once

#include <cstdint>

namespace trainyard::kernels {

// Bounds that keep the CPU kernels' scratch fixed; a plan that exceeds one is refused when it is
// made, a kernel that is asked to ends the process.

/// Attention: positions of a key block.
inline constexpr int64_t kMaxKeyBlock = 256;
/// Attention: features of a head.
inline constexpr int64_t kMaxHeadDim = 256;
/// Attention: tokens of a sample times features of a head (rounded up to 16).
inline constexpr int64_t kMaxAttentionElements = int64_t{1} << 20;
/// Scratch of one thread; the kernels divide it among packing buffers and tiles.
inline constexpr int64_t kScratchBytesPerThread = int64_t{9} << 20;

}  // namespace trainyard::kernels
