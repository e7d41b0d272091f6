#pragma once

// The kernels of the instruction set being compiled; kernels/kernel_set.h documents each.

#include "kernels/cpu/op_table.h"
#include "kernels/cpu/simd.h"

#if TRAINYARD_CPU_ISA == TRAINYARD_ISA_AMX
// AMX multiplies bf16 only: products of fp32 are those of AVX-512 BF16.
namespace trainyard::kernels::isa_avx512_bf16 {
void gemm(const CpuContext&, const GemmParams&);
void attention_forward(const CpuContext&, const AttentionForward&);
void attention_backward(const CpuContext&, const AttentionBackward&);
}  // namespace trainyard::kernels::isa_avx512_bf16
#endif

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {

void gemm(const CpuContext&, const GemmParams&);
void layer_norm_forward(const CpuContext&, const LayerNormForward&);
void layer_norm_backward_input(const CpuContext&, const LayerNormBackwardInput&);
void layer_norm_backward_weight(const CpuContext&, const LayerNormBackwardWeight&);
// What layer_norm_* do where it is not centred.
void rms_norm_forward(const CpuContext&, const LayerNormForward&);
void rms_norm_backward_input(const CpuContext&, const LayerNormBackwardInput&);
void rms_norm_backward_weight(const CpuContext&, const LayerNormBackwardWeight&);
void head_norm_forward(const CpuContext&, const HeadNormForward&);
void head_norm_backward_input(const CpuContext&, const HeadNormBackwardInput&);
void head_norm_backward_weight(const CpuContext&, const HeadNormBackwardWeight&);
void rope(const CpuContext&, const Rope&);
void bias_backward(const CpuContext&, const BiasBackward&);
void gelu_forward(const CpuContext&, const GeluForward&);
void gelu_backward(const CpuContext&, const GeluBackward&);
void gated_forward(const CpuContext&, const GatedForward&);
void gated_backward(const CpuContext&, const GatedBackward&);
void dropout_add(const CpuContext&, const DropoutAdd&);
void dropout_backward(const CpuContext&, const DropoutBackward&);
void embedding_forward(const CpuContext&, const EmbeddingForward&);
void embedding_backward(const CpuContext&, const EmbeddingBackward&);
void attention_forward(const CpuContext&, const AttentionForward&);
void attention_backward(const CpuContext&, const AttentionBackward&);
void cross_entropy(const CpuContext&, const CrossEntropy&);
void vocabulary_statistics(const CpuContext&, const VocabularyStatistics&);
void round_exact(const CpuContext&, const RoundExact&);
void sum_of_squares(const CpuContext&, const SumOfSquares&);
void adamw(const CpuContext&, const AdamW&);
void cast_to_bf16(const CpuContext&, const float* x, uint16_t* y, int64_t count);
void clear(const CpuContext&, void* data, int64_t bytes);
void accumulate(const CpuContext&, const int64_t* x, int64_t* sums, int64_t count, bool overwrite);

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE
