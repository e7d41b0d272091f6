#include "tests/gpu/gpt2_step.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "tests/gpu/windows.h"

namespace trainyard::kernels::cuda {
namespace {

constexpr int kQuantumLog2 = 30;               // of exact sums of the loss sum's gradient
constexpr size_t kNormals = size_t{1} << 22U;  // weights repeat them: random enough for products
constexpr float kClip = 1.0F, kBeta1 = 0.9F, kBeta2 = 0.95F;

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

Elements bf16(uint16_t* elements) { return {elements, DType::kBFloat16}; }
ConstElements bf16(const uint16_t* elements) { return {elements, DType::kBFloat16}; }

}  // namespace

template <typename T>
T* Gpt2Step::allocate(int64_t count) {
  void* memory = nullptr;
  check(cudaMallocAsync(&memory, static_cast<size_t>(count) * sizeof(T), stream_), "memory");
  memory_.push_back(memory);
  return static_cast<T*>(memory);
}

template <typename Run>
void Gpt2Step::operation(const std::string& name, const Run& run) {
  if (!profiles_) {
    check(run(), name.c_str());
    return;
  }
  Span span{name, nullptr, nullptr};
  check(cudaEventCreateWithFlags(&span.begin, 0), "event");
  check(cudaEventCreateWithFlags(&span.end, 0), "event");
  check(cudaEventRecord(span.begin, stream_), "event");
  check(run(), name.c_str());
  check(cudaEventRecord(span.end, stream_), "event");
  spans_.push_back(span);
}

Gpt2Step::Parameter Gpt2Step::parameter(int64_t count, float deviation, float mean) {
  const bool is_matrix = deviation > 0;
  Parameter p{.count = count, .master = allocate<float>(count), .bf16 = allocate<uint16_t>(count)};
  int64_t& made = is_matrix ? matrices_made_ : vectors_made_;
  const int64_t at = is_matrix ? made : matrices_ + made;
  made += count;
  if (canonical_) {
    p.exact = static_cast<int64_t*>(gradients_) + at;
  } else {
    p.gradient = static_cast<float*>(gradients_) + at;
  }
  std::vector<float> values(std::min(static_cast<size_t>(count), kNormals));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = mean + deviation * normal_[(i + all_.size() * 7919) % normal_.size()];
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(kNormals)) {
    const auto bytes = std::min(kNormals, static_cast<size_t>(count - i)) * sizeof(float);
    check(cudaMemcpyAsync(p.master + i, values.data(), bytes, cudaMemcpyHostToDevice, stream_),
          "weights");
  }
  check(cast(p.master, bf16(p.bf16), count, stream_), "weights");
  AdamW t{.count = count, .beta1 = kBeta1, .beta2 = kBeta2};
  t.weight_decay = is_matrix ? 0.1F : 0.0F;
  t.gradient = {.sums = p.exact, .scale = gradient_scale(), .rounded = p.gradient};
  t.scalars = scalars_;
  t.parameter = p.master;
  t.m = allocate<float>(count);
  t.v = allocate<float>(count);
  check(cudaMemsetAsync(t.m, 0, static_cast<size_t>(count) * 4, stream_), "moments");
  check(cudaMemsetAsync(t.v, 0, static_cast<size_t>(count) * 4, stream_), "moments");
  t.bf16_copy = p.bf16;
  check(cudaStreamSynchronize(stream_), "weights");
  tensors_.push_back(t);
  all_.push_back(p);
  return p;
}

