#include "tests/gpu/gpt2_step.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace trainyard::kernels::cuda {
namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "gpt2_step: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);  // NOLINT(concurrency-mt-unsafe)
}
void check(const Status& status) {
  if (status) return;
  std::fprintf(stderr, "gpt2_step: %s\n", status.error().message.c_str());
  std::exit(1);  // NOLINT(concurrency-mt-unsafe)
}
/// Elements of all parameters, each rounded up to 8 so that all are aligned.
int64_t all_parameters(const Gpt2Shape& s) {
  const int64_t c = s.width;
  return s.layers * (12 * c * c + 13 * c) + (s.vocab + s.sequence) * c + 2 * c;
}

}  // namespace

template <typename T>
T* Gpt2Step::allocate(int64_t count) {
  void* memory = nullptr;
  check(cudaMallocAsync(&memory, static_cast<size_t>(count) * sizeof(T), stream_), "memory");
  memory_.push_back(memory);
  return static_cast<T*>(memory);
}

Gpt2Step::Parameter Gpt2Step::parameter(int64_t count, float deviation, float mean) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) {  // a sum of four uniform numbers is normal enough
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      state_ = state_ * 6364136223846793005U + 1442695040888963407U;
      sum += static_cast<float>(state_ >> 40U) * 0x1p-24F - 0.5F;
    }
    x = mean + sum * deviation * 1.7320508F;
  }
  Parameter p{count, allocate<float>(count), gradients_ + used_, allocate<uint16_t>(count)};
  used_ += count;
  check(cudaMemcpyAsync(p.master, values.data(), values.size() * sizeof(float),
                        cudaMemcpyHostToDevice, stream_),
        "weights");
  check(cast(p.master, DType::kFloat32, p.bf16, DType::kBFloat16, count, stream_), "weights");
  check(cudaStreamSynchronize(stream_), "weights");
  AdamWTensor t{.count = count, .weight_decay = deviation > 0 ? 0.1F : 0.0F};
  t.gradient = p.gradient;
  t.parameter = p.master;
  t.m = allocate<float>(count);
  t.v = allocate<float>(count);
  check(cudaMemsetAsync(t.m, 0, static_cast<size_t>(count) * 4, stream_), "moments");
  check(cudaMemsetAsync(t.v, 0, static_cast<size_t>(count) * 4, stream_), "moments");
  t.bf16_copy = p.bf16;
  tensors_.push_back(t);
  return p;
}

