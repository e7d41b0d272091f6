#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "common/base/check.h"
#include "common/base/dtype.h"
#include "kernels/elements.h"
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
///
/// Types: an implementation says which types of `Elements` it takes, and refuses others by a CHECK.
/// Those of the CPU take activations of fp32 or bf16; the residual stream and gradients that ops
/// hand on are fp32 (DeviceFormats).
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

/// Adds the squares of gradients to their norm, see SumOfSquares: of each sum float(double(sum) *
/// scale), of an fp32 sum that times float(scale). Null limbs: of none.
struct SquaresOfSums {
  double scale = 1;
  int64_t* limbs = nullptr;  ///< [kSquareLimbs] +=
  OverflowFlag* overflow = nullptr;
};

enum class GemmOutput : uint8_t {
  kStore,            ///< C = chain + bias; neither chain_ends nor grains
  kExactRound,       ///< C = float(sum over chains of fixed(chain) * 2^-q) + bias, rounded once
  kExactAccumulate,  ///< C is int64: C += sum over chains of fixed(chain); = where `overwrite`
  /// C is fp32: C += the product, whose sums are cut as the device sees fit; = where `overwrite`.
  /// Only of sets whose DeviceFormats have fp32 sums.
  kAccumulate,
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
  bool overwrite = false;  ///< with either accumulation: what C holds before is not read
  /// With kExactAccumulate: chains of an element's whole sum, of all calls. kExactRound has its
  /// own.
  int64_t partials = 1;
  int quantum_log2 = kActivationQuantumLog2;
  const float* bias = nullptr;  ///< [N] or null; only where C is stored
  void* c = nullptr;
  int64_t ldc = 0;
  DType c_type = DType::kFloat32;  ///< kFloat32 or kBFloat16 (rounded to nearest even at the store)
  OverflowFlag* overflow = nullptr;
  /// With either accumulation and a dense C: adds the squares of what C holds afterwards.
  SquaresOfSums squares;

  /// The product is added to the sums of a gradient, of whichever type they are.
  void add_to(const GradientSum& sums) {
    output = sums.sum != nullptr ? GemmOutput::kAccumulate : GemmOutput::kExactAccumulate;
    c = sums.data();
    c_type = sums.type();
  }
};

/// Not centred, it is RMSNorm: y = x rstd gamma, rstd = 1 / sqrt(mean of squares + epsilon).
struct LayerNormForward {
  int64_t rows = 0, width = 0;
  bool centred = true;
  float epsilon = 1e-5F;
  ConstElements x;               ///< [rows, width]
  const float* gamma = nullptr;  ///< [width]
  const float* beta = nullptr;   ///< [width]; only where centred
  Elements y;                    ///< [rows, width]
  float* mean = nullptr;         ///< [rows] out; only where centred
  float* rstd = nullptr;         ///< [rows] out
};

struct LayerNormBackwardInput {
  int64_t rows = 0, width = 0;
  bool centred = true;
  ConstElements dy;
  ConstElements x;
  const float* gamma = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  Elements dx;  ///< += (the residual path's gradient is already there)
};

struct LayerNormBackwardWeight {
  int64_t rows = 0, width = 0;
  bool centred = true;
  ConstElements dy;
  ConstElements x;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  Grains grains;
  int quantum_log2 = 0;
  int64_t partials = 1;  ///< grains of an element's whole sum, of all calls
  GradientSum dgamma;    ///< [width] +=
  GradientSum dbeta;     ///< [width] +=; only where centred
  OverflowFlag* overflow = nullptr;
};

/// RMSNorm of each query head and each key head of packed projections (AttentionForward) over its
/// head_dim features; values are copied.
struct HeadNormForward {
  int64_t rows = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  float epsilon = 1e-6F;
  ConstElements x;
  const float* query_gamma = nullptr;  ///< [head_dim]
  const float* key_gamma = nullptr;    ///< [head_dim]
  Elements y;                          ///< of the type of x
  float* rstd = nullptr;               ///< [rows, heads + kv_heads] out
};
struct HeadNormBackwardInput {
  int64_t rows = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  ConstElements dy;  ///< of the type of x
  ConstElements x;
  const float* query_gamma = nullptr;
  const float* key_gamma = nullptr;
  const float* rstd = nullptr;
  Elements dx;  ///< of the type of x
};
/// Each head of a grain of rows is a grain.
struct HeadNormBackwardWeight {
  int64_t rows = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  ConstElements dy;  ///< of the type of x
  ConstElements x;
  const float* rstd = nullptr;
  Grains grains;
  int quantum_log2 = 0;
  int64_t partials = 1;       ///< grains of rows of the step, times heads
  GradientSum d_query_gamma;  ///< [head_dim] +=
  GradientSum d_key_gamma;    ///< [head_dim] +=
  OverflowFlag* overflow = nullptr;
};

