#include "worker/runtime/round_sums.h"

#include <algorithm>
#include <cstring>

namespace trainyard::engine {

RoundedPiece rounded_piece(int64_t at, int64_t end) {
  // Images of elements [at, 2 at) end where their sums begin.
  const bool apart = at >= kRoundElements;
  return {.count = std::min(apart ? at : kRoundElements, end - at), .apart = apart};
}

void round_sums(kernels::KernelSet& kernels, std::span<const int64_t> sums, layout::Range shard,
                double scale, std::span<float> gradient, std::span<float> staging) {
  for (int64_t at = shard.begin; at < shard.end;) {
    const RoundedPiece piece = rounded_piece(at, shard.end);
    float* const images = piece.apart ? gradient.data() + at : staging.data();
    kernels.exact_to_float(
        {.count = piece.count, .acc = sums.data() + at, .scale = scale, .gradient = images});
    if (!piece.apart) {
      std::memcpy(gradient.data() + at, images, static_cast<size_t>(piece.count) * sizeof(float));
    }
    at += piece.count;
  }
}

}  // namespace trainyard::engine
