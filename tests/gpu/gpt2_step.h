#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/ops.h"

namespace trainyard::kernels::cuda {

struct Gpt2Shape {
  int64_t layers = 12, width = 768, heads = 12, vocab = 50304, sequence = 1024;
  int64_t samples = 64, micro_batches = 1;  ///< samples of each micro-batch
  int64_t classifier_chunks = 4;            ///< of a micro-batch
  float learning_rate = 3e-4F;
};

/// Training steps of GPT-2 in bf16 with fp32 masters, chained from the launchers without the
/// engine: forward, backward, gradient norm, clipping, AdamW. Random weights, and tokens of Zipf's
/// law. Weights are [out, in], as the engine has them.
class Gpt2Step {
 public:
  using SquareLimbs = std::array<int64_t, kSquareLimbs>;
  /// Canonical: gradients are summed in int64, a partial product per micro-batch; otherwise in
  /// fp32, the first product overwriting. Allocates everything. Exits the program where CUDA fails,
  /// as all members do.
  Gpt2Step(const Gpt2Shape& shape, bool canonical, Gemm& gemm, Attention& attention,
           size_t workspace_bytes, cudaStream_t stream);
  ~Gpt2Step();
  Gpt2Step(const Gpt2Step&) = delete;
  Gpt2Step& operator=(const Gpt2Step&) = delete;

  /// Enqueues forward, backward and the gradient's squares; micro-batches in descending order where
  /// `reversed`.
  void passes(bool reversed = false);
  /// Waits for the passes, then enqueues the update.
  void update();
  /// Of the last passes, mean over tokens; waits.
  double loss();
  /// Of the last passes' mean gradient, as update() has seen it.
  double gradient_norm() const { return gradient_norm_; }
  /// Of all bits of the gradient; waits.
  uint64_t gradient_hash();
  /// Of the last passes: limbs of the squares, carried, as the passes added them up, and as
  /// `sum_of_squares` adds up the whole gradient; waits.
  std::pair<SquareLimbs, SquareLimbs> squares();
  int64_t parameters() const { return matrices_ + vectors_; }
  int64_t tokens_per_step() const { return rows_ * s_.micro_batches; }

  /// Runs one passes() and update() with events around each operation: milliseconds and calls.
  struct Spent {
    double ms = 0;
    int64_t calls = 0;
  };
  std::map<std::string, Spent> profile();
  /// Writes the fp32 weights in the order in which they are made, then tokens and targets as int32.
  void write(std::FILE* file);

 private:
  struct Parameter {
    int64_t count = 0;
    float* master = nullptr;
    float* gradient = nullptr;  ///< of Fast
    int64_t* exact = nullptr;   ///< of Canonical
    uint16_t* bf16 = nullptr;

    GradientSum sums() const {
      return gradient != nullptr ? GradientSum(gradient) : GradientSum(exact);
    }
  };
  struct Layer {
    Parameter gamma1, beta1, w_qkv, b_qkv, w_out, b_out, gamma2, beta2, w_up, b_up, w_down, b_down;
    uint16_t *residual1 = nullptr, *y1 = nullptr, *qkv = nullptr, *attention = nullptr;
    uint16_t *residual2 = nullptr, *y2 = nullptr, *up = nullptr, *gelu = nullptr;
    float *mean1 = nullptr, *rstd1 = nullptr, *mean2 = nullptr, *rstd2 = nullptr, *lse = nullptr;
  };
  struct Span {
    std::string name;
    cudaEvent_t begin, end;
  };

  template <typename T>
  T* allocate(int64_t count);
  Parameter parameter(int64_t count, float deviation, float mean = 0);
  Parameter matrix(int64_t out, int64_t in, float deviation) {
    return parameter(out * in, deviation);
  }
  Parameter vector(int64_t count, float value = 0) { return parameter(count, 0, value); }
  void make_layers();
  void make_data();
  template <typename Run>
  void operation(const std::string& name, const Run& run);

  void product(const std::string& name, const void* a, const void* b, void* c, GemmProblem problem,
               const void* bias = nullptr);
  /// y = x w^T (+ bias); dx = dy w; dw (+)= dy^T x, += where `adds`.
  void forward_product(const std::string& name, const uint16_t* x, const Parameter& w, uint16_t* y,
                       int64_t in, int64_t out, const Parameter* bias = nullptr);
  void backward_product(const std::string& name, const uint16_t* x, const uint16_t* dy,
                        const Parameter& w, uint16_t* dx, int64_t in, int64_t out);
  void weight_gradient(const std::string& name, const uint16_t* x, const uint16_t* dy,
                       const Parameter& w, int64_t rows, int64_t in, int64_t out, bool adds);
  void normalise(const uint16_t* x, const Parameter* bias, const uint16_t* residual,
                 const Parameter& gamma, const Parameter& beta, uint16_t* sum, uint16_t* y,
                 float* mean, float* rstd);
  void normalise_backward(const uint16_t* dy, const uint16_t* x, bool has_residual,
                          const Parameter& gamma, const Parameter& beta, const float* mean,
                          const float* rstd, const Parameter* bias);
  void forward_layer(const Layer& l);
  void backward_layer(const Layer& l, const Parameter* bias_before);
  void classifier();
  void micro_batch(int64_t index);
  double gradient_scale() const;  ///< of exact sums
  cudaError_t square(int64_t first, int64_t count);

  Gpt2Shape s_;
  bool canonical_;
  int64_t rows_;
  DeviceRows windows_;
  Gemm& gemm_;
  Attention& attention_;
  cudaStream_t stream_;
  bool profiles_ = false;
  bool is_first_ = false;  ///< micro-batch of the step: products overwrite
  bool is_last_ = false;   ///< micro-batch of the step: exact sums are squared as they are added
  std::vector<Span> spans_;
  std::vector<void*> memory_;
  std::vector<float> normal_;  ///< numbers that all weights are made of
  std::vector<Parameter> all_;
  std::vector<AdamW> tensors_;
  std::vector<Layer> layers_;
  Parameter wte_, wpe_, gamma_, beta_;
  uint16_t *embedded_ = nullptr, *projected_ = nullptr, *last_ = nullptr, *y_ = nullptr;
  uint16_t *logits_ = nullptr, *dx_ = nullptr, *dy_ = nullptr, *wide_ = nullptr;
  float *mean_ = nullptr, *rstd_ = nullptr, *scratch_ = nullptr, *partial_ = nullptr;
  int32_t *tokens_ = nullptr, *targets_ = nullptr, *lists_ = nullptr;
  const int32_t *batch_tokens_ = nullptr, *batch_targets_ = nullptr;
  int64_t* loss_sum_ = nullptr;
  int64_t* limbs_ = nullptr;
  uint32_t* overflow_ = nullptr;
  void *workspace_ = nullptr, *attention_scratch_ = nullptr;
  void* gradients_ = nullptr;  ///< of matrices, then of vectors, 4 or 8 bytes each
  OptimizerScalars* scalars_ = nullptr;
  OptimizerScalars next_scalars_{};  ///< on the host, until they are copied
  int64_t matrices_ = 0, vectors_ = 0, matrices_made_ = 0, vectors_made_ = 0;
  int64_t steps_ = 0;
  double gradient_norm_ = 0;
  uint64_t state_ = 1;
};

}  // namespace trainyard::kernels::cuda
