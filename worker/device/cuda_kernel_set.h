#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/ops.h"
#include "kernels/head_parts.h"
#include "kernels/kernel_set.h"
#include "worker/device/cuda_plan.h"
#include "worker/device/cuda_stream.h"
#include "worker/device/kernel_shapes.h"

namespace trainyard::engine {

/// The engine's operations by the CUDA kernels of kernels/cuda/ and products by cuBLASLt, on one
/// stream. Canonical numerics of a GPU (docs/concepts/canonical-numerics.md): a product is one sum
/// over ascending k, or one per chain of what KernelShapes::pieces cuts; a grain is
/// KernelShapes::grain_sequences sequences, whatever Grains::tokens says; attention does not depend
/// on `key_block`. Where KernelShapes::sums are fp32 (numerics Fast), products add to sums as
/// cuBLASLt likes best, and the rows of a call are one grain.
///
/// Tokens, targets and rows are host memory, read at the call; all other pointers are memory that
/// the GPU reads. What fails is noted in the stream, and all after it does nothing.
class CudaKernelSet final : public kernels::KernelSet, public kernels::HeadPartCopies {
 public:
  /// `attention`: with a library, whose scratch is CudaScratch::attention; null: own kernels alone.
  CudaKernelSet(CudaStream& stream, std::unique_ptr<kernels::cuda::Gemm> gemm,
                std::unique_ptr<kernels::cuda::Attention> attention, const KernelShapes& shapes);
  ~CudaKernelSet() override;

  int64_t scratch_bytes() const override { return places_.bytes; }
  void set_scratch(std::span<std::byte> scratch) override;
  /// The next rows are uploaded whatever is on the GPU.
  void forget_rows() { sequences_.clear(); }

  void gemm(const kernels::GemmParams& p) override;
  void layer_norm_forward(const kernels::LayerNormForward& p) override;
  void layer_norm_backward_input(const kernels::LayerNormBackwardInput& p) override;
  void layer_norm_backward_weight(const kernels::LayerNormBackwardWeight& p) override;
  void head_norm_forward(const kernels::HeadNormForward& p) override;
  void head_norm_backward_input(const kernels::HeadNormBackwardInput& p) override;
  void head_norm_backward_weight(const kernels::HeadNormBackwardWeight& p) override;
  void rope(const kernels::Rope& p) override;
  void bias_backward(const kernels::BiasBackward& p) override;
  void gelu_forward(const kernels::GeluForward& p) override;
  void gelu_backward(const kernels::GeluBackward& p) override;
  void gated_forward(const kernels::GatedForward& p) override;
  void gated_backward(const kernels::GatedBackward& p) override;
  void dropout_add(const kernels::DropoutAdd& p) override;
  void dropout_backward(const kernels::DropoutBackward& p) override;
  void embedding_forward(const kernels::EmbeddingForward& p) override;
  void embedding_backward(const kernels::EmbeddingBackward& p) override;
  void attention_forward(const kernels::AttentionForward& p) override;
  void attention_backward(const kernels::AttentionBackward& p) override;
  void cross_entropy(const kernels::CrossEntropy& p) override;
  void round_exact(const kernels::RoundExact& p) override;
  void vocabulary_statistics(const kernels::VocabularyStatistics& p) override;
  void sum_of_squares(const kernels::SumOfSquares& p) override;
  void adamw(std::span<const kernels::AdamW> tensors) override;
  void cast_to_bf16(const float* x, uint16_t* y, int64_t count) override;
  void clear(void* data, int64_t bytes) override;
  void copy(const void* from, void* to, int64_t bytes) override;
  void copy(const kernels::HeadParts& p) override;
  void accumulate(const kernels::GradientSum& x, const kernels::GradientSum& sums, int64_t count,
                  bool overwrite) override;

  kernels::KernelCounters counters() const override { return counters_; }

 private:
  /// Rows of a product whose partial is added to sums of their own at once.
  struct RowBlock {
    int64_t first = 0;
    int64_t rows = 0;
    int64_t* sums = nullptr;  ///< [rows, n]
  };

  bool ready() const { return stream_.status().has_value() && stream_.enqueues(); }
  bool admits(const char* what, int64_t rows, int64_t width);
  bool fits(const char* what, int64_t rows, int64_t width);
  std::vector<kernels::Sequence> grains_of(const kernels::Grains& grains, int64_t rows) const;
  template <typename P>
  bool is_for_library(const P& p, const kernels::cuda::DeviceRows& rows);
  kernels::cuda::DeviceRows upload(const kernels::Rows& rows);
  void upload_angles(std::span<const float> frequencies, float scale);
  const int32_t* upload(int64_t place, std::span<const int32_t> ids, int32_t first, int64_t end,
                        const char* what);
  void note(const char* kernel, cudaError_t error) { stream_.note(kernel, error); }
  static const std::byte* element(const void* base, int64_t index, DType type) {
    return static_cast<const std::byte*>(base) + index * size_of(type);
  }
  static kernels::ConstElements from(const kernels::ConstElements& x, int64_t index) {
    return {element(x.data, index, x.type), x.type};
  }
  template <typename T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(scratch_ + offset);
  }

  // Products and exact sums: cuda_products.cc.
  void product(const kernels::cuda::GemmProblem& problem, kernels::cuda::GemmOperands operands);
  void store(const kernels::GemmParams& p);
  void accumulate_chains(const kernels::GemmParams& p);
  void accumulate_product(const kernels::GemmParams& p);
  void round_chains(const kernels::GemmParams& p);
  std::vector<kernels::Sequence> chains_of(const kernels::GemmParams& p) const;
  int64_t rows_at_once(const kernels::GemmParams& p) const;
  void add_chain(const kernels::GemmParams& p, const kernels::Sequence& chain,
                 const RowBlock& block, bool overwrites, const kernels::SquaresOfSums& squares);

  CudaStream& stream_;
  std::unique_ptr<kernels::cuda::Gemm> gemm_;
  std::unique_ptr<kernels::cuda::Attention> attention_;
  KernelShapes shapes_;
  CudaScratch places_;
  std::byte* scratch_ = nullptr;
  std::vector<kernels::Sequence> sequences_;  ///< as they are on the GPU
  std::vector<float> frequencies_;            ///< of the angles on the GPU
  float angle_scale_ = 0;
  kernels::KernelCounters counters_;
};

}  // namespace trainyard::engine
