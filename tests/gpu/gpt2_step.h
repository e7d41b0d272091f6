#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/ops.h"

namespace trainyard::kernels::cuda {

struct Gpt2Shape {
  int64_t layers = 12, width = 768, heads = 12, vocab = 50304, sequence = 1024, samples = 64;
  int64_t classifier_chunks = 16;
};

/// One training step of GPT-2 in bf16 with fp32 masters, chained from the launchers without the
/// engine: forward, backward, gradient norm, AdamW. Random weights and tokens.
class Gpt2Step {
 public:
  /// Allocates everything. Exits the program where CUDA fails, as all members do.
  Gpt2Step(const Gpt2Shape& shape, Gemm& gemm, size_t workspace_bytes, cudaStream_t stream);
  ~Gpt2Step();
  Gpt2Step(const Gpt2Step&) = delete;
  Gpt2Step& operator=(const Gpt2Step&) = delete;

  /// Enqueues a step; `update` false leaves the parameters.
  void run(bool update);
  /// Enqueues forward and backward of layer 0 alone.
  void run_block();
  /// Mean loss of the last step; waits.
  double loss();
  int64_t parameters() const { return parameters_; }

 private:
  struct Parameter {
    int64_t count = 0;
    float* master = nullptr;
    float* gradient = nullptr;
    uint16_t* bf16 = nullptr;
  };
  struct Layer {
    Parameter gamma1, beta1, w_qkv, b_qkv, w_out, b_out, gamma2, beta2, w_up, b_up, w_down, b_down;
    uint16_t *residual1 = nullptr, *y1 = nullptr, *qkv = nullptr, *attention = nullptr;
    uint16_t *residual2 = nullptr, *y2 = nullptr, *up = nullptr, *gelu = nullptr;
    float *mean1 = nullptr, *rstd1 = nullptr, *mean2 = nullptr, *rstd2 = nullptr, *lse = nullptr;
  };

  template <typename T>
  T* allocate(int64_t count);
  Parameter parameter(int64_t count, float deviation, float mean = 0);
  void product(const void* a, const void* b, void* c, GemmProblem problem,
               const void* bias = nullptr);
  /// y = x w (+ bias); dx = dy w^T; dw += x^T dy.
  void forward_product(const uint16_t* x, const Parameter& w, uint16_t* y, int64_t in, int64_t out,
                       const Parameter* bias = nullptr);
  void backward_product(const uint16_t* x, const uint16_t* dy, const Parameter& w, uint16_t* dx,
                        int64_t in, int64_t out);
  void normalise(const uint16_t* x, const Parameter* bias, const uint16_t* residual,
                 const Parameter& gamma, const Parameter& beta, uint16_t* sum, uint16_t* y,
                 float* mean, float* rstd);
  void normalise_backward(const uint16_t* dy, const uint16_t* x, bool has_residual,
                          const Parameter& gamma, const Parameter& beta, const float* mean,
                          const float* rstd, const Parameter* bias);
  void forward_layer(const Layer& l);
  void backward_layer(const Layer& l, const Parameter* bias_before);
  void classifier();
  void update();

  Gpt2Shape s_;
  int64_t rows_;
  Gemm& gemm_;
  cudaStream_t stream_;
  std::vector<void*> memory_;
  std::vector<AdamWTensor> tensors_;
  std::vector<Layer> layers_;
  Parameter wte_, wpe_, gamma_, beta_;
  uint16_t *embedded_ = nullptr, *projected_ = nullptr, *last_ = nullptr, *y_ = nullptr;
  uint16_t *logits_ = nullptr, *dx_ = nullptr, *dy_ = nullptr, *wide_ = nullptr;
  float *mean_ = nullptr, *rstd_ = nullptr, *scratch_ = nullptr, *delta_ = nullptr;
  int32_t *tokens_ = nullptr, *targets_ = nullptr, *lists_ = nullptr;
  int64_t* loss_sum_ = nullptr;
  int64_t* limbs_ = nullptr;
  void* workspace_ = nullptr;
  float* gradients_ = nullptr;
  AdamWTensor* table_ = nullptr;
  OptimizerScalars* scalars_ = nullptr;
  int64_t parameters_ = 0, used_ = 0, blocks_ = 0;
  uint64_t state_ = 1;
};

}  // namespace trainyard::kernels::cuda
