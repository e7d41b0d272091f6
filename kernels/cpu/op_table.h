#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/cpu_limits.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kernel_set.h"

// What the kernels compiled for one instruction set and the code compiled for any processor share.
// Only declarations: a function defined here could be compiled with AVX and merged into generic
// code by the linker.

namespace trainyard::kernels {

/// What a kernel works with: the pool and, for each of its threads, a piece of scratch.
struct CpuContext {
  ThreadPool* pool = nullptr;
  int threads = 1;
  int64_t l2_bytes = 1 << 20;  ///< second-level cache of a core
  std::byte* scratch = nullptr;
};

/// flag = 1, from any thread.
void raise(OverflowFlag* flag);

/// The kernels of one instruction set. Each runs to its end on the context's pool.
struct OpTable {
  void (*gemm)(const CpuContext&, const GemmParams&);
  void (*layer_norm_forward)(const CpuContext&, const LayerNormForward&);
  void (*layer_norm_backward_input)(const CpuContext&, const LayerNormBackwardInput&);
  void (*layer_norm_backward_weight)(const CpuContext&, const LayerNormBackwardWeight&);
  void (*head_norm_forward)(const CpuContext&, const HeadNormForward&);
  void (*head_norm_backward_input)(const CpuContext&, const HeadNormBackwardInput&);
  void (*head_norm_backward_weight)(const CpuContext&, const HeadNormBackwardWeight&);
  void (*rope)(const CpuContext&, const Rope&);
  void (*bias_backward)(const CpuContext&, const BiasBackward&);
  void (*gelu_forward)(const CpuContext&, const GeluForward&);
  void (*gelu_backward)(const CpuContext&, const GeluBackward&);
  void (*gated_forward)(const CpuContext&, const GatedForward&);
  void (*gated_backward)(const CpuContext&, const GatedBackward&);
  void (*dropout_add)(const CpuContext&, const DropoutAdd&);
  void (*dropout_backward)(const CpuContext&, const DropoutBackward&);
  void (*embedding_forward)(const CpuContext&, const EmbeddingForward&);
  void (*embedding_backward)(const CpuContext&, const EmbeddingBackward&);
  void (*attention_forward)(const CpuContext&, const AttentionForward&);
  void (*attention_backward)(const CpuContext&, const AttentionBackward&);
  void (*cross_entropy)(const CpuContext&, const CrossEntropy&);
  void (*vocabulary_statistics)(const CpuContext&, const VocabularyStatistics&);
  void (*round_exact)(const CpuContext&, const RoundExact&);
  void (*sum_of_squares)(const CpuContext&, const SumOfSquares&);
  void (*adamw)(const CpuContext&, const AdamW&);
  void (*cast_to_bf16)(const CpuContext&, const float* x, uint16_t* y, int64_t count);
  void (*clear)(const CpuContext&, void* data, int64_t bytes);
  void (*accumulate)(const CpuContext&, const int64_t* x, int64_t* sums, int64_t count,
                     bool overwrite);

  // The building blocks, for tests: 16 lanes each.
  void (*exp16)(const float* x, float* y);
  void (*log16)(const float* x, float* y);
  void (*sigmoid16)(const float* x, float* y);
  void (*fma16)(const float* a, const float* b, const float* c, float* y);
  /// c + a . b of two bf16 a lane, as VDPBF16PS computes it: by that instruction where the set has
  /// it, and by fma(even, fma(odd, c)), where `even` is the low half.
  void (*dot_bf16_16)(const uint32_t* a, const uint32_t* b, const float* c, float* y);
  void (*dot_bf16_by_fma16)(const uint32_t* a, const uint32_t* b, const float* c, float* y);
  void (*to_bf16_16)(const float* x, uint16_t* y);
  /// round(x * 2^q); returns whether all fitted.
  bool (*fixed16)(const float* x, int quantum_log2, int limit_log2, int64_t* y);
  void (*int64_to_float16)(const int64_t* x, float* y);
  void (*int64_to_double16)(const int64_t* x, double* y);
};

// Defined by the compilations of kernels/cpu/op_table.cc, the last in op_table_amx.cc.
namespace isa_generic {
const OpTable& op_table();
}
namespace isa_avx2 {
const OpTable& op_table();
}
namespace isa_avx512 {
const OpTable& op_table();
}
namespace isa_avx512_bf16 {
const OpTable& op_table();
}
namespace isa_amx {
const OpTable& op_table();
}

/// The kernels of one instruction set, which must be available.
const OpTable& op_table_of(Isa isa);

}  // namespace trainyard::kernels
