#pragma once

#include "kernels/head_parts.h"
#include "kernels/simt/runtime.h"

namespace trainyard::kernels::cuda {

/// Of a row: queries, keys and values.
inline constexpr int kHeadSegmentsMax = 3;

/// As the launchers of kernels/cuda/ops.h. The part that a rank has of a segment is whole multiples
/// of 16 bytes.
cudaError_t copy_head_parts(const HeadParts& p, cudaStream_t stream);

}  // namespace trainyard::kernels::cuda