/// Rotary position embedding of the query heads and key heads of packed projections
/// (AttentionForward), halves paired: with angle = float(position) * frequencies[i] in fp32, and
/// cosine and sine of it in double, rounded to fp32 and multiplied by `scale`, elements
/// (a, b) = (i, i + head_dim / 2) of a head become (a cos - b sin, b cos + a sin). Values are
/// copied. Backward turns gradients back: the sine's sign changes.
struct Rope {
  Rows rows;
  int64_t heads = 0, kv_heads = 0;
  int64_t head_dim = 0;                ///< even
  std::span<const float> frequencies;  ///< [head_dim / 2] radians a position, on the host
  float scale = 1;
  bool backward = false;
  ConstElements x;
  Elements y;  ///< of the type of x; may be x
};

/// y = float(sums) * 2^-kActivationQuantumLog2 + bias: what kExactRound makes of the exact sums
/// that kExactAccumulate leaves, once those of all who have a part of the chains are added up. Of
/// fp32 sums, which kAccumulate leaves, y = sums + bias.
struct RoundExact {
  int64_t rows = 0, width = 0;
  GradientSum sums;             ///< [rows, width], only read; the CPU's sets take exact ones
  const float* bias = nullptr;  ///< [width] or null
  Elements y;                   ///< [rows, width]
  int64_t stride = 0;           ///< from row to row of y; 0: width
};

/// Column sums of dy over grains of rows: d_bias[n] += sum over grains fixed(sum over rows).
struct BiasBackward {
  int64_t rows = 0, width = 0;
  ConstElements dy;  ///< [rows, width], row stride `stride`
  int64_t stride = 0;
  Grains grains;
  int quantum_log2 = 0;
  int64_t partials = 1;  ///< grains of an element's whole sum, of all calls
  GradientSum d_bias;    ///< [width] +=
  OverflowFlag* overflow = nullptr;
};

/// GELU, tanh approximation: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
struct GeluForward {
  int64_t count = 0;
  ConstElements x;
  Elements y;  ///< of the type of x
};
struct GeluBackward {
  int64_t count = 0;
  ConstElements dy;
  ConstElements x;
  Elements dx;  ///< of the type of x
};

/// What gates: SiLU g / (1 + e^-g), or GELU by its tanh approximation.
enum class Activation : uint8_t { kSilu, kGelu };
/// y = activation(gate) up; a row of x is [gate(width) | up(width)].
struct GatedForward {
  int64_t rows = 0, width = 0;
  Activation activation = Activation::kSilu;
  ConstElements x;  ///< [rows, 2 width]
  Elements y;       ///< [rows, width], of the type of x
};
struct GatedBackward {
  int64_t rows = 0, width = 0;
  Activation activation = Activation::kSilu;
  ConstElements dy;  ///< [rows, width]
  ConstElements x;   ///< [rows, 2 width]
  Elements dx;       ///< [rows, 2 width], of the type of x
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
  ConstElements x;
  ConstElements residual;  ///< null: y = dropout(x)
  Elements y;              ///< may alias x or residual
};
/// dx = dy masked and scaled, in the type of the next GEMM's input.
struct DropoutBackward {
  Rows rows;
  int64_t width = 0;
  DropoutKey dropout;
  ConstElements dy;
  Elements dx;
};

/// The tokens whose rows of a table are here: [first, first + count).
struct TokenRange {
  int64_t first = 0;
  int64_t count = std::numeric_limits<int64_t>::max();
};
/// y[r] = wte[token[r]] + wpe[position of r]; without wpe, the token's row alone; without wte, what
/// y holds before takes the place of the token's row. The row of a token that is not among `held`
/// is +0.
struct EmbeddingForward {
  Rows rows;
  int64_t width = 0;
  const int32_t* tokens = nullptr;  ///< [rows]
  TokenRange held;
  ConstElements wte;  ///< [held, width]; null: none
  ConstElements wpe;  ///< [positions, width], of the type of wte; null: none
  Elements y;
};
/// d_wte[token[r]] += fixed(dy[r]) where the token is among `held`; d_wpe[position] +=
/// fixed(dy[r]). Grain: one position.
struct EmbeddingBackward {
  Rows rows;
  int64_t width = 0;
  const int32_t* tokens = nullptr;
  TokenRange held;
  ConstElements dy;
  int quantum_log2 = 0;
  int64_t partials = 1;  ///< positions of an element's whole sum, of all calls
  GradientSum d_wte;
  GradientSum d_wpe;  ///< or not set
  OverflowFlag* overflow = nullptr;
};