Gpt2Step::Gpt2Step(const Gpt2Shape& shape, Gemm& gemm, size_t workspace_bytes, cudaStream_t stream)
    : s_(shape), rows_(shape.samples * shape.sequence), gemm_(gemm), stream_(stream) {
  const int64_t c = s_.width;
  parameters_ = all_parameters(s_);
  gradients_ = allocate<float>(parameters_);
  wte_ = parameter(s_.vocab * c, 0.02F);
  wpe_ = parameter(s_.sequence * c, 0.01F);
  const float deep = 0.02F / std::sqrt(2.0F * static_cast<float>(s_.layers));
  for (int64_t i = 0; i < s_.layers; ++i) {
    Layer l;
    l.gamma1 = parameter(c, 0, 1);
    l.beta1 = parameter(c, 0);
    l.w_qkv = parameter(c * 3 * c, 0.02F);
    l.b_qkv = parameter(3 * c, 0);
    l.w_out = parameter(c * c, deep);
    l.b_out = parameter(c, 0);
    l.gamma2 = parameter(c, 0, 1);
    l.beta2 = parameter(c, 0);
    l.w_up = parameter(c * 4 * c, 0.02F);
    l.b_up = parameter(4 * c, 0);
    l.w_down = parameter(4 * c * c, deep);
    l.b_down = parameter(c, 0);
    for (uint16_t** const to : {&l.residual1, &l.y1, &l.attention, &l.residual2, &l.y2})
      *to = allocate<uint16_t>(rows_ * c);
    l.qkv = allocate<uint16_t>(rows_ * 3 * c);
    l.up = allocate<uint16_t>(rows_ * 4 * c);
    l.gelu = allocate<uint16_t>(rows_ * 4 * c);
    for (float** const to : {&l.mean1, &l.rstd1, &l.mean2, &l.rstd2})
      *to = allocate<float>(rows_);
    l.lse = allocate<float>(rows_ * s_.heads);
    layers_.push_back(l);
  }
  gamma_ = parameter(c, 0, 1);
  beta_ = parameter(c, 0);
  for (uint16_t** const to : {&embedded_, &projected_, &last_, &y_, &dx_, &dy_})
    *to = allocate<uint16_t>(rows_ * c);
  wide_ = allocate<uint16_t>(rows_ * 4 * c);
  logits_ = allocate<uint16_t>(rows_ / s_.classifier_chunks * s_.vocab);
  mean_ = allocate<float>(rows_);
  rstd_ = allocate<float>(rows_);
  scratch_ = allocate<float>(kColumnSumBlocks * 4 * c);
  delta_ = allocate<float>(rows_ * s_.heads);
  lists_ = allocate<int32_t>(embedding_scratch_ints(rows_, s_.vocab));
  loss_sum_ = allocate<int64_t>(1);
  limbs_ = allocate<int64_t>(kSquareLimbs);
  workspace_ = allocate<std::byte>(static_cast<int64_t>(workspace_bytes));
  std::vector<int32_t> tokens(static_cast<size_t>(rows_) + 1);
  for (int32_t& token : tokens) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    token = static_cast<int32_t>((state_ >> 33U) % static_cast<uint64_t>(s_.vocab));
  }
  tokens_ = allocate<int32_t>(rows_);
  targets_ = allocate<int32_t>(rows_);
  const auto bytes = static_cast<size_t>(rows_) * sizeof(int32_t);
  check(cudaMemcpyAsync(tokens_, tokens.data(), bytes, cudaMemcpyHostToDevice, stream_), "tokens");
  check(cudaMemcpyAsync(targets_, tokens.data() + 1, bytes, cudaMemcpyHostToDevice, stream_),
        "tokens");
  blocks_ = adamw_blocks(tensors_.data(), static_cast<int64_t>(tensors_.size()));
  table_ = allocate<AdamWTensor>(static_cast<int64_t>(tensors_.size()));
  check(cudaMemcpyAsync(table_, tensors_.data(), tensors_.size() * sizeof(AdamWTensor),
                        cudaMemcpyHostToDevice, stream_),
        "tensors");
  // Gradients are of the loss sum; the learning rate is large for losses to fall in a few steps.
  const OptimizerScalars scalars{0, 1.0F / static_cast<float>(rows_), 1e-3F, 10.0F, 20.0F, 0};
  scalars_ = allocate<OptimizerScalars>(1);
  check(cudaMemcpyAsync(scalars_, &scalars, sizeof scalars, cudaMemcpyHostToDevice, stream_),
        "scalars");
  check(cudaStreamSynchronize(stream_), "set-up");
}

Gpt2Step::~Gpt2Step() {
  for (void* const memory : memory_)
    cudaFreeAsync(memory, stream_);
  cudaStreamSynchronize(stream_);
}

void Gpt2Step::product(const void* a, const void* b, void* c, GemmProblem problem,
                       const void* bias) {
  problem.lda = problem.transpose_a ? problem.m : problem.k;
  problem.ldb = problem.transpose_b ? problem.k : problem.n;
  problem.ldc = problem.n;
  problem.has_bias = bias != nullptr;
  const GemmOperands operands{.a = a, .b = b, .bias = bias, .c = c, .workspace = workspace_};
  check(gemm_.prepare(problem, operands, stream_));  // measures in the first step alone
  check(gemm_.run(problem, operands, stream_));
}
void Gpt2Step::forward_product(const uint16_t* x, const Parameter& w, uint16_t* y, int64_t in,
                               int64_t out, const Parameter* bias) {
  product(x, w.bf16, y, {.m = rows_, .n = out, .k = in}, bias != nullptr ? bias->bf16 : nullptr);
}
void Gpt2Step::backward_product(const uint16_t* x, const uint16_t* dy, const Parameter& w,
                                uint16_t* dx, int64_t in, int64_t out) {
  GemmProblem weights{.m = in, .n = out, .k = rows_, .transpose_a = true};
  weights.output = DType::kFloat32;
  weights.accumulate = true;
  product(x, dy, w.gradient, weights);
  product(dy, w.bf16, dx, {.m = rows_, .n = in, .k = out, .transpose_b = true});
}