void Gpt2Step::make_layers() {
  const int64_t c = s_.width;
  const float deep = 0.02F / std::sqrt(2.0F * static_cast<float>(s_.layers));
  for (int64_t i = 0; i < s_.layers; ++i) {
    Layer l;
    l.gamma1 = vector(c, 1);
    l.beta1 = vector(c);
    l.w_qkv = matrix(3 * c, c, 0.02F);
    l.b_qkv = vector(3 * c);
    l.w_out = matrix(c, c, deep);
    l.b_out = vector(c);
    l.gamma2 = vector(c, 1);
    l.beta2 = vector(c);
    l.w_up = matrix(4 * c, c, 0.02F);
    l.b_up = vector(4 * c);
    l.w_down = matrix(c, 4 * c, deep);
    l.b_down = vector(c);
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
}

/// Tokens by Zipf's law, as text has them, and the next as target.
void Gpt2Step::make_data() {
  const int64_t count = tokens_per_step();
  std::vector<int32_t> tokens(static_cast<size_t>(count) + 1);
  for (int32_t& token : tokens) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    const double u = static_cast<double>(state_ >> 11U) * 0x1p-53;
    token = static_cast<int32_t>(std::pow(static_cast<double>(s_.vocab), u)) - 1;
  }
  tokens_ = allocate<int32_t>(count);
  targets_ = allocate<int32_t>(count);
  const auto bytes = static_cast<size_t>(count) * sizeof(int32_t);
  check(cudaMemcpyAsync(tokens_, tokens.data(), bytes, cudaMemcpyHostToDevice, stream_), "tokens");
  check(cudaMemcpyAsync(targets_, tokens.data() + 1, bytes, cudaMemcpyHostToDevice, stream_),
        "tokens");
  check(cudaStreamSynchronize(stream_), "tokens");
}

Gpt2Step::Gpt2Step(const Gpt2Shape& shape, bool canonical, Gemm& gemm, Attention& attention,
                   size_t workspace_bytes, cudaStream_t stream)
    : s_(shape),
      canonical_(canonical),
      rows_(shape.samples * shape.sequence),
      gemm_(gemm),
      attention_(attention),
      stream_(stream) {
  const int64_t c = s_.width;
  for (size_t i = 0; i < kNormals; ++i) {  // a sum of four uniform numbers is normal enough
    float sum = 0;
    for (int j = 0; j < 4; ++j) {
      state_ = state_ * 6364136223846793005U + 1442695040888963407U;
      sum += static_cast<float>(state_ >> 40U) * 0x1p-24F - 0.5F;
    }
    normal_.push_back(sum * 1.7320508F);
  }
  matrices_ = s_.layers * 12 * c * c + (s_.vocab + s_.sequence) * c;
  vectors_ = s_.layers * 13 * c + 2 * c;
  gradients_ = canonical_ ? static_cast<void*>(allocate<int64_t>(parameters()))
                          : static_cast<void*>(allocate<float>(parameters()));
  scalars_ = allocate<OptimizerScalars>(1);
  if (canonical_) partial_ = allocate<float>(std::max(s_.vocab * c, 4 * c * c));
  wte_ = matrix(s_.vocab, c, 0.02F);
  wpe_ = matrix(s_.sequence, c, 0.01F);
  make_layers();
  gamma_ = vector(c, 1);
  beta_ = vector(c);
  for (uint16_t** const to : {&embedded_, &projected_, &last_, &y_, &dx_, &dy_})
    *to = allocate<uint16_t>(rows_ * c);
  wide_ = allocate<uint16_t>(rows_ * 4 * c);
  logits_ = allocate<uint16_t>(rows_ / s_.classifier_chunks * s_.vocab);
  mean_ = allocate<float>(rows_);
  rstd_ = allocate<float>(rows_);
  scratch_ = allocate<float>(kColumnSumBlocks * 4 * c);
  lists_ = allocate<int32_t>(embedding_scratch_ints(rows_, s_.vocab));
  loss_sum_ = allocate<int64_t>(1);
  limbs_ = allocate<int64_t>(kSquareLimbs);
  overflow_ = allocate<uint32_t>(1);
  workspace_ = allocate<std::byte>(static_cast<int64_t>(workspace_bytes));
  attention_scratch_ =
      allocate<std::byte>(static_cast<int64_t>(attention_.prepare({.sequences = s_.samples,
                                                                   .longest = s_.sequence,
                                                                   .heads = s_.heads,
                                                                   .kv_heads = s_.heads,
                                                                   .head_dim = c / s_.heads})));
  check(upload_windows(s_.samples, s_.sequence, allocate<Sequence>(s_.samples),
                       allocate<int32_t>(rows_), stream_, windows_),
        "windows");
  make_data();
  check(cudaStreamSynchronize(stream_), "set-up");
}

Gpt2Step::~Gpt2Step() {
  for (void* const memory : memory_)
    cudaFreeAsync(memory, stream_);
  cudaStreamSynchronize(stream_);
}

