#pragma once

#include <cstdint>

#include "worker/device/device.h"
#include "worker/device/kernel_shapes.h"

/// What a job may be on a GPU, and what its kernels take. Arithmetic alone, so that it is planned
/// where there is no GPU.
namespace trainyard::engine {

/// Pinned host memory through which small copies go.
inline constexpr int64_t kPinnedBytes = int64_t{12} << 20;
/// What the driver keeps of a GPU for a process: context, modules, cuBLASLt. About 0.5 GiB on an
/// H200; with some room.
inline constexpr int64_t kGpuContextBytes = int64_t{768} << 20;

/// What NCCL keeps of a GPU for a group of ranks. An estimate: several GPUs have not been measured.
inline constexpr int64_t kNcclGroupBytes = int64_t{160} << 20;

/// A plan of cuBLASLt may take so much; what was measured best for GPT-2 takes 42.5 MB.
inline constexpr int64_t kGemmWorkspaceBytes = int64_t{64} << 20;

// What the launchers of kernels/cuda/ops.h count on, which only code for a GPU may include;
// cuda_kernel_set.cc compares.
inline constexpr int64_t kCudaColumnSumBlocks = 1024;
inline constexpr int64_t kCudaFrequentTokenRows = 64;

/// Offsets of the parts, each aligned to 256 bytes.
struct CudaScratch {
  int64_t workspace = 0;    ///< of products
  int64_t partial = 0;      ///< fp32 rows of a matrix's gradient, of one grain of exact sums
  int64_t exact = 0;        ///< int64 sums of the same rows, of pieces that are rounded here
  int64_t statistics = 0;   ///< fp32, of the pieces of a vocabulary
  int64_t sums = 0;         ///< fp32 partial sums of columns
  int64_t attention = 0;    ///< fp32, a number per row and head; or what a library works in
  int64_t bias = 0;         ///< a bias in the type of a product's result
  int64_t tokens = 0;       ///< int32 by row
  int64_t targets = 0;      ///< int32 by row
  int64_t sequence_of = 0;  ///< int32 by row
  int64_t sequences = 0;    ///< kernels::Sequence
  int64_t lists = 0;        ///< rows by token, of the embedding's gradient
  int64_t angles = 0;       ///< fp32 cosine and sine by position and pair of a head's features
  int64_t partial_floats = 0;
  int64_t attention_bytes = 0;
  int64_t bytes = 0;  ///< of all, room to align the beginning included
};
CudaScratch cuda_scratch(const KernelShapes& shapes);

DeviceLimits cuda_limits();
/// All activations and their gradients are of the type that products read. `sums`: of gradients,
/// kInt64 or kFloat32.
kernels::DeviceFormats cuda_formats(DType compute, DType sums = DType::kInt64);

}  // namespace trainyard::engine