void Gpt2Step::normalise(const uint16_t* x, const Parameter* bias, const uint16_t* residual,
                         const Parameter& gamma, const Parameter& beta, uint16_t* sum, uint16_t* y,
                         float* mean, float* rstd) {
  LayerNormForward p{.rows = rows_, .width = s_.width, .x = x, .residual = residual};
  p.bias = bias != nullptr ? bias->master : nullptr;
  p.gamma = gamma.master;
  p.beta = beta.master;
  p.sum = sum;
  p.y = y;
  p.mean = mean;
  p.rstd = rstd;
  check(layer_norm_forward(p, stream_), "layer_norm_forward");
}
/// dx_ = the norm's gradient, plus dx_ where `has_residual`.
void Gpt2Step::normalise_backward(const uint16_t* dy, const uint16_t* x, bool has_residual,
                                  const Parameter& gamma, const Parameter& beta, const float* mean,
                                  const float* rstd, const Parameter* bias) {
  LayerNormBackward p{.rows = rows_, .width = s_.width, .dy = dy, .x = x};
  p.d_residual = has_residual ? dx_ : nullptr;
  p.gamma = gamma.master;
  p.mean = mean;
  p.rstd = rstd;
  p.dx = dx_;
  p.d_gamma.sum = gamma.gradient;
  p.d_beta.sum = beta.gradient;
  if (bias != nullptr) p.d_bias.sum = bias->gradient;
  p.scratch = scratch_;
  check(layer_norm_backward(p, stream_), "layer_norm_backward");
}

/// From y1 to projected_, which the next norm adds to residual2.
void Gpt2Step::forward_layer(const Layer& l) {
  const int64_t c = s_.width;
  forward_product(l.y1, l.w_qkv, l.qkv, c, 3 * c, &l.b_qkv);
  AttentionForward a{.samples_count = s_.samples, .tokens = s_.sequence, .heads = s_.heads};
  a.kv_heads = s_.heads;
  a.head_dim = c / s_.heads;
  a.qkv = l.qkv;
  a.out = l.attention;
  a.lse = l.lse;
  check(attention_forward(a, stream_), "attention_forward");
  forward_product(l.attention, l.w_out, projected_, c, c);
  normalise(projected_, &l.b_out, l.residual1, l.gamma2, l.beta2, l.residual2, l.y2, l.mean2,
            l.rstd2);
  forward_product(l.y2, l.w_up, l.up, c, 4 * c);
  check(gelu_forward({.rows = rows_, .width = 4 * c, .x = l.up, .bias = l.b_up.master, .y = l.gelu},
                     stream_),
        "gelu_forward");
  forward_product(l.gelu, l.w_down, projected_, 4 * c, c);
}

/// From dx_ behind the layer to dx_ before it.
void Gpt2Step::backward_layer(const Layer& l, const Parameter* bias_before) {
  const int64_t c = s_.width;
  backward_product(l.gelu, dx_, l.w_down, wide_, 4 * c, c);
  GeluBackward g{.rows = rows_, .width = 4 * c, .dy = wide_, .x = l.up, .bias = l.b_up.master};
  g.dx = wide_;
  g.d_bias.sum = l.b_up.gradient;
  g.scratch = scratch_;
  check(gelu_backward(g, stream_), "gelu_backward");
  backward_product(l.y2, wide_, l.w_up, dy_, c, 4 * c);
  normalise_backward(dy_, l.residual2, true, l.gamma2, l.beta2, l.mean2, l.rstd2, &l.b_out);
  backward_product(l.attention, dx_, l.w_out, dy_, c, c);
  AttentionBackward a{.samples_count = s_.samples, .tokens = s_.sequence, .heads = s_.heads};
  a.kv_heads = s_.heads;
  a.head_dim = c / s_.heads;
  a.qkv = l.qkv;
  a.out = l.attention;
  a.d_out = dy_;
  a.lse = l.lse;
  a.d_qkv = wide_;
  a.scratch = delta_;
  check(attention_backward(a, stream_), "attention_backward");
  BiasBackward b{.rows = rows_, .width = 3 * c, .dy = wide_};
  b.d_bias.sum = l.b_qkv.gradient;
  b.scratch = scratch_;
  check(bias_backward(b, stream_), "bias_backward");
  backward_product(l.y1, wide_, l.w_qkv, dy_, c, 3 * c);
  normalise_backward(dy_, l.residual1, true, l.gamma1, l.beta1, l.mean1, l.rstd1, bias_before);
}