/// Keys and values of one of `count` equal blocks of positions of each sample, whatever rank has
/// its rows. Of each sample the rows of a call are as many sequences, one sample after the other,
/// of whole blocks. `key_block` divides the length of a block, unless that is the whole sample.
struct KeyBlock {
  std::span<const Sequence> samples;  ///< with all of their positions
  int64_t index = 0;
  int64_t count = 1;
  ConstElements kv;  ///< [rows of all samples / count, k(KV*D) | v(KV*D)], of the type of qkv
  /// What is kept from call to call, of each sequence of `rows` [heads, length], from begin * heads
  /// on: the running O, or dQ, of D features to a multiple of kCarryLanes; in the forward pass also
  /// the running maximum and the running sum.
  float* carry = nullptr;
  float* row_max = nullptr;
  float* row_sum = nullptr;
  /// Backward: dK and dV, += exact sums of the rows of the call. [rows of kv, 2 KV*D]
  int64_t* d_kv = nullptr;
  int64_t sharers = 1;  ///< ranks, each with as many query heads, that the sums are then added over

  static constexpr int64_t kCarryLanes = 16;
  /// What `carry` has of a row of a head.
  static constexpr int64_t features(int64_t head_dim) {
    return (head_dim + kCarryLanes - 1) / kCarryLanes * kCarryLanes;
  }
};

/// Causal multi-head attention over packed projections: row r of qkv is
/// [q(H*D) | k(KV*D) | v(KV*D)], KV kv_heads, a divisor of H; query head h reads key and value head
/// h / (H / KV).
/// Each sequence, which begins at position 0, sees itself alone; of it a query sees its own key and
/// those before, of these the last `window`. Each query row merges the key blocks of `key_block`
/// positions that it sees in ascending order (online softmax). Dropout on the probabilities:
/// element (ordinal, head, query, key) uses the philox counter {key / 4, query, head,
/// low32(ordinal)} with DropoutKey's key.
///
/// Ranks that share sequences in a ring call it once per KeyBlock, in ascending order.
struct AttentionForward {
  Rows rows;
  /// Null: the keys and values of `rows`.
  const KeyBlock* keys = nullptr;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t head_offset = 0;  ///< global index of the first head here
  int64_t key_block = 128;
  int64_t window = 0;  ///< keys that a query sees, its own included; 0: no bound
  /// false: a query sees the keys after its own, too. No CPU set takes it.
  bool causal = true;
  DropoutKey dropout;
  ConstElements qkv;  ///< [rows, (H + 2 KV)*D]
  Elements out;       ///< [rows, H*D], of the type of qkv
  /// Log-sum-exp, saved for backward: of a sequence [heads, length], from begin * heads on.
  float* lse = nullptr;
  OverflowFlag* overflow = nullptr;
};
/// dK, dV are exact sums (quantum kActivationQuantumLog2) over grains of `key_block` query
/// positions of each query head that reads them; dQ is one fp32 chain over ascending key blocks.
/// With a KeyBlock, d_qkv gets dQ of the sequences that end with it, and no dK and dV.
struct AttentionBackward {
  Rows rows;
  const KeyBlock* keys = nullptr;  ///< null: the keys and values of `rows`
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t head_offset = 0;
  int64_t key_block = 128;
  int64_t window = 0;
  bool causal = true;
  DropoutKey dropout;
  ConstElements qkv;
  ConstElements out;
  const float* lse = nullptr;
  ConstElements d_out;  ///< [rows, H*D]
  Elements d_qkv;       ///< of the type of qkv
  OverflowFlag* overflow = nullptr;
};

/// What a rank has of a vocabulary that several share out, each of them whole pieces.
struct VocabularyPart {
  int64_t first = 0;   ///< column of the whole that is the first one here
  int64_t ranks = 1;   ///< that share it out
  int64_t pieces = 0;  ///< of the rank that has most
  /// [ranks, rows, 2 pieces + 1], by VocabularyStatistics of all ranks in ascending order of their
  /// columns; null: the vocabulary is whole here.
  const float* statistics = nullptr;

  /// Statistics of a row of one rank.
  int64_t columns() const { return 2 * pieces + 1; }
};

