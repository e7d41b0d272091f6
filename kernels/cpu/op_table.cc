#include "kernels/cpu/op_table.h"

#include "kernels/cpu/exact.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/ops.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {
namespace {

void exp16(const float* x, float* y) { store(y, exp(load(x))); }
void log16(const float* x, float* y) { store(y, log(load(x))); }
void sigmoid16(const float* x, float* y) { store(y, sigmoid(load(x)).value); }
void fma16(const float* a, const float* b, const float* c, float* y) {
  store(y, fma(load(a), load(b), load(c)));
}
void dot_bf16_by_fma16(const uint32_t* a, const uint32_t* b, const float* c, float* y) {
  const U32x16 high = broadcast_u32(0xFFFF0000U);
  const U32x16 x = load_u32(a);
  const U32x16 z = load_u32(b);
  const F32x16 odd = fma(as_float(x & high), as_float(z & high), load(c));
  store(y, fma(as_float(shift_left(x, 16)), as_float(shift_left(z, 16)), odd));
}
void dot_bf16_16(const uint32_t* a, const uint32_t* b, const float* c, float* y) {
#if TRAINYARD_CPU_ISA >= TRAINYARD_ISA_AVX512_BF16
  store(y, dot_bf16(load_u32(a), load_u32(b), load(c)));
#else
  dot_bf16_by_fma16(a, b, c, y);
#endif
}
void to_bf16_16(const float* x, uint16_t* y) { store(y, load(x)); }
bool fixed16(const float* x, int quantum_log2, int limit_log2, int64_t* y) {
  OverflowFlag flag{0};
  FixedPoint fixed(quantum_log2, limit_log2);
  store_i64(y, fixed.convert(load(x), kLanes));
  fixed.report(&flag);
  return flag == 0;
}
void int64_to_float16(const int64_t* x, float* y) { store(y, to_float(load_i64(x))); }
void int64_to_double16(const int64_t* x, double* y) {
  const F64x16 d = to_double(load_i64(x));
  __builtin_memcpy(y, &d, sizeof(d));
}

constexpr OpTable kOpTable = {
    .gemm = gemm,
    .layer_norm_forward = layer_norm_forward,
    .layer_norm_backward_input = layer_norm_backward_input,
    .layer_norm_backward_weight = layer_norm_backward_weight,
    .head_norm_forward = head_norm_forward,
    .head_norm_backward_input = head_norm_backward_input,
    .head_norm_backward_weight = head_norm_backward_weight,
    .rope = rope,
    .bias_backward = bias_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .gated_forward = gated_forward,
    .gated_backward = gated_backward,
    .dropout_add = dropout_add,
    .dropout_backward = dropout_backward,
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .cross_entropy = cross_entropy,
    .vocabulary_statistics = vocabulary_statistics,
    .round_exact = round_exact,
    .sum_of_squares = sum_of_squares,
    .adamw = adamw,
    .cast_to_bf16 = cast_to_bf16,
    .clear = clear,
    .accumulate = accumulate,
    .exp16 = exp16,
    .log16 = log16,
    .sigmoid16 = sigmoid16,
    .fma16 = fma16,
    .dot_bf16_16 = dot_bf16_16,
    .dot_bf16_by_fma16 = dot_bf16_by_fma16,
    .to_bf16_16 = to_bf16_16,
    .fixed16 = fixed16,
    .int64_to_float16 = int64_to_float16,
    .int64_to_double16 = int64_to_double16,
};

}  // namespace

const OpTable& op_table() { return kOpTable; }

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE
