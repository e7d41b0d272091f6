#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/dtype.h"
#include "kernels/kernel_set.h"
#include "kernels/rows.h"
#include "kernels/simt/runtime.h"

/// Launchers of the CUDA kernels, one operation per file of kernels/cuda/. A launcher enqueues on
/// the given stream and neither allocates nor synchronises; it returns cudaErrorInvalidValue for
/// shapes that the kernel does not take, and errors of the launch. All pointers are device memory,
/// aligned to 16 bytes, dense and row-major. Operations of kernels/kernel_set.h take its structs;
/// the elements of a struct have one type, kFloat32 or kBFloat16, where nothing else is said. Host
/// memory in them (`rows`, `grains`, `frequencies`) is not read: what the kernels read in its place
/// is an argument. All rows of a call are one grain where nothing else is said. The structs below
/// are those of what a kernel does beyond that. Sums are accumulated in fp32. All results are
/// deterministic: they depend on the shapes and values alone, not on the device.
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

/// How partial sums are rounded to int64.
struct ExactRounding {
  int quantum_log2 = 0;
  int64_t partials = 1;          ///< of an element's whole sum, of all calls
  uint32_t* overflow = nullptr;  ///< set to 1 where a partial does not fit
};

/// What a norm adds to its x first: sum = residual + x + bias, rounded to the type of x.
struct NormAddends {
  ConstElements residual;       ///< [rows, width], null: none
  const float* bias = nullptr;  ///< [width], null: none
  Elements sum;                 ///< [rows, width] out, null: not written; may be x or residual
};
/// Both norms; width <= 8192.
cudaError_t layer_norm_forward(const LayerNormForward& p, const NormAddends& addends,
                               cudaStream_t stream);

/// dx = d_residual + the norm's input gradient; d_gamma, d_beta, and d_bias = column sums of dx as
/// it is rounded to its type.
struct LayerNormBackward {
  int64_t rows = 0, width = 0;
  bool centred = true;
  ConstElements dy;          ///< [rows, width]
  ConstElements x;           ///< [rows, width], forward's sum
  ConstElements d_residual;  ///< [rows, width], null: none
  const float* gamma = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  Elements dx;  ///< [rows, width] out, may be d_residual; null: sums alone
  GradientSum d_gamma, d_beta, d_bias;
  ExactRounding rounding;
  float* scratch = nullptr;  ///< norm_scratch_floats(width)
};
constexpr int64_t norm_scratch_floats(int64_t width) { return kColumnSumBlocks * 3 * width; }
cudaError_t layer_norm_backward(const LayerNormBackward& p, cudaStream_t stream);

/// y = gelu(x + bias): of rows of `width`, whose bias [width] is null where x has it already.
cudaError_t gelu_forward(const GeluForward& p, int64_t width, const float* bias,
                         cudaStream_t stream);
/// Rows of dy are dense. `scratch`: bias_scratch_floats(width).
cudaError_t bias_backward(const BiasBackward& p, float* scratch, cudaStream_t stream);
constexpr int64_t bias_scratch_floats(int64_t width) { return kColumnSumBlocks * width; }
/// dx = dy gelu'(x + bias), which may be dy; and bias_backward() of `sums`, whose dy is dx.
cudaError_t gelu_backward(const GeluBackward& p, const float* bias, const BiasBackward& sums,
                          float* scratch, cudaStream_t stream);

/// Of Activation::kSilu alone; dx may alias x.
cudaError_t gated_forward(const GatedForward& p, cudaStream_t stream);
cudaError_t gated_backward(const GatedBackward& p, cudaStream_t stream);

/// The mask is that of the CPU to the bit. Without dropout the sequences of `rows` are not read.
/// Backward is the same operation on dy without a residual.
cudaError_t dropout_add(const DropoutAdd& p, const DeviceRows& rows, cudaStream_t stream);

/// Tokens are device memory. Without wpe the sequences of `rows` are not read.
cudaError_t embedding_forward(const EmbeddingForward& p, const DeviceRows& rows,
                              cudaStream_t stream);