void Gpt2Step::product(const std::string& name, const void* a, const void* b, void* c,
                       GemmProblem problem, const void* bias) {
  problem.lda = problem.transpose_a ? problem.m : problem.k;
  problem.ldb = problem.transpose_b ? problem.k : problem.n;
  problem.ldc = problem.n;
  problem.has_bias = bias != nullptr;
  const GemmOperands operands{.a = a, .b = b, .bias = bias, .c = c, .workspace = workspace_};
  check(gemm_.prepare(problem, operands, stream_));  // measures in the first step alone
  operation(name, [&] {
    check(gemm_.run(problem, operands, stream_));
    return cudaSuccess;
  });
}
void Gpt2Step::forward_product(const std::string& name, const uint16_t* x, const Parameter& w,
                               uint16_t* y, int64_t in, int64_t out, const Parameter* bias) {
  product(name, x, w.bf16, y, {.m = rows_, .n = out, .k = in, .transpose_b = true},
          bias != nullptr ? bias->bf16 : nullptr);
}
void Gpt2Step::weight_gradient(const std::string& name, const uint16_t* x, const uint16_t* dy,
                               const Parameter& w, int64_t rows, int64_t in, int64_t out,
                               bool adds) {
  GemmProblem problem{.m = out, .n = in, .k = rows, .transpose_a = true};
  problem.output = DType::kFloat32;
  problem.accumulate = adds && !canonical_;
  product(name, dy, x, canonical_ ? partial_ : w.gradient, problem);
  if (!canonical_) return;
  // Rows of the token embedding come on top.
  const bool is_table = w.exact == wte_.exact;
  const bool is_whole = is_last_ && !is_table;
  operation(is_table ? "logits add_exact" : "add_exact", [&] {
    return add_exact(
        partial_, w.exact, w.count,
        {kQuantumLog2, s_.micro_batches * (rows_ + s_.classifier_chunks), overflow_}, stream_,
        !adds, is_whole ? SquaresOfSums{gradient_scale(), limbs_, overflow_} : SquaresOfSums());
  });
}
void Gpt2Step::backward_product(const std::string& name, const uint16_t* x, const uint16_t* dy,
                                const Parameter& w, uint16_t* dx, int64_t in, int64_t out) {
  weight_gradient(name + " wgrad", x, dy, w, rows_, in, out, !is_first_);
  product(name + " dgrad", dy, w.bf16, dx, {.m = rows_, .n = in, .k = out});
}

void Gpt2Step::normalise(const uint16_t* x, const Parameter* bias, const uint16_t* residual,
                         const Parameter& gamma, const Parameter& beta, uint16_t* sum, uint16_t* y,
                         float* mean, float* rstd) {
  LayerNormForward p{.rows = rows_, .width = s_.width, .x = {x, DType::kBFloat16}};
  p.gamma = gamma.master;
  p.beta = beta.master;
  p.y = {y, DType::kBFloat16};
  p.mean = mean;
  p.rstd = rstd;
  const NormAddends add{bf16(residual), bias != nullptr ? bias->master : nullptr, bf16(sum)};
  operation("norm forward", [&] { return layer_norm_forward(p, add, stream_); });
}
/// dx_ = the norm's gradient, plus dx_ where `has_residual`.
void Gpt2Step::normalise_backward(const uint16_t* dy, const uint16_t* x, bool has_residual,
                                  const Parameter& gamma, const Parameter& beta, const float* mean,
                                  const float* rstd, const Parameter* bias) {
  LayerNormBackward p{.rows = rows_, .width = s_.width};
  p.dy = bf16(dy);
  p.x = bf16(x);
  p.dx = bf16(dx_);
  if (has_residual) p.d_residual = p.dx;
  p.gamma = gamma.master;
  p.mean = mean;
  p.rstd = rstd;
  p.d_gamma = gamma.sums();
  p.d_beta = beta.sums();
  if (bias != nullptr) p.d_bias = bias->sums();
  p.rounding = {kQuantumLog2, s_.micro_batches, overflow_};
  p.scratch = scratch_;
  operation("norm backward", [&] { return layer_norm_backward(p, stream_); });
}

