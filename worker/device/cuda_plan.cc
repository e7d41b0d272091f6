#include "worker/device/cuda_plan.h"

#include <algorithm>

#include "kernels/rows.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kAlignment = 256;
/// A gradient is rounded by so many bytes of rows at a time, which stay in the second-level cache.
constexpr int64_t kPartialBytes = int64_t{32} << 20;
/// Beside what grows with its rows: cuDNN's deterministic backward pass has keys x queries of bf16
/// per head and sequence, and sums of dQ.
constexpr int64_t kLibraryAttentionBytes = int64_t{16} << 20;
/// Columns that operations without rows are cut into, see CudaKernelSet.
constexpr int64_t kColumnsMin = 256;

}  // namespace

CudaScratch cuda_scratch(const KernelShapes& s) {
  CudaScratch scratch;
  int64_t end = 0;
  const auto place = [&](int64_t& offset, int64_t bytes) {
    offset = end;
    end += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  // At least eight rows of the widest matrix, which start at a multiple of 16 bytes.
  scratch.partial_floats =
      std::min(s.matrix, std::max(kPartialBytes / 4, 8 * std::max(s.widest, s.width)));
  // Products add to fp32 sums where these are. A row is left for gamma, see CudaKernelSet.
  if (s.sums == DType::kFloat32) scratch.partial_floats = s.width;
  place(scratch.workspace, kGemmWorkspaceBytes);
  place(scratch.partial, scratch.partial_floats * 4);
  place(scratch.exact, s.pieces > 0 ? scratch.partial_floats * 8 : 0);
  place(scratch.statistics, s.pieces > 0 ? s.rows * (2 * s.pieces + 1) * 4 : 0);
  place(scratch.sums, kCudaColumnSumBlocks * std::max({3 * s.width, s.widest, kColumnsMin}) * 4);
  scratch.attention_bytes = s.rows * s.heads * 4;
  if (s.library_attention > 0) {
    scratch.attention_bytes +=
        s.rows * s.heads * (s.library_attention * 2 + s.head_dim * 4) + kLibraryAttentionBytes;
  }
  place(scratch.attention, scratch.attention_bytes);
  place(scratch.bias, s.bf16 ? s.widest * 2 : 0);
  place(scratch.tokens, s.rows * 4);
  place(scratch.targets, s.rows * 4);
  place(scratch.sequence_of, s.rows * 4);
  place(scratch.sequences, s.sequences * static_cast<int64_t>(sizeof(kernels::Sequence)));
  place(scratch.lists, (s.rows + 2 * s.vocab + 2 + s.rows / kCudaFrequentTokenRows) * 4);
  place(scratch.angles, s.rotary_positions * s.head_dim * 4);
  scratch.bytes = end + kAlignment;
  return scratch;
}

DeviceLimits cuda_limits() {
  // Of kernels/cuda/ops.h: norms hold a row, attention is compiled for four sizes of heads, and
  // products take rows of multiples of 16 bytes.
  return {.head_dims = {32, 64, 96, 128},
          .width = 8192,
          .width_multiple = 8,
          .rings = false,
          .shared_keys = false,
          .exact_parts = false};
}

kernels::DeviceFormats cuda_formats(DType compute, DType sums) {
  return {.compute = compute, .residual = compute, .gradient = compute, .sums = sums};
}

}  // namespace trainyard::engine