/// Tokens of more rows than that are summed by blocks, others by warps.
inline constexpr int64_t kFrequentTokenRows = 64;
constexpr int64_t embedding_scratch_ints(int64_t rows, int64_t tokens) {
  return rows + 2 * tokens + 2 + rows / kFrequentTokenRows;
}
/// Each row is a grain. d_wte has the rows of all tokens of `held`; without any it gets nothing.
/// d_wpe has `positions` rows, and without it the sequences of `rows` are not read.
/// `scratch`: embedding_scratch_ints(rows, tokens held).
cudaError_t embedding_backward(const EmbeddingBackward& p, const DeviceRows& rows,
                               int64_t positions, int32_t* scratch, cudaStream_t stream);

/// `table`: [positions, head_dim / 2, 2], cosine and sine, times the scale; head_dim is a multiple
/// of 16.
cudaError_t rope(const Rope& p, const DeviceRows& rows, const float* table, cudaStream_t stream);

/// RMSNorm of the query and key heads of packed projections, as kernels/kernel_set.h says; head_dim
/// is 32, 64, 96 or 128. In the gradient of the weights all rows and heads of a call are one grain,
/// whatever `grains` says.
cudaError_t head_norm_forward(const HeadNormForward& p, cudaStream_t stream);
cudaError_t head_norm_backward_input(const HeadNormBackwardInput& p, cudaStream_t stream);
/// `scratch`: head_norm_scratch_floats(head_dim).
cudaError_t head_norm_backward_weight(const HeadNormBackwardWeight& p, float* scratch,
                                      cudaStream_t stream);
constexpr int64_t head_norm_scratch_floats(int64_t head_dim) {
  return kColumnSumBlocks * 2 * head_dim;
}

/// Logits are fp32 or bf16, d-logits of their type or bf16; targets are device memory. A part of
/// the batch is a call, and `piece_ends` are not read. With VocabularyPart::statistics logits are
/// fp32, and the loss is that of the pieces in them; without, the vocabulary is one piece.
cudaError_t cross_entropy(const CrossEntropy& p, cudaStream_t stream);
/// Of pieces of one length. `piece_ends` are read at the call; targets are device memory.
cudaError_t vocabulary_statistics(const VocabularyStatistics& p, cudaStream_t stream);
/// Rows of y are dense.
cudaError_t round_exact(const RoundExact& p, cudaStream_t stream);

/// Any number of tensors, several per launch.
cudaError_t adamw(std::span<const AdamW> tensors, cudaStream_t stream);

/// Each block of 32 Ki elements leaves the lower two limbs of what it adds below
/// 2^kSquareLimbBits.
cudaError_t sum_of_squares(const SumOfSquares& p, cudaStream_t stream);
/// exact[i] += fixed(partial[i]), or = where `overwrite`: an fp32 partial of one grain, as a GEMM
/// leaves it. With `squares`, the limbs that sum_of_squares() adds for `exact` afterwards, without
/// a pass over it: each block of 8 Ki elements leaves the lower two below 2^kSquareLimbBits.
cudaError_t add_exact(const float* partial, int64_t* exact, int64_t count,
                      const ExactRounding& rounding, cudaStream_t stream, bool overwrite = false,
                      const SquaresOfSums& squares = {});
/// sums[i] += x[i], both of one type.
cudaError_t add_sums(const GradientSum& x, const GradientSum& sums, int64_t count,
                     cudaStream_t stream);
/// y = x, rounded to nearest even where y is bf16.
cudaError_t cast(const ConstElements& x, const Elements& y, int64_t count, cudaStream_t stream);
/// x[i] = value.
cudaError_t fill(const Elements& x, float value, int64_t count, cudaStream_t stream);

/// head_dim is 32, 64, 96 or 128, kv_heads divides heads; no KeyBlock. bf16 by tensor cores; fp32
/// without them, as a reference of numerics: slow. `key_block` and `overflow` are not read.
cudaError_t attention_forward(const AttentionForward& p, const DeviceRows& rows,
                              cudaStream_t stream);
/// `scratch`: floats as lse.
cudaError_t attention_backward(const AttentionBackward& p, const DeviceRows& rows, float* scratch,
                               cudaStream_t stream);

}  // namespace trainyard::kernels::cuda