/// From y1 to projected_, which the next norm adds to residual2.
void Gpt2Step::forward_layer(const Layer& l) {
  const int64_t c = s_.width;
  forward_product("qkv", l.y1, l.w_qkv, l.qkv, c, 3 * c, &l.b_qkv);
  AttentionForward a{.heads = s_.heads};
  a.kv_heads = s_.heads;
  a.head_dim = c / s_.heads;
  a.qkv = {l.qkv, DType::kBFloat16};
  a.out = {l.attention, DType::kBFloat16};
  a.lse = l.lse;
  operation("attention forward",
            [&] { return attention_.forward(a, windows_, attention_scratch_, stream_); });
  forward_product("attproj", l.attention, l.w_out, projected_, c, c);
  normalise(projected_, &l.b_out, l.residual1, l.gamma2, l.beta2, l.residual2, l.y2, l.mean2,
            l.rstd2);
  forward_product("fc", l.y2, l.w_up, l.up, c, 4 * c);
  const GeluForward g{
      .count = rows_ * 4 * c, .x = {l.up, DType::kBFloat16}, .y = {l.gelu, DType::kBFloat16}};
  operation("gelu forward", [&] { return gelu_forward(g, 4 * c, l.b_up.master, stream_); });
  forward_product("fcproj", l.gelu, l.w_down, projected_, 4 * c, c);
}

/// From dx_ behind the layer to dx_ before it.
void Gpt2Step::backward_layer(const Layer& l, const Parameter* bias_before) {
  const int64_t c = s_.width;
  backward_product("fcproj", l.gelu, dx_, l.w_down, wide_, 4 * c, c);
  const GeluBackward g{
      .count = rows_ * 4 * c, .dy = bf16(wide_), .x = bf16(l.up), .dx = bf16(wide_)};
  BiasBackward b{.rows = rows_, .width = 4 * c, .dy = g.dx, .quantum_log2 = kQuantumLog2};
  b.partials = s_.micro_batches;
  b.d_bias = l.b_up.sums();
  b.overflow = overflow_;
  operation("gelu backward", [&] { return gelu_backward(g, l.b_up.master, b, scratch_, stream_); });
  backward_product("fc", l.y2, wide_, l.w_up, dy_, c, 4 * c);
  normalise_backward(dy_, l.residual2, true, l.gamma2, l.beta2, l.mean2, l.rstd2, &l.b_out);
  backward_product("attproj", l.attention, dx_, l.w_out, dy_, c, c);
  AttentionBackward a{.heads = s_.heads};
  a.kv_heads = s_.heads;
  a.head_dim = c / s_.heads;
  a.qkv = {l.qkv, DType::kBFloat16};
  a.out = {l.attention, DType::kBFloat16};
  a.d_out = {dy_, DType::kBFloat16};
  a.lse = l.lse;
  a.d_qkv = {wide_, DType::kBFloat16};
  operation("attention backward",
            [&] { return attention_.backward(a, windows_, attention_scratch_, stream_); });
  b.width = 3 * c;
  b.d_bias = l.b_qkv.sums();
  operation("qkv bias sums", [&] { return bias_backward(b, scratch_, stream_); });
  backward_product("qkv", l.y1, wide_, l.w_qkv, dy_, c, 3 * c);
  normalise_backward(dy_, l.residual1, true, l.gamma1, l.beta1, l.mean1, l.rstd1, bias_before);
}

/// From y_ to dy_, chunk by chunk.
void Gpt2Step::classifier() {
  const int64_t c = s_.width;
  const int64_t rows = rows_ / s_.classifier_chunks;
  for (int64_t chunk = 0; chunk < s_.classifier_chunks; ++chunk) {
    const uint16_t* const y = y_ + chunk * rows * c;
    product("logits", y, wte_.bf16, logits_,
            {.m = rows, .n = s_.vocab, .k = c, .transpose_b = true});
    CrossEntropy p{.rows = rows, .vocab = s_.vocab, .padded_vocab = s_.vocab};
    p.d_logits = {logits_, DType::kBFloat16};
    p.logits = p.d_logits;
    p.targets = batch_targets_ + chunk * rows;
    p.loss_sum = loss_sum_;
    operation("cross-entropy", [&] { return cross_entropy(p, stream_); });
    product("logits dgrad", logits_, wte_.bf16, dy_ + chunk * rows * c,
            {.m = rows, .n = c, .k = s_.vocab});
    weight_gradient("logits wgrad", y, logits_, wte_, rows, c, s_.vocab, !is_first_ || chunk > 0);
  }
}

