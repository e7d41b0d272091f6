#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/kernel_set.h"
#include "kernels/rows.h"
#include "kernels/simt/runtime.h"

/// Launchers of the CUDA kernels, one operation per file of kernels/cuda/. A launcher enqueues on
/// the given stream and neither allocates nor synchronises; it returns cudaErrorInvalidValue for
/// shapes that the kernel does not take, and errors of the launch. All pointers are device memory,
/// aligned to 16 bytes, dense and row-major. `type` is kFloat32 or kBFloat16 and holds for every
/// `void*` of a struct; sums are accumulated in fp32. All results are deterministic: they depend on
/// the shapes and values alone, not on the device.
namespace trainyard::kernels::cuda {

/// Rows are dealt to this many blocks where columns are summed; the partial sums are then added in
/// ascending order. A constant, so that bits do not depend on the device.
inline constexpr int64_t kColumnSumBlocks = 1024;

/// kernels/rows.h's Rows, whose sequences the host does not read.
struct DeviceRows {
  int64_t count = 0;
  const Sequence* sequences = nullptr;
  int64_t sequences_count = 0;
  int64_t longest = 0;                   ///< no sequence is longer
  const int32_t* sequence_of = nullptr;  ///< [count] index of each row's sequence
};

/// Where sums over rows go: added to `sum` in fp32, or rounded once to fixed point and added to
/// `exact` as kernels/kernel_set.h says (the grain is the call). At most one of the two is set;
/// with neither the sums are dropped.
struct GradientSum {
  float* sum = nullptr;
  int64_t* exact = nullptr;
};
/// How partial sums are rounded to int64.
struct ExactRounding {
  int quantum_log2 = 0;
  int64_t partials = 1;          ///< of an element's whole sum, of all calls
  uint32_t* overflow = nullptr;  ///< set to 1 where a partial does not fit
};

/// sum = residual + x + bias; y = (sum - mean) rstd gamma + beta over each row.
struct LayerNormForward {
  int64_t rows = 0, width = 0;  ///< width <= 8192
  float epsilon = 1e-5F;
  DType type = DType::kBFloat16;
  const void* x = nullptr;         ///< [rows, width]
  const void* residual = nullptr;  ///< [rows, width], null: none
  const float* bias = nullptr;     ///< [width] of x, null: none
  const float* gamma = nullptr;    ///< [width]
  const float* beta = nullptr;     ///< [width]; RMSNorm has none
  void* sum = nullptr;    ///< [rows, width] out, null: not written; may alias x or residual
  void* y = nullptr;      ///< [rows, width] out; of the sum as it is rounded to `type`
  float* mean = nullptr;  ///< [rows] out; not by RMSNorm
  float* rstd = nullptr;  ///< [rows] out
};
cudaError_t layer_norm_forward(const LayerNormForward& p, cudaStream_t stream);
/// y = sum rstd gamma, rstd = 1 / sqrt(mean of squares + epsilon).
cudaError_t rms_norm_forward(const LayerNormForward& p, cudaStream_t stream);

/// dx = d_residual + the norm's input gradient; d_gamma, d_beta, and d_bias = column sums of dx as
/// it is rounded to `type`.
struct LayerNormBackward {
  int64_t rows = 0, width = 0;
  DType type = DType::kBFloat16;
  const void* dy = nullptr;          ///< [rows, width]
  const void* x = nullptr;           ///< [rows, width], forward's sum
  const void* d_residual = nullptr;  ///< [rows, width], null: none
  const float* gamma = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  void* dx = nullptr;  ///< [rows, width] out, may alias d_residual
  GradientSum d_gamma, d_beta, d_bias;
  ExactRounding rounding;
  float* scratch = nullptr;  ///< norm_scratch_floats(width)
};
constexpr int64_t norm_scratch_floats(int64_t width) { return kColumnSumBlocks * 3 * width; }
cudaError_t layer_norm_backward(const LayerNormBackward& p, cudaStream_t stream);
cudaError_t rms_norm_backward(const LayerNormBackward& p, cudaStream_t stream);

/// y = gelu(x + bias), tanh approximation; x is the projection without its bias.
struct GeluForward {
  int64_t rows = 0, width = 0;
  DType type = DType::kBFloat16;
  const void* x = nullptr;      ///< [rows, width]
  const float* bias = nullptr;  ///< [width], null: none
  void* y = nullptr;            ///< [rows, width] out
};
cudaError_t gelu_forward(const GeluForward& p, cudaStream_t stream);
/// dx = dy gelu'(x + bias); d_bias = column sums of dx as it is rounded to `type`.
struct GeluBackward {
  int64_t rows = 0, width = 0;
  DType type = DType::kBFloat16;
  const void* dy = nullptr;     ///< [rows, width]
  const void* x = nullptr;      ///< [rows, width]
  const float* bias = nullptr;  ///< [width], null: none
  void* dx = nullptr;           ///< [rows, width] out, may alias dy
  GradientSum d_bias;
  ExactRounding rounding;
  float* scratch = nullptr;  ///< bias_scratch_floats(width)
};
constexpr int64_t bias_scratch_floats(int64_t width) { return kColumnSumBlocks * width; }
cudaError_t gelu_backward(const GeluBackward& p, cudaStream_t stream);
/// d_bias = column sums of dy alone.
struct BiasBackward {
  int64_t rows = 0, width = 0;
  DType type = DType::kBFloat16;
  const void* dy = nullptr;  ///< [rows, width]
  GradientSum d_bias;
  ExactRounding rounding;
  float* scratch = nullptr;  ///< bias_scratch_floats(width)
};
cudaError_t bias_backward(const BiasBackward& p, cudaStream_t stream);

/// y = silu(gate) up, where a row of x is [gate(width) | up(width)].
struct SwigluForward {
  int64_t rows = 0, width = 0;
  DType type = DType::kBFloat16;
  const void* x = nullptr;  ///< [rows, 2 width]
  void* y = nullptr;        ///< [rows, width] out
};
cudaError_t swiglu_forward(const SwigluForward& p, cudaStream_t stream);
struct SwigluBackward {
  int64_t rows = 0, width = 0;
  DType type = DType::kBFloat16;
  const void* dy = nullptr;  ///< [rows, width]
  const void* x = nullptr;   ///< [rows, 2 width]
  void* dx = nullptr;        ///< [rows, 2 width] out, may alias x
};
cudaError_t swiglu_backward(const SwigluBackward& p, cudaStream_t stream);

/// Dropout after a projection, fused with the residual addition. The mask is DropoutKey's
/// (kernels/kernel_set.h), equal to the CPU's to the bit: row_key = 0xFFFFFFFF.
struct DropoutForward {
  DeviceRows rows;  ///< sequences: with dropout only
  int64_t width = 0;
  DropoutKey dropout;
  DType type = DType::kBFloat16;
  const void* x = nullptr;
  const void* residual = nullptr;  ///< null: y = dropout(x)
  void* y = nullptr;               ///< out, may alias x or residual
};
/// Backward is the same operation on dy without a residual.
cudaError_t dropout_add(const DropoutForward& p, cudaStream_t stream);

/// y[r] = wte[tokens[r]] + wpe[position of r]; without wpe, the token's row alone.
struct EmbeddingForward {
  DeviceRows rows;  ///< sequences: with wpe only
  int64_t width = 0;
  DType type = DType::kBFloat16;
  const int32_t* tokens = nullptr;  ///< [rows]
  const void* wte = nullptr;        ///< [vocab, width]
  const void* wpe = nullptr;        ///< [positions, width] or null
  void* y = nullptr;                ///< [rows, width] out
};
cudaError_t embedding_forward(const EmbeddingForward& p, cudaStream_t stream);
/// d_wte[tokens[r]] += dy[r], d_wpe[position] += dy[r], in ascending order of rows. With `exact`
/// targets each row is a grain.
struct EmbeddingBackward {
  DeviceRows rows;  ///< sequences: with d_wpe only
  int64_t width = 0, vocab = 0;
  int64_t positions = 0;  ///< of wpe
  DType type = DType::kBFloat16;
  const int32_t* tokens = nullptr;
  const void* dy = nullptr;
  GradientSum d_wte;  ///< [vocab, width]
  GradientSum d_wpe;  ///< [positions, width]; dropped where not set
  ExactRounding rounding;
  int32_t* scratch = nullptr;  ///< embedding_scratch_ints(rows, vocab)
};
/// Tokens of more rows than that are summed by blocks, others by warps.
inline constexpr int64_t kFrequentTokenRows = 64;
constexpr int64_t embedding_scratch_ints(int64_t rows, int64_t vocab) {
  return rows + 2 * vocab + 2 + rows / kFrequentTokenRows;
}
cudaError_t embedding_backward(const EmbeddingBackward& p, cudaStream_t stream);

/// Rotary position embedding, halves paired: elements i and i + head_dim / 2 of a head are turned
/// by position theta^(-2 i / head_dim). In place on the first `heads` heads of each row.
struct Rope {
  DeviceRows rows;
  int64_t heads = 0;     ///< query heads and key heads, which lie side by side
  int64_t head_dim = 0;  ///< a multiple of 16
  int64_t stride = 0;    ///< elements of a row, a multiple of 8
  DType type = DType::kBFloat16;
  void* qkv = nullptr;
  const float* table = nullptr;  ///< [positions, head_dim / 2, 2]: cosine and sine
  bool backward = false;         ///< turns gradients back
};
cudaError_t rope(const Rope& p, cudaStream_t stream);

/// Softmax cross-entropy over rows of logits, d-logits in their place: softmax - one_hot, the
/// gradient of the loss sum; 0 in ignored rows and in columns from vocab on. Sums as
/// kernels/kernel_set.h's CrossEntropy has them. A part of the batch is a call.
struct CrossEntropy {
  int64_t rows = 0, vocab = 0, padded_vocab = 0;
  DType type = DType::kBFloat16;
  void* logits = nullptr;              ///< [rows, padded_vocab] in, d-logits out
  const int32_t* targets = nullptr;    ///< [rows]; -1: row ignored
  bool loss_only = false;              ///< logits stay
  float* losses = nullptr;             ///< [rows] or null
  int64_t* loss_sum = nullptr;         ///< [1] +=
  int64_t* coarse_loss_sum = nullptr;  ///< [1] += or null
  uint32_t* overflow = nullptr;
};
cudaError_t cross_entropy(const CrossEntropy& p, cudaStream_t stream);

/// One tensor of a multi-tensor AdamW step.
struct AdamWTensor {
  int64_t count = 0;
  int64_t first_block = 0;  ///< set by adamw_blocks
  float weight_decay = 0;
  const float* gradient = nullptr;  ///< either this,
  const int64_t* exact = nullptr;   ///< or fixed point, times AdamWStep's exact_scale
  float* parameter = nullptr;       ///< fp32 master
  float* m = nullptr;
  float* v = nullptr;
  uint16_t* bf16_copy = nullptr;  ///< or null
};
/// Fills in first_block; the number of blocks in all.
int64_t adamw_blocks(AdamWTensor* tensors, int64_t count);
/// The update of kernels/kernel_set.h's AdamW, the same operations in the same order.
struct AdamWStep {
  const AdamWTensor* tensors = nullptr;  ///< in device memory, as adamw_blocks left them
  int64_t tensors_count = 0, blocks = 0;
  float beta1 = 0.9F, beta2 = 0.95F, epsilon = 1e-8F;
  double exact_scale = 1;
  const OptimizerScalars* scalars = nullptr;  ///< in device memory
};
cudaError_t adamw(const AdamWStep& p, cudaStream_t stream);

/// limbs += the gradient's squares, exactly, as kernels/kernel_set.h's SumOfSquares. Each block of
/// 32 Ki elements leaves the lower two limbs of what it adds below 2^kSquareLimbBits.
struct SquaresStep {
  int64_t count = 0;
  const float* gradient = nullptr;  ///< either this,
  const int64_t* exact = nullptr;   ///< or fixed point, times exact_scale
  double exact_scale = 1;
  float gradient_scale = 1;  ///< gradient is multiplied by it, rounded to fp32
  int64_t* limbs = nullptr;  ///< [kSquareLimbs] in device memory
  uint32_t* overflow = nullptr;
};
cudaError_t sum_of_squares(const SquaresStep& p, cudaStream_t stream);
/// exact[i] += fixed(partial[i]): an fp32 partial of one grain, as a GEMM leaves it.
cudaError_t add_exact(const float* partial, int64_t* exact, int64_t count,
                      const ExactRounding& rounding, cudaStream_t stream);
/// y = x, rounded to nearest even where y is bf16.
cudaError_t cast(const void* x, DType from, void* y, DType to, int64_t count, cudaStream_t stream);
/// x[i] = value.
cudaError_t fill(void* x, DType type, float value, int64_t count, cudaStream_t stream);

/// Attention over packed rows [q(heads D) | k(kv_heads D) | v(kv_heads D)]; D is 64 or 128,
/// kv_heads divides heads. A query sees the keys of its sequence, which begins at position 0, and
/// where `causal` those up to itself. Dropout on the probabilities as kernels/kernel_set.h says.
/// bf16 by tensor cores; fp32 without them, as a reference of numerics: slow.
struct AttentionForward {
  DeviceRows rows;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = true;
  int64_t head_offset = 0;  ///< global index of the first head here
  DropoutKey dropout;
  DType type = DType::kBFloat16;
  const void* qkv = nullptr;  ///< [rows, (heads + 2 kv_heads) D]
  void* out = nullptr;        ///< [rows, heads D]
  /// Out, log of the sum of exponentials: of a sequence [heads, length], from begin * heads on.
  float* lse = nullptr;
};
cudaError_t attention_forward(const AttentionForward& p, cudaStream_t stream);
struct AttentionBackward {
  DeviceRows rows;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = true;
  int64_t head_offset = 0;
  DropoutKey dropout;
  DType type = DType::kBFloat16;
  const void* qkv = nullptr;
  const void* out = nullptr;
  const void* d_out = nullptr;
  const float* lse = nullptr;
  void* d_qkv = nullptr;     ///< out, as qkv
  float* scratch = nullptr;  ///< as lse
};
cudaError_t attention_backward(const AttentionBackward& p, cudaStream_t stream);

}  // namespace trainyard::kernels::cuda
