#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/dtype.h"
#include "kernels/rows.h"

/// The operations that a device gives the engine. Every function enqueues on the set's one stream
/// (the CPU sets run it at once, over their thread pool) and neither allocates nor synchronises.
///
/// Canonical numerics, the rules all implementations of one device kind keep to the bit, whatever
/// the instruction set or thread count (docs/concepts/canonical-numerics.md):
///  * a GEMM chain is acc = fma(a, b, acc) over ascending k from +0, one accumulator per element;
///    bf16 input: acc = acc + (even + odd) per 32 elements counted from the chain's start, each a
///    chain of fmas from +0 over those of even or odd k, as TDPBF16PS does; tails padded with +0;
///  * sums across a row (layer norm, softmax, norms) use 16 lanes (element i goes to lane i % 16,
///    ascending; missing elements contribute the identity) and then the fixed tree 8, 4, 2, 1;
///  * own exp, tanh, rsqrt; no libm; FTZ and DAZ set in every thread;
///  * a sum that a layout can split is fixed point (`ExactSum`): the fp32 partial of one grain,
///    times 2^q, rounded to nearest-even int64, added. A partial that is not finite or whose
///    magnitude times 2^q reaches 2^fitting_log2(partials of the whole sum) sets the overflow flag
///    and adds nothing.
///
/// Shapes: M rows are token rows (kernels/rows.h).
namespace trainyard::kernels {

enum class Isa : uint8_t { kGeneric, kAvx2, kAvx512, kAvx512Bf16, kAmx };
std::string_view name_of(Isa isa);

/// Set to non-zero when an exact partial overflowed or was not finite. Lives in device memory.
using OverflowFlag = uint32_t;

/// What a partial of a sum of `partials`, over all calls, micro-batches and ranks, must stay below,
/// its quantum being 1: so many add up to less than 2^62, in whatever order and groups, and two
/// such sums to what an int64 holds. A limit that followed the sum so far would depend on the
/// layout.
constexpr int fitting_log2(int64_t partials) {
  return 62 - (partials > 1 ? std::bit_width(static_cast<uint64_t>(partials - 1)) : 0);
}

/// Ends of the chains along a summed dimension, ascending; the last equals its length.
/// Empty means one chain.
using ChainEnds = std::span<const int64_t>;

/// Quantum of forward sums and activation gradients (row-parallel Y, column-parallel dX, dK, dV).
inline constexpr int kActivationQuantumLog2 = 40;
/// Quantum of the reported loss, whose exact sum is modulo 2^64: a model that diverged wraps it.
inline constexpr int kLossQuantumLog2 = 32;
/// Quantum of its coarse twin, which says how often. It lacks less than one quantum for each loss:
/// of kLossesMax of them together less than the 2^32 nats that the exact sum spans.
inline constexpr int kCoarseLossQuantumLog2 = 3;
inline constexpr int64_t kLossesMax = int64_t{1} << 35;
/// A loss of 2^25 nats does not fit: the coarse sum holds kLossesMax of those that do.
inline constexpr int kLossLimitLog2 = 25;
/// A sum of squares is held in three limbs, the lowest first: of quanta 2^-100, 2^-58 and 2^-16.
inline constexpr int kSquareLimbs = 3;
inline constexpr int kSquareQuantumLog2 = 100;
inline constexpr int kSquareLimbBits = 42;
/// What the highest limb must stay below, a sum of 2^34: those of 4,096 ranks together fit.
inline constexpr int64_t kSquareLimit = int64_t{1} << 50;

enum class GemmOutput : uint8_t {
  kStore,            ///< C = chain + bias; neither chain_ends nor grains
  kExactRound,       ///< C = float(sum over chains of fixed(chain) * 2^-q) + bias, rounded once
  kExactAccumulate,  ///< C is int64: C += sum over chains of fixed(chain); = where `overwrite`
};

/// C[M,N] = op(A)[M,K] op(B)[K,N]; all row-major.
struct GemmParams {
  int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;  ///< [M,K], or [K,M] where transpose_a
  int64_t lda = 0;
  bool transpose_a = false;
  const void* b = nullptr;  ///< [K,N], or [N,K] where transpose_b
  int64_t ldb = 0;
  bool transpose_b = false;
  DType input = DType::kFloat32;  ///< of A and B: kFloat32 or kBFloat16
  ChainEnds chain_ends;           ///< along K; either these
  Grains grains;                  ///< or these, where K are token rows
  GemmOutput output = GemmOutput::kStore;
  bool overwrite = false;  ///< with kExactAccumulate: what C holds before is not read
  /// With kExactAccumulate: chains of an element's whole sum, of all calls. kExactRound has its
  /// own.
  int64_t partials = 1;
  int quantum_log2 = kActivationQuantumLog2;
  const float* bias = nullptr;  ///< [N] or null; not with kExactAccumulate
  void* c = nullptr;
  int64_t ldc = 0;
  DType c_type = DType::kFloat32;  ///< kFloat32 or kBFloat16 (rounded to nearest even at the store)
  OverflowFlag* overflow = nullptr;
};

struct LayerNormForward {
  int64_t rows = 0, width = 0;
  float epsilon = 1e-5F;
  const float* x = nullptr;      ///< [rows, width]
  const float* gamma = nullptr;  ///< [width]
  const float* beta = nullptr;   ///< [width]
  void* y = nullptr;             ///< [rows, width] of y_type
  DType y_type = DType::kFloat32;
  float* mean = nullptr;  ///< [rows] out
  float* rstd = nullptr;  ///< [rows] out
};

struct LayerNormBackwardInput {
  int64_t rows = 0, width = 0;
  const float* dy = nullptr;
  const float* x = nullptr;
  const float* gamma = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  float* dx = nullptr;  ///< += (the residual path's gradient is already there)
};

struct LayerNormBackwardWeight {
  int64_t rows = 0, width = 0;
  const float* dy = nullptr;
  const float* x = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  Grains grains;
  int quantum_log2 = 0;
  int64_t partials = 1;       ///< grains of an element's whole sum, of all calls
  int64_t* dgamma = nullptr;  ///< [width] +=
  int64_t* dbeta = nullptr;   ///< [width] +=
  OverflowFlag* overflow = nullptr;
};

/// Column sums of dy over grains of rows: d_bias[n] += sum over grains fixed(sum over rows).
struct BiasBackward {
  int64_t rows = 0, width = 0;
  const void* dy = nullptr;  ///< [rows, width], row stride `stride`
  int64_t stride = 0;
  DType dy_type = DType::kFloat32;
  Grains grains;
  int quantum_log2 = 0;
  int64_t partials = 1;       ///< grains of an element's whole sum, of all calls
  int64_t* d_bias = nullptr;  ///< [width] +=
  OverflowFlag* overflow = nullptr;
};

/// GELU, tanh approximation: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
struct GeluForward {
  int64_t count = 0;
  const void* x = nullptr;
  void* y = nullptr;
  DType type = DType::kFloat32;  ///< of x and y
};
struct GeluBackward {
  int64_t count = 0;
  const float* dy = nullptr;
  const void* x = nullptr;  ///< of `type`
  void* dx = nullptr;       ///< of `type`
  DType type = DType::kFloat32;
};

/// Where dropout draws its mask from. Element (ordinal, position, feature) is kept iff
/// word(feature % 4) of philox4x32({feature / 4, position, row_key, low32(ordinal)},
/// key) >= threshold, key = low/high words of mix64(mix64(seed ^ mix64(op)) ^ high32(ordinal)),
/// threshold = uint32(rate * 2^32); kept elements are scaled by 1 / (1 - rate).
struct DropoutKey {
  float rate = 0;  ///< 0: no dropout, nothing drawn
  uint64_t seed = 0;
  uint64_t op = 0;
};

/// y = residual + dropout(x). row_key = 0xFFFFFFFF.
struct DropoutAdd {
  Rows rows;
  int64_t width = 0;
  DropoutKey dropout;
  const float* x = nullptr;
  const float* residual = nullptr;  ///< null: y = dropout(x)
  float* y = nullptr;               ///< may alias x or residual
};
/// dx = dy masked and scaled, written in dx_type (the next GEMM's input).
struct DropoutBackward {
  Rows rows;
  int64_t width = 0;
  DropoutKey dropout;
  const float* dy = nullptr;
  void* dx = nullptr;
  DType dx_type = DType::kFloat32;
};

/// y[r] = wte[token[r]] + wpe[position of r].
struct EmbeddingForward {
  Rows rows;
  int64_t width = 0;
  const int32_t* tokens = nullptr;  ///< [rows]
  DType type = DType::kFloat32;     ///< of wte and wpe
  const void* wte = nullptr;        ///< [vocab, width]
  const void* wpe = nullptr;        ///< [positions, width]
  float* y = nullptr;
};
/// d_wte[token[r]] += fixed(dy[r]); d_wpe[position] += fixed(dy[r]). Grain: one position.
struct EmbeddingBackward {
  Rows rows;
  int64_t width = 0;
  const int32_t* tokens = nullptr;
  const float* dy = nullptr;
  int quantum_log2 = 0;
  int64_t partials = 1;  ///< positions of an element's whole sum, of all calls
  int64_t* d_wte = nullptr;
  int64_t* d_wpe = nullptr;
  OverflowFlag* overflow = nullptr;
};

/// Causal multi-head attention over packed projections: row r of qkv is [q(H*D) | k(H*D) | v(H*D)].
/// Each sequence, which begins at position 0, sees itself alone. Each query row merges key blocks
/// of `key_block` positions in ascending order (online softmax). Dropout on the probabilities:
/// element (ordinal, head, query, key) uses the philox counter {key / 4, query, head,
/// low32(ordinal)} with DropoutKey's key.
struct AttentionForward {
  Rows rows;
  int64_t heads = 0, head_dim = 0;
  int64_t head_offset = 0;  ///< global index of the first head here
  int64_t key_block = 128;
  DropoutKey dropout;
  DType type = DType::kFloat32;  ///< of qkv and out
  const void* qkv = nullptr;     ///< [rows, 3*H*D]
  void* out = nullptr;           ///< [rows, H*D]
  /// Log-sum-exp, saved for backward: of a sequence [heads, length], from begin * heads on.
  float* lse = nullptr;
  OverflowFlag* overflow = nullptr;
};
/// dK, dV are exact sums (quantum kActivationQuantumLog2) over grains of `key_block` query
/// positions; dQ is one fp32 chain over ascending key blocks.
struct AttentionBackward {
  Rows rows;
  int64_t heads = 0, head_dim = 0;
  int64_t head_offset = 0;
  int64_t key_block = 128;
  DropoutKey dropout;
  DType type = DType::kFloat32;
  const void* qkv = nullptr;
  const void* out = nullptr;
  const float* lse = nullptr;
  const float* d_out = nullptr;  ///< [rows, H*D] fp32
  void* d_qkv = nullptr;         ///< of `type`
  OverflowFlag* overflow = nullptr;
};

/// Softmax cross-entropy over rows of logits in pieces of the vocabulary: per piece (max, sum of
/// exponentials), pieces combined in ascending order; columns >= vocab are excluded.
/// loss_sum += sum over rows of fixed(loss, kLossQuantumLog2), modulo 2^64; coarse_loss_sum += the
/// same of each row's whole kCoarseLossQuantumLog2 quanta. A loss of 2^kLossLimitLog2
/// does not fit. d_logits = softmax - one_hot
/// (gradient of the loss *sum*), 0 in excluded columns; null: loss only.
struct CrossEntropy {
  int64_t rows = 0, vocab = 0, padded_vocab = 0;
  ChainEnds piece_ends;                ///< along the padded vocabulary
  const float* logits = nullptr;       ///< [rows, padded_vocab]
  const int32_t* targets = nullptr;    ///< [rows]; -1: row ignored
  int64_t* loss_sum = nullptr;         ///< [1] +=
  int64_t* coarse_loss_sum = nullptr;  ///< [1] += or null
  void* d_logits = nullptr;            ///< [rows, padded_vocab] of d_type
  DType d_type = DType::kFloat32;
  OverflowFlag* overflow = nullptr;
};

/// Scalars of the optimizer step, in device memory, never on the host's critical path.
struct OptimizerScalars {
  double gradient_norm;  ///< of the mean gradient, before clipping
  float clip_scale;      ///< gradients are multiplied by this: makes them the mean, and clips it
  float learning_rate;
  float bias_correction1;  ///< 1 / (1 - beta1^t)
  float bias_correction2;  ///< 1 / (1 - beta2^t)
  uint32_t skip;           ///< non-zero: the step leaves parameters and moments untouched
};

/// What the optimizer reads of a gradient: its exact sums. Element i is float(double(sums[i]) *
/// scale), rounded once, scale = 2^-q / targets.
struct ExactGradient {
  const int64_t* sums = nullptr;
  double scale = 1;
};

/// limbs += sum of the gradient's squares, an exact sum whose grain is one element: its square in
/// double, which is exact, is split into multiples of the quanta, its rest rounded to nearest even.
/// |g| < 2^14, as every mean gradient that an int64 sum holds; another element sets the overflow
/// flag and adds nothing. So does a part that one thread adds up and that reaches kSquareLimit by
/// itself; the flag is set as well once the highest limb reaches it. The whole does, too, then, and
/// says the same once it is carried. Each part leaves the lower two limbs of what it adds below
/// 2^kSquareLimbBits, so that 2^20 parts fit before anything is carried.
struct SumOfSquares {
  int64_t count = 0;
  ExactGradient gradient;
  int64_t* limbs = nullptr;  ///< [kSquareLimbs] +=
  OverflowFlag* overflow = nullptr;
};

/// AdamW (Loshchilov & Hutter 2019) with decoupled decay, fp32 states:
/// g = clip*grad; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
/// p -= lr * (m*bc1 / (sqrt(v*bc2) + eps) + decay*p). Every operation fp32 in this order; decay
/// first, as PyTorch: p *= 1 - lr*decay.
struct AdamW {
  int64_t count = 0;
  float beta1 = 0.9F, beta2 = 0.95F, epsilon = 1e-8F;
  float weight_decay = 0;
  ExactGradient gradient;
  float* parameter = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  /// [count] the new parameter rounded to nearest even, or null; untouched by a skipped step.
  uint16_t* bf16_copy = nullptr;
  const OptimizerScalars* scalars = nullptr;
};

/// Floating point operations and bytes of memory traffic asked for, by formula, since construction.
struct KernelCounters {
  int64_t gemm_flops = 0;
  int64_t attention_flops = 0;
};

class KernelSet {
 public:
  virtual ~KernelSet() = default;