void Gpt2Step::micro_batch(int64_t index) {
  batch_tokens_ = tokens_ + index * rows_;
  batch_targets_ = targets_ + index * rows_;
  EmbeddingForward e{.width = s_.width, .tokens = batch_tokens_};
  e.wte = {wte_.bf16, DType::kBFloat16};
  e.wpe = {wpe_.bf16, DType::kBFloat16};
  e.y = {embedded_, DType::kBFloat16};
  operation("embedding forward", [&] { return embedding_forward(e, windows_, stream_); });
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
  EmbeddingBackward b{.width = s_.width, .tokens = batch_tokens_, .held = {.count = s_.vocab}};
  b.dy = bf16(dx_);
  b.quantum_log2 = kQuantumLog2;
  b.partials = s_.micro_batches * (rows_ + s_.classifier_chunks);
  b.d_wte = wte_.sums();
  b.d_wpe = wpe_.sums();
  b.overflow = overflow_;
  operation("embedding backward",
            [&] { return embedding_backward(b, windows_, s_.sequence, lists_, stream_); });
}

void Gpt2Step::passes(bool reversed) {
  const size_t size = canonical_ ? sizeof(int64_t) : sizeof(float);
  operation("memset", [&] {
    // Products overwrite; what else adds to matrices is the embedding of positions.
    check(cudaMemsetAsync(canonical_ ? static_cast<void*>(wpe_.exact) : wpe_.gradient, 0,
                          static_cast<size_t>(wpe_.count) * size, stream_),
          "");
    check(
        cudaMemsetAsync(static_cast<std::byte*>(gradients_) + static_cast<size_t>(matrices_) * size,
                        0, static_cast<size_t>(vectors_) * size, stream_),
        "");
    check(cudaMemsetAsync(limbs_, 0, kSquareLimbs * sizeof(int64_t), stream_), "");
    check(cudaMemsetAsync(overflow_, 0, sizeof *overflow_, stream_), "");
    return cudaMemsetAsync(loss_sum_, 0, sizeof(int64_t), stream_);
  });
  for (int64_t i = 0; i < s_.micro_batches; ++i) {
    is_first_ = i == 0;
    is_last_ = i + 1 == s_.micro_batches;
    micro_batch(reversed ? s_.micro_batches - 1 - i : i);
  }
  operation("sum of squares", [&] {
    if (!canonical_) return square(0, parameters());
    // Of what the products have not squared: the embeddings, which come first, and all vectors.
    check(square(0, wte_.count + wpe_.count), "sum of squares");
    return square(matrices_, vectors_);
  });
}

double Gpt2Step::gradient_scale() const {
  return std::ldexp(1.0, -kQuantumLog2) / static_cast<double>(tokens_per_step());
}

cudaError_t Gpt2Step::square(int64_t first, int64_t count) {
  SumOfSquares p{.count = count, .limbs = limbs_, .overflow = overflow_};
  if (canonical_) {
    p.gradient = {.sums = static_cast<int64_t*>(gradients_) + first, .scale = gradient_scale()};
  } else {
    p.gradient.rounded = static_cast<float*>(gradients_) + first;
  }
  p.rounded_scale = 1.0F / static_cast<float>(tokens_per_step());
  return sum_of_squares(p, stream_);
}

std::pair<Gpt2Step::SquareLimbs, Gpt2Step::SquareLimbs> Gpt2Step::squares() {
  const auto read = [this] {
    SquareLimbs limbs = {};
    check(cudaMemcpyAsync(limbs.data(), limbs_, sizeof limbs, cudaMemcpyDeviceToHost, stream_), "");
    check(cudaStreamSynchronize(stream_), "squares");
    for (size_t k = 0; k + 1 < limbs.size(); ++k) {
      limbs[k + 1] += limbs[k] >> kSquareLimbBits;
      limbs[k] &= (int64_t{1} << kSquareLimbBits) - 1;
    }
    return limbs;
  };
  const SquareLimbs found = read();
  check(cudaMemsetAsync(limbs_, 0, kSquareLimbs * sizeof(int64_t), stream_), "squares");
  check(square(0, parameters()), "squares");
  return {found, read()};
}