/// From y_ to dy_, chunk by chunk.
void Gpt2Step::classifier() {
  const int64_t c = s_.width;
  const int64_t rows = rows_ / s_.classifier_chunks;
  for (int64_t chunk = 0; chunk < s_.classifier_chunks; ++chunk) {
    const uint16_t* const y = y_ + chunk * rows * c;
    product(y, wte_.bf16, logits_, {.m = rows, .n = s_.vocab, .k = c, .transpose_b = true});
    CrossEntropy p{.rows = rows, .vocab = s_.vocab, .padded_vocab = s_.vocab, .logits = logits_};
    p.targets = targets_ + chunk * rows;
    p.loss_sum = loss_sum_;
    check(cross_entropy(p, stream_), "cross_entropy");
    product(logits_, wte_.bf16, dy_ + chunk * rows * c, {.m = rows, .n = c, .k = s_.vocab});
    GemmProblem weights{.m = s_.vocab, .n = c, .k = rows, .transpose_a = true};
    weights.output = DType::kFloat32;
    weights.accumulate = true;
    product(logits_, y, wte_.gradient, weights);
  }
}

void Gpt2Step::update() {
  check(cudaMemsetAsync(limbs_, 0, kSquareLimbs * sizeof(int64_t), stream_), "limbs");
  check(sum_of_squares({.count = parameters_, .gradient = gradients_, .limbs = limbs_}, stream_),
        "sum_of_squares");
  AdamWStep p;
  p.tensors = table_;
  p.tensors_count = static_cast<int64_t>(tensors_.size());
  p.blocks = blocks_;
  p.scalars = scalars_;
  check(adamw(p, stream_), "adamw");
}

void Gpt2Step::run(bool with_update) {
  check(cudaMemsetAsync(gradients_, 0, static_cast<size_t>(parameters_) * 4, stream_), "gradients");
  check(cudaMemsetAsync(loss_sum_, 0, sizeof(int64_t), stream_), "loss");
  EmbeddingForward e{.rows = rows_, .width = s_.width, .tokens_per_sample = s_.sequence};
  e.tokens = tokens_;
  e.wte = wte_.bf16;
  e.wpe = wpe_.bf16;
  e.y = embedded_;
  check(embedding_forward(e, stream_), "embedding_forward");
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& l = layers_[i];
    if (i == 0) {
      normalise(embedded_, nullptr, nullptr, l.gamma1, l.beta1, l.residual1, l.y1, l.mean1,
                l.rstd1);
    } else {
      const Layer& before = layers_[i - 1];
      normalise(projected_, &before.b_down, before.residual2, l.gamma1, l.beta1, l.residual1, l.y1,
                l.mean1, l.rstd1);
    }
    forward_layer(l);
  }
  const Layer& last = layers_.back();
  normalise(projected_, &last.b_down, last.residual2, gamma_, beta_, last_, y_, mean_, rstd_);
  classifier();
  normalise_backward(dy_, last_, false, gamma_, beta_, mean_, rstd_, &last.b_down);
  for (size_t i = layers_.size(); i-- > 0;)
    backward_layer(layers_[i], i > 0 ? &layers_[i - 1].b_down : nullptr);
  EmbeddingBackward b{.rows = rows_, .width = s_.width, .tokens_per_sample = s_.sequence};
  b.vocab = s_.vocab;
  b.tokens = tokens_;
  b.dy = dx_;
  b.d_wte.sum = wte_.gradient;
  b.d_wpe.sum = wpe_.gradient;
  b.rounding = {.quantum_log2 = 30, .partials = rows_};
  b.scratch = lists_;
  check(embedding_backward(b, stream_), "embedding_backward");
  if (with_update) update();
}

void Gpt2Step::run_block() {
  forward_layer(layers_[0]);
  backward_layer(layers_[0], nullptr);
}

double Gpt2Step::loss() {
  int64_t sum = 0;
  check(cudaMemcpyAsync(&sum, loss_sum_, sizeof sum, cudaMemcpyDeviceToHost, stream_), "loss");
  check(cudaStreamSynchronize(stream_), "loss");
  return std::ldexp(static_cast<double>(sum), -kLossQuantumLog2) / static_cast<double>(rows_);
}

}  // namespace trainyard::kernels::cuda