  /// Scratch for packing and partial sums that any call below may need, fixed at construction;
  /// the caller lends it once, before the first call, 64-byte aligned.
  virtual int64_t scratch_bytes() const = 0;
  virtual void set_scratch(std::span<std::byte> scratch) = 0;

  virtual void gemm(const GemmParams&) = 0;
  virtual void layer_norm_forward(const LayerNormForward&) = 0;
  virtual void layer_norm_backward_input(const LayerNormBackwardInput&) = 0;
  virtual void layer_norm_backward_weight(const LayerNormBackwardWeight&) = 0;
  virtual void bias_backward(const BiasBackward&) = 0;
  virtual void gelu_forward(const GeluForward&) = 0;
  virtual void gelu_backward(const GeluBackward&) = 0;
  virtual void dropout_add(const DropoutAdd&) = 0;
  virtual void dropout_backward(const DropoutBackward&) = 0;
  virtual void embedding_forward(const EmbeddingForward&) = 0;
  virtual void embedding_backward(const EmbeddingBackward&) = 0;
  virtual void attention_forward(const AttentionForward&) = 0;
  virtual void attention_backward(const AttentionBackward&) = 0;
  virtual void cross_entropy(const CrossEntropy&) = 0;
  virtual void sum_of_squares(const SumOfSquares&) = 0;
  virtual void adamw(const AdamW&) = 0;
  /// fp32 -> bf16, nearest even.
  virtual void cast_to_bf16(const float* x, uint16_t* y, int64_t count) = 0;
  /// Zero bytes.
  virtual void clear(void* data, int64_t bytes) = 0;
  /// Adds exact sums to others of the same quantum, or puts them in their place (`overwrite`). They
  /// must not wrap, as those of one step do not.
  virtual void accumulate(const int64_t* x, int64_t* sums, int64_t count, bool overwrite) = 0;

  virtual KernelCounters counters() const = 0;
};

}  // namespace trainyard::kernels