void Gpt2Step::update() {
  int64_t limbs[kSquareLimbs] = {};
  uint32_t overflow = 0;
  check(cudaMemcpyAsync(limbs, limbs_, sizeof limbs, cudaMemcpyDeviceToHost, stream_), "norm");
  check(cudaMemcpyAsync(&overflow, overflow_, sizeof overflow, cudaMemcpyDeviceToHost, stream_),
        "norm");
  check(cudaStreamSynchronize(stream_), "norm");
  double squares = 0;
  for (int k = kSquareLimbs; k-- > 0;)
    squares += std::ldexp(static_cast<double>(limbs[k]), k * kSquareLimbBits - kSquareQuantumLog2);
  const auto tokens = static_cast<double>(tokens_per_step());
  gradient_norm_ = std::sqrt(squares);
  if (overflow != 0) {
    std::fprintf(stderr, "gpt2_step: a gradient does not fit its fixed point\n");
    std::exit(1);  // NOLINT(concurrency-mt-unsafe)
  }
  ++steps_;
  const auto steps = static_cast<double>(steps_);
  const double clip = std::min(1.0, static_cast<double>(kClip) / (gradient_norm_ + 1e-6));
  OptimizerScalars& scalars = next_scalars_;
  scalars.gradient_norm = gradient_norm_;
  scalars.clip_scale = static_cast<float>(canonical_ ? clip : clip / tokens);
  scalars.learning_rate = s_.learning_rate;
  scalars.bias_correction1 = static_cast<float>(1 / (1 - std::pow(0.9, steps)));
  scalars.bias_correction2 = static_cast<float>(1 / (1 - std::pow(0.95, steps)));
  check(cudaMemcpyAsync(scalars_, &scalars, sizeof scalars, cudaMemcpyHostToDevice, stream_),
        "scalars");
  operation("adamw", [&] { return adamw(tensors_, stream_); });
}

double Gpt2Step::loss() {
  int64_t sum = 0;
  check(cudaMemcpyAsync(&sum, loss_sum_, sizeof sum, cudaMemcpyDeviceToHost, stream_), "loss");
  check(cudaStreamSynchronize(stream_), "loss");
  return std::ldexp(static_cast<double>(sum), -kLossQuantumLog2) /
         static_cast<double>(tokens_per_step());
}

uint64_t Gpt2Step::gradient_hash() {
  const auto bytes = static_cast<size_t>(parameters()) * (canonical_ ? 8 : 4);
  std::vector<uint32_t> words(bytes / sizeof(uint32_t));
  check(cudaMemcpyAsync(words.data(), gradients_, bytes, cudaMemcpyDeviceToHost, stream_), "hash");
  check(cudaStreamSynchronize(stream_), "hash");
  uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a over words
  for (const uint32_t word : words)
    hash = (hash ^ word) * 0x100000001b3U;
  return hash;
}

std::map<std::string, Gpt2Step::Spent> Gpt2Step::profile() {
  profiles_ = true;
  passes();
  update();
  profiles_ = false;
  check(cudaStreamSynchronize(stream_), "profile");
  std::map<std::string, Spent> spent;
  for (const Span& span : spans_) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, span.begin, span.end), "profile");
    spent[span.name].ms += static_cast<double>(ms);
    ++spent[span.name].calls;
    cudaEventDestroy(span.begin);
    cudaEventDestroy(span.end);
  }
  spans_.clear();
  return spent;
}

void Gpt2Step::write(std::FILE* file) {
  const auto put = [&](const void* from, int64_t count) {  // of 4 bytes each
    std::vector<uint32_t> words(static_cast<size_t>(count));
    check(cudaMemcpyAsync(words.data(), from, words.size() * 4, cudaMemcpyDeviceToHost, stream_),
          "export");
    check(cudaStreamSynchronize(stream_), "export");
    if (std::fwrite(words.data(), 4, words.size(), file) != words.size()) {
      std::fprintf(stderr, "gpt2_step: the exported weights could not be written\n");
      std::exit(1);  // NOLINT(concurrency-mt-unsafe)
    }
  };
  for (const Parameter& p : all_)
    put(p.master, p.count);
  put(tokens_, tokens_per_step());
  put(targets_, tokens_per_step());
}

}  // namespace trainyard::kernels::cuda