/// Of each row and each piece of the columns here: the largest logit and the sum of exponentials,
/// of a piece without columns that count -infinity and 0; after `pieces` of them the target's
/// logit, 0 where it is not here.
struct VocabularyStatistics {
  int64_t rows = 0, vocab = 0, padded_vocab = 0;
  ChainEnds piece_ends;
  const float* logits = nullptr;
  const int32_t* targets = nullptr;
  VocabularyPart part;          ///< but for its statistics
  float* statistics = nullptr;  ///< [rows, 2 pieces + 1] out
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
  ConstElements logits;                ///< [rows, padded_vocab]; the CPU's sets take fp32
  const int32_t* targets = nullptr;    ///< [rows]; -1: row ignored
  int64_t* loss_sum = nullptr;         ///< [1] +=
  int64_t* coarse_loss_sum = nullptr;  ///< [1] += or null
  Elements d_logits;  ///< [rows, padded_vocab]; may be the logits where of their type
  OverflowFlag* overflow = nullptr;
  /// Where ranks share the vocabulary out. `vocab`, `padded_vocab` and `piece_ends` are then those
  /// of the columns here.
  VocabularyPart part;
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

/// A step's gradient as the optimizer reads it: exact sums, of which element i is
/// float(double(sums[i]) * scale), rounded once, scale = 2^-q / targets; or fp32 values: what has
/// been rounded so before, or fp32 sums, which `scale` does not touch.
struct StepGradient {
  const int64_t* sums = nullptr;
  double scale = 1;
  const float* rounded = nullptr;  ///< in place of the sums, where set
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
  StepGradient gradient;
  float rounded_scale = 1;   ///< fp32 elements of the gradient are multiplied by it
  float* rounded = nullptr;  ///< [count] the gradient's elements, or null; overlaps nothing else
  int64_t* limbs = nullptr;  ///< [kSquareLimbs] +=; null: another rank counts these elements
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
  StepGradient gradient;
  float* parameter = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  /// [count] the new parameter rounded to nearest even, or null; untouched by a skipped step.
  uint16_t* bf16_copy = nullptr;
  const OptimizerScalars* scalars = nullptr;
};

/// Twice the pairs of a query and a key that attention counts in a sequence: length^2, of which a
/// window leaves out (length - window)^2.
constexpr int64_t attention_pairs(int64_t length, int64_t window) {
  const int64_t hidden = window > 0 && window < length ? length - window : 0;
  return length * length - hidden * hidden;
}

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
  virtual void head_norm_forward(const HeadNormForward&) = 0;
  virtual void head_norm_backward_input(const HeadNormBackwardInput&) = 0;
  virtual void head_norm_backward_weight(const HeadNormBackwardWeight&) = 0;
  virtual void rope(const Rope&) = 0;
  virtual void bias_backward(const BiasBackward&) = 0;
  virtual void gelu_forward(const GeluForward&) = 0;
  virtual void gelu_backward(const GeluBackward&) = 0;
  virtual void gated_forward(const GatedForward&) = 0;
  virtual void gated_backward(const GatedBackward&) = 0;
  virtual void dropout_add(const DropoutAdd&) = 0;
  virtual void dropout_backward(const DropoutBackward&) = 0;
  virtual void embedding_forward(const EmbeddingForward&) = 0;
  virtual void embedding_backward(const EmbeddingBackward&) = 0;
  virtual void attention_forward(const AttentionForward&) = 0;
  virtual void attention_backward(const AttentionBackward&) = 0;
  virtual void cross_entropy(const CrossEntropy&) = 0;
  // Of sets that tensor ranks compute with.
  virtual void round_exact(const RoundExact&) { TRAINYARD_CHECK(false); }
  virtual void vocabulary_statistics(const VocabularyStatistics&) { TRAINYARD_CHECK(false); }
  virtual void sum_of_squares(const SumOfSquares&) = 0;
  /// Tensors that are updated together, of one step: a device may launch them as one kernel.
  virtual void adamw(std::span<const AdamW> tensors) = 0;
  /// fp32 -> bf16, nearest even.
  virtual void cast_to_bf16(const float* x, uint16_t* y, int64_t count) = 0;
  /// Zero bytes.
  virtual void clear(void* data, int64_t bytes) = 0;
  /// Within the device's memory. The ranges do not overlap.
  virtual void copy(const void* from, void* to, int64_t bytes) = 0;
  /// Adds sums to others of the same type, exact ones of the same quantum, or puts them in their
  /// place (`overwrite`). Exact ones must not wrap, as those of one step do not. `x` is only read.
  virtual void accumulate(const GradientSum& x, const GradientSum& sums, int64_t count,
                          bool overwrite) = 0;

  virtual KernelCounters counters() const = 0;
};

}  // namespace trainyard::kernels
