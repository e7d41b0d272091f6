#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/kernel_set.h"

/// Every operation of kernels/kernel_set.h in its plainest form, in double: loops that read like
/// the formula, no blocking, no fixed point. What the kernels of all devices are compared with.
/// Backward passes are themselves proven against finite differences of the forward passes
/// (tests/numeric/kernels/reference_gradient_test.cc). Matrices are row-major and dense.
namespace trainyard::kernels::reference {

using Vector = std::vector<double>;

/// op(A)[M,K] op(B)[K,N].
Vector gemm(int64_t m, int64_t n, int64_t k, const Vector& a, bool transpose_a, const Vector& b,
            bool transpose_b);

struct LayerNormResult {
  Vector y, mean, rstd;
};
LayerNormResult layer_norm(int64_t rows, int64_t width, const Vector& x, const Vector& gamma,
                           const Vector& beta, double epsilon);
struct LayerNormGradient {
  Vector dx, dgamma, dbeta;
};
LayerNormGradient layer_norm_backward(int64_t rows, int64_t width, const Vector& dy,
                                      const Vector& x, const Vector& gamma, double epsilon);

/// x rstd gamma, rstd = 1 / sqrt(mean of squares + epsilon).
Vector rms_norm(int64_t rows, int64_t width, const Vector& x, const Vector& gamma, double epsilon);
/// dbeta is empty.
LayerNormGradient rms_norm_backward(int64_t rows, int64_t width, const Vector& dy, const Vector& x,
                                    const Vector& gamma, double epsilon);

/// Sums over rows.
Vector column_sums(int64_t rows, int64_t width, const Vector& dy);

double gelu(double x);
double gelu_derivative(double x);

/// silu(gate) up, where a row of x is [gate(width) | up(width)].
Vector swiglu(int64_t rows, int64_t width, const Vector& x);
Vector swiglu_backward(int64_t rows, int64_t width, const Vector& dy, const Vector& x);

/// One head of one row, turned by its position: elements i and i + head_dim / 2 are a pair.
/// `direction` -1 turns back.
Vector rope(const Vector& x, int64_t position, double theta, double direction);

/// 0 or 1 / (1 - rate) for the element with philox counter {feature / 4, c1, c2, low32(sample)}.
double dropout_factor(const DropoutKey& key, int64_t sample, uint32_t feature, uint32_t c1,
                      uint32_t c2);

/// wte[token] + wpe[row % tokens_per_sample + offset].
Vector embedding(int64_t width, int64_t tokens_per_sample, int64_t position_offset,
                 const std::vector<int32_t>& tokens, const Vector& wte, const Vector& wpe);
struct EmbeddingGradient {
  Vector d_wte, d_wpe;
};
EmbeddingGradient embedding_backward(int64_t width, int64_t tokens_per_sample,
                                     int64_t position_offset, const std::vector<int32_t>& tokens,
                                     const Vector& dy, int64_t vocab, int64_t positions);

/// A row of qkv is [q(H*D) | k(Hkv*D) | v(Hkv*D)].
struct AttentionShape {
  int64_t tokens = 0, heads = 0, head_dim = 0;
  int64_t kv_heads = 0;  ///< 0: as many as heads
  bool causal = true;
  int64_t window = 0;  ///< keys up to its own that a query sees; 0: no bound
};
/// factor(head, query, key) multiplies a probability: dropout, or 1.
using AttentionFactor = std::function<double(int64_t head, int64_t query, int64_t key)>;
struct AttentionResult {
  Vector out;  ///< [T, H*D]
  Vector lse;  ///< [H, T]
};
/// One sample: qkv is [T, (H + 2 Hkv) D].
AttentionResult attention(const AttentionShape& shape, const Vector& qkv,
                          const AttentionFactor& factor);
/// Gradient of qkv.
Vector attention_backward(const AttentionShape& shape, const Vector& qkv, const Vector& d_out,
                          const AttentionFactor& factor);
/// Of each element of out and of the gradient of qkv, the sum of the magnitudes of its terms: what
/// the error of a computation in finite precision is a multiple of.
struct AttentionMagnitudes {
  Vector out, d_qkv;
};
AttentionMagnitudes attention_magnitudes(const AttentionShape& shape, const Vector& qkv,
                                         const Vector& d_out, const AttentionFactor& factor);

struct CrossEntropyResult {
  Vector losses;    ///< 0 for a target of -1
  Vector d_logits;  ///< [rows, padded_vocab], of the sum of the losses
};
CrossEntropyResult cross_entropy(int64_t rows, int64_t vocab, int64_t padded_vocab,
                                 const Vector& logits, const std::vector<int32_t>& targets);

struct AdamWState {
  Vector parameter, m, v;
};
AdamWState adamw(const AdamW& hyper, const OptimizerScalars& scalars, AdamWState state,
                 const Vector& gradient);

}  // namespace trainyard::kernels::reference
