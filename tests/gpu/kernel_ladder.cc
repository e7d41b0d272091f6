// Speed of each CUDA kernel against the device's copy, as lines of JSON.
//
//   gpu_kernel_ladder [--tokens N] [--width N] [--heads N] [--kv-heads N] [--vocab N] [--runs N]
//                     [--skip NAME,NAME]
//
// A kernel that fails is one line with its error, and ends the program: a device may be lost by
// then. Called again with --skip it measures the others. Memory-bound kernels: GB/s of the bytes
// that the operation must move; attention: TFLOP/s, causal halved, backward 2.5 times forward.
// Medians over CUDA events.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/ops.h"
#include "kernels/simt/runtime.h"
#include "tests/gpu/windows.h"

namespace trainyard::kernels::cuda {
namespace {

struct Settings {
  int64_t tokens = 65536, width = 768, heads = 12, kv_heads = 0, vocab = 50304, sequence = 1024;
  int64_t runs = 20;
  std::string skip;
};

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "gpu_kernel_ladder: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);  // NOLINT(concurrency-mt-unsafe)
}

class Ladder {
 public:
  explicit Ladder(const Settings& settings) : s_(settings) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    for (cudaEvent_t& event : events_)
      check(cudaEventCreateWithFlags(&event, 0), "event");
  }

  /// Values of a normal-like spread in bf16 or fp32, and int32 tokens below the vocabulary.
  template <typename T>
  T* fresh(int64_t count) {
    void* memory = nullptr;
    check(cudaMallocAsync(&memory, static_cast<size_t>(count) * sizeof(T), stream_), "memory");
    constexpr int64_t kPiece = int64_t{1} << 20U;
    std::vector<T> values(static_cast<size_t>(std::min(count, kPiece)));
    for (T& x : values) {
      state_ = state_ * 6364136223846793005U + 1442695040888963407U;
      const auto r = static_cast<uint32_t>(state_ >> 33U);
      if constexpr (sizeof(T) == 2) {  // bf16 of magnitudes 1/8 to 2
        x = static_cast<T>((r & 0x807fU) | (0x3e00U + (r >> 16U & 3U) * 0x80U));
      } else if constexpr (std::is_integral_v<T>) {
        x = static_cast<T>(r % static_cast<uint32_t>(s_.vocab));
      } else {
        x = static_cast<T>(static_cast<int32_t>(r)) * static_cast<T>(0x1p-30);
      }
    }
    for (int64_t i = 0; i < count; i += kPiece) {
      const auto bytes = static_cast<size_t>(std::min(kPiece, count - i)) * sizeof(T);
      check(cudaMemcpyAsync(static_cast<T*>(memory) + i, values.data(), bytes,
                            cudaMemcpyHostToDevice, stream_),
            "upload");
    }
    check(cudaStreamSynchronize(stream_), "upload");
    return static_cast<T*>(memory);
  }

  using Operation = std::function<cudaError_t(cudaStream_t)>;
  void measure(const char* name, double bytes, double flops, const Operation& run) {
    if (("," + s_.skip + ",").find("," + std::string(name) + ",") != std::string::npos) return;
    std::printf("{\"begins\": \"%s\"}\n", name);
    std::fflush(stdout);
    std::vector<float> times;
    for (int64_t i = 0; i < s_.runs + 3; ++i) {
      check(cudaEventRecord(events_[0], stream_), name);
      cudaError_t error = run(stream_);
      check(cudaEventRecord(events_[1], stream_), name);
      if (error == cudaSuccess) error = cudaEventSynchronize(events_[1]);
      if (error != cudaSuccess) {
        std::printf("{\"kernel\": \"%s\", \"error\": \"%s\"}\n", name, cudaGetErrorString(error));
        std::fflush(stdout);
        std::exit(1);  // NOLINT(concurrency-mt-unsafe)
      }
      float ms = 0;
      check(cudaEventElapsedTime(&ms, events_[0], events_[1]), name);
      if (i >= 3) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    const double ms = static_cast<double>(times[times.size() / 2]);
    std::printf(
        "{\"kernel\": \"%s\", \"tokens\": %lld, \"width\": %lld, \"ms\": %.5f, \"gb_s\": %.1f, "
        "\"tflop_s\": %.2f}\n",
        name, static_cast<long long>(s_.tokens), static_cast<long long>(s_.width), ms,
        bytes / ms * 1e-6, flops / ms * 1e-9);
    std::fflush(stdout);
  }

  void run_all() {
    const int64_t count = s_.tokens * s_.width;
    const auto c = static_cast<double>(count);
    auto* const a = fresh<uint16_t>(4 * count);  // [tokens, 4 width] at most
    auto* const b = fresh<uint16_t>(4 * count);
    auto* const d = fresh<uint16_t>(4 * count);
    auto* const row = fresh<float>(4 * s_.width);
    auto* const statistics = fresh<float>(2 * s_.tokens);
    auto* const sums = fresh<float>(16 * s_.width);
    auto* const scratch =
        fresh<float>(norm_scratch_floats(s_.width) + bias_scratch_floats(4 * s_.width));
    measure("copy", 4 * 2 * 2 * c, 0, [&](cudaStream_t st) {
      return cudaMemcpyAsync(b, a, static_cast<size_t>(count) * 8, cudaMemcpyDeviceToDevice, st);
    });
    norms(a, b, d, row, statistics, sums, scratch);
    pointwise(a, b, d, row, sums, scratch);
    attention(a, b, d);
    classifier();
    optimizer();
  }

 private:
  static Elements bf16(uint16_t* elements) { return {elements, DType::kBFloat16}; }

  void norms(uint16_t* a, uint16_t* b, uint16_t* d, float* row, float* statistics, float* sums,
             float* scratch) {
    const auto c = static_cast<double>(s_.tokens * s_.width);
    LayerNormForward f{.rows = s_.tokens, .width = s_.width, .x = bf16(a)};
    const NormAddends add{bf16(b), row, bf16(b)};
    f.gamma = f.beta = row;
    f.y = bf16(d);
    f.mean = statistics;
    f.rstd = statistics + s_.tokens;
    measure("layer_norm_forward", 2 * 4 * c, 0,
            [=](cudaStream_t st) { return layer_norm_forward(f, add, st); });
    LayerNormBackward g{.rows = s_.tokens, .width = s_.width, .dy = bf16(a), .x = bf16(d)};
    g.d_residual = bf16(b);
    g.gamma = row;
    g.mean = f.mean;
    g.rstd = f.rstd;
    g.dx = bf16(b);
    g.d_gamma.sum = sums;
    g.d_beta.sum = sums + s_.width;
    g.d_bias.sum = sums + 2 * s_.width;
    g.scratch = scratch;
    measure("layer_norm_backward", 2 * 4 * c, 0,
            [=](cudaStream_t st) { return layer_norm_backward(g, st); });
    LayerNormBackward exact = g;
    exact.d_gamma = fresh<int64_t>(s_.width);
    exact.d_beta = fresh<int64_t>(s_.width);
    exact.d_bias = fresh<int64_t>(s_.width);
    exact.rounding = {.quantum_log2 = 20, .partials = 64};
    measure("layer_norm_backward_exact", 2 * 4 * c, 0,
            [=](cudaStream_t st) { return layer_norm_backward(exact, st); });
    f.centred = g.centred = false;
    measure("rms_norm_forward", 2 * 4 * c, 0,
            [=](cudaStream_t st) { return layer_norm_forward(f, add, st); });
    g.d_beta = {};
    measure("rms_norm_backward", 2 * 4 * c, 0,
            [=](cudaStream_t st) { return layer_norm_backward(g, st); });
  }

  void pointwise(uint16_t* a, uint16_t* b, uint16_t* d, float* row, float* sums, float* scratch) {
    const int64_t wide = 4 * s_.width;
    const auto c = static_cast<double>(s_.tokens * wide);
    const GeluForward f{.count = s_.tokens * wide, .x = bf16(a), .y = bf16(b)};
    measure("gelu_forward", 2 * 2 * c, 0,
            [=](cudaStream_t st) { return gelu_forward(f, wide, row, st); });
    const GeluBackward g{.count = f.count, .dy = bf16(b), .x = bf16(a), .dx = bf16(d)};
    BiasBackward q{.rows = s_.tokens, .width = wide, .dy = g.dx, .d_bias = sums};
    measure("gelu_backward", 2 * 3 * c, 0,
            [=](cudaStream_t st) { return gelu_backward(g, row, q, scratch, st); });
    q.width = 3 * s_.width;
    q.dy = bf16(a);
    measure("bias_backward", 2 * 3 * c / 4, 0,
            [=](cudaStream_t st) { return bias_backward(q, scratch, st); });
    const DeviceRows rows = windows(s_.tokens / s_.sequence);
    DropoutAdd o{.width = s_.width, .dropout = {.rate = 0.1F}};
    o.x = bf16(a);
    o.residual = bf16(d);
    o.y = bf16(b);
    measure("dropout_add", 2 * 3 * c / 4, 0,
            [=](cudaStream_t st) { return dropout_add(o, rows, st); });
    const GatedForward s{.rows = s_.tokens, .width = wide / 2, .x = bf16(a), .y = bf16(b)};
    measure("swiglu_forward", 2 * 1.5 * c, 0,
            [=](cudaStream_t st) { return gated_forward(s, st); });
    GatedBackward t{.rows = s_.tokens, .width = wide / 2, .dy = bf16(b), .x = bf16(a)};
    t.dx = bf16(d);
    measure("swiglu_backward", 2 * 2.5 * c, 0,
            [=](cudaStream_t st) { return gated_backward(t, st); });
    embedding(a, b);
  }

  void embedding(uint16_t* a, uint16_t* b) {
    const auto c = static_cast<double>(s_.tokens * s_.width);
    auto* const tokens = fresh<int32_t>(s_.tokens);
    auto* const wte = fresh<uint16_t>(s_.vocab * s_.width);
    const DeviceRows rows = windows(s_.tokens / s_.sequence);
    EmbeddingForward e{.width = s_.width, .tokens = tokens};
    e.wte = bf16(wte);
    e.y = bf16(b);
    measure("embedding_forward", 2 * 2 * c, 0,
            [=](cudaStream_t st) { return embedding_forward(e, rows, st); });
    EmbeddingBackward x{.width = s_.width, .tokens = tokens, .held = {.count = s_.vocab}};
    x.dy = bf16(a);
    x.quantum_log2 = 30;
    x.partials = s_.tokens;
    x.d_wte.sum = fresh<float>(s_.vocab * s_.width);
    auto* const lists = fresh<int32_t>(embedding_scratch_ints(s_.tokens, s_.vocab));
    const double table = 8.0 * static_cast<double>(s_.vocab * s_.width);
    measure("embedding_backward", 2 * c + table, 0,
            [=](cudaStream_t st) { return embedding_backward(x, rows, 0, lists, st); });
    std::vector<int32_t> zipf(static_cast<size_t>(s_.tokens));
    for (int32_t& token : zipf) {  // as text has them
      state_ = state_ * 6364136223846793005U + 1442695040888963407U;
      const double u = static_cast<double>(state_ >> 11U) * 0x1p-53;
      token = static_cast<int32_t>(std::pow(static_cast<double>(s_.vocab), u)) - 1;
    }
    check(cudaMemcpyAsync(tokens, zipf.data(), zipf.size() * sizeof(int32_t),
                          cudaMemcpyHostToDevice, stream_),
          "tokens");
    check(cudaStreamSynchronize(stream_), "tokens");
    measure("embedding_backward_of_text", 2 * c + table, 0,
            [=](cudaStream_t st) { return embedding_backward(x, rows, 0, lists, st); });
  }

  void attention(uint16_t* qkv, uint16_t* out, uint16_t* d_qkv) {
    const int64_t head_dim = s_.width / s_.heads;
    if (head_dim != 64 && head_dim != 128) return;
    const int64_t samples = s_.tokens / s_.sequence;
    const double flops = 2.0 * 2.0 * static_cast<double>(s_.tokens * s_.sequence * s_.width) / 2;
    rope_of_heads(qkv, head_dim);
    attention_fp32(head_dim, flops / static_cast<double>(samples));
    const DeviceRows rows = windows(samples);
    AttentionForward f{.heads = s_.heads};
    f.kv_heads = s_.kv_heads > 0 ? s_.kv_heads : s_.heads;
    f.head_dim = head_dim;
    f.qkv = bf16(qkv);
    f.out = bf16(out);
    f.lse = fresh<float>(s_.tokens * s_.heads);
    measure("attention_forward", 0, flops,
            [=](cudaStream_t st) { return attention_forward(f, rows, st); });
    AttentionBackward b{.heads = s_.heads};
    b.kv_heads = f.kv_heads;
    b.head_dim = head_dim;
    b.qkv = bf16(qkv);
    b.out = b.d_out = bf16(out);
    b.lse = f.lse;
    b.d_qkv = bf16(d_qkv);
    auto* const scratch = fresh<float>(s_.tokens * s_.heads);
    measure("attention_backward", 0, 2.5 * flops,
            [=](cudaStream_t st) { return attention_backward(b, rows, scratch, st); });
    for (const bool deterministic : {false, true})
      attention_cudnn(f, b, rows, flops, deterministic);
  }

  DeviceRows windows(int64_t count) {
    static_assert(sizeof(Sequence) == 4 * sizeof(int64_t));
    DeviceRows rows;
    check(upload_windows(count, s_.sequence, reinterpret_cast<Sequence*>(fresh<int64_t>(4 * count)),
                         fresh<int32_t>(count * s_.sequence), stream_, rows),
          "windows");
    return rows;
  }

  void rope_of_heads(uint16_t* qkv, int64_t head_dim) {
    const DeviceRows rows = windows(s_.tokens / s_.sequence);
    Rope r{.heads = s_.heads, .kv_heads = s_.heads, .head_dim = head_dim};
    r.x = r.y = bf16(qkv);
    const float* const table = fresh<float>(s_.sequence * head_dim);
    measure("rope", 2 * 2 * 2 * static_cast<double>(s_.tokens * s_.width), 0,
            [=](cudaStream_t st) { return rope(r, rows, table, st); });
  }

  /// One sample, because it is slow.
  void attention_fp32(int64_t head_dim, double flops) {
    const DeviceRows rows = windows(1);
    AttentionForward f{.heads = s_.heads};
    f.kv_heads = s_.heads;
    f.head_dim = head_dim;
    f.qkv = fresh<float>(s_.sequence * 3 * s_.width);
    f.out = fresh<float>(s_.sequence * s_.width);
    f.lse = fresh<float>(s_.sequence * s_.heads);
    measure("attention_fp32_forward", 0, flops,
            [=](cudaStream_t st) { return attention_forward(f, rows, st); });
    AttentionBackward b{.heads = s_.heads};
    b.kv_heads = s_.heads;
    b.head_dim = head_dim;
    b.qkv = f.qkv;
    b.out = b.d_out = f.out;
    b.lse = f.lse;
    b.d_qkv = fresh<float>(s_.sequence * 3 * s_.width);
    auto* const scratch = fresh<float>(s_.sequence * s_.heads);
    measure("attention_fp32_backward", 0, 2.5 * flops,
            [=](cudaStream_t st) { return attention_backward(b, rows, scratch, st); });
  }

  void attention_cudnn(const AttentionForward& f, const AttentionBackward& b,
                       const DeviceRows& rows, double flops, bool deterministic) {
    Attention attention([=] { return open_cudnn_attention({.deterministic = deterministic}); },
                        [](const std::string& line) {
                          std::fprintf(stderr, "gpu_kernel_ladder: %s\n", line.c_str());
                        });
    const size_t bytes = attention.prepare({.sequences = rows.sequences_count,
                                            .longest = rows.longest,
                                            .heads = f.heads,
                                            .kv_heads = f.kv_heads,
                                            .head_dim = f.head_dim});
    if (!attention.uses_library()) return;
    void* const scratch = fresh<uint16_t>(static_cast<int64_t>(bytes / sizeof(uint16_t)));
    // A failure in the middle would time our own kernels under the library's name.
    const auto by_library = [&](cudaError_t error) {
      return error == cudaSuccess && !attention.uses_library() ? cudaErrorLaunchFailure : error;
    };
    if (!deterministic) {
      measure("attention_cudnn_forward", 0, flops,
              [&](cudaStream_t st) { return by_library(attention.forward(f, rows, scratch, st)); });
    }
    measure(deterministic ? "attention_cudnn_backward_deterministic" : "attention_cudnn_backward",
            0, 2.5 * flops,
            [&](cudaStream_t st) { return by_library(attention.backward(b, rows, scratch, st)); });
    std::printf("{\"scratch_bytes\": %zu, \"deterministic\": %s}\n", bytes,
                deterministic ? "true" : "false");
    check(cudaFreeAsync(scratch, stream_), "attention_cudnn");
  }

  void classifier() {
    const int64_t rows = std::max<int64_t>(s_.tokens / 4, 1);  // a chunk of the batch
    const auto c = static_cast<double>(rows * s_.vocab);
    CrossEntropy p{.rows = rows, .vocab = s_.vocab, .padded_vocab = s_.vocab};
    p.logits = p.d_logits = bf16(fresh<uint16_t>(rows * s_.vocab));
    p.targets = fresh<int32_t>(rows);
    p.loss_sum = fresh<int64_t>(1);
    measure("cross_entropy", 2 * 2 * c, 0, [=](cudaStream_t st) { return cross_entropy(p, st); });
  }

  void optimizer() {
    const int64_t count = s_.vocab * s_.width;
    AdamW t{.count = count, .weight_decay = 0.1F};
    float* const gradient = fresh<float>(count);
    t.gradient.rounded = gradient;
    t.parameter = fresh<float>(count);
    t.m = fresh<float>(count);
    t.v = fresh<float>(count);
    t.bf16_copy = fresh<uint16_t>(count);
    auto* const scalars = fresh<uint8_t>(sizeof(OptimizerScalars));
    const OptimizerScalars values{1, 1, 1e-4F, 1, 1, 0};
    check(cudaMemcpyAsync(scalars, &values, sizeof values, cudaMemcpyHostToDevice, stream_),
          "adamw");
    check(cudaStreamSynchronize(stream_), "adamw");
    t.scalars = reinterpret_cast<const OptimizerScalars*>(scalars);
    const auto c = static_cast<double>(count);
    measure("adamw", 30 * c, 0, [=](cudaStream_t st) { return adamw({&t, 1}, st); });
    auto* const limbs = fresh<int64_t>(kSquareLimbs);
    auto* const overflow = fresh<uint32_t>(1);
    auto* const exact = fresh<int64_t>(count);
    measure("sum_of_squares", 4 * c, 0, [=](cudaStream_t st) {
      return sum_of_squares({.count = count, .gradient = {.rounded = gradient}, .limbs = limbs},
                            st);
    });
    measure("sum_of_squares_with_flag", 4 * c, 0, [=](cudaStream_t st) {
      return sum_of_squares(
          {.count = count, .gradient = {.rounded = gradient}, .limbs = limbs, .overflow = overflow},
          st);
    });
    measure("sum_of_squares_exact", 8 * c, 0, [=](cudaStream_t st) {
      return sum_of_squares({.count = count,
                             .gradient = {.sums = exact, .scale = 0x1p-30},
                             .limbs = limbs,
                             .overflow = overflow},
                            st);
    });
    AdamW of_exact = t;
    of_exact.gradient = {.sums = exact, .scale = 0x1p-60};
    measure("adamw_exact", 34 * c, 0, [=](cudaStream_t st) { return adamw({&of_exact, 1}, st); });
    measure("cast", 6 * c, 0,
            [=](cudaStream_t st) { return cast(gradient, bf16(t.bf16_copy), count, st); });
    measure("add_exact", 20 * c, 0, [=](cudaStream_t st) {
      return add_exact(gradient, exact, count, {.quantum_log2 = 30, .partials = 64}, st);
    });
  }

  Settings s_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t events_[2] = {};
  uint64_t state_ = 1;
};

}  // namespace
}  // namespace trainyard::kernels::cuda

int main(int argc, char** argv) {
  trainyard::kernels::cuda::Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--skip") == 0) {
      settings.skip = argv[i + 1];
      continue;
    }
    const int64_t value = std::atoll(argv[i + 1]);
    int64_t* const to = std::strcmp(argv[i], "--tokens") == 0     ? &settings.tokens
                        : std::strcmp(argv[i], "--width") == 0    ? &settings.width
                        : std::strcmp(argv[i], "--heads") == 0    ? &settings.heads
                        : std::strcmp(argv[i], "--kv-heads") == 0 ? &settings.kv_heads
                        : std::strcmp(argv[i], "--vocab") == 0    ? &settings.vocab
                        : std::strcmp(argv[i], "--sequence") == 0 ? &settings.sequence
                        : std::strcmp(argv[i], "--runs") == 0     ? &settings.runs
                                                                  : nullptr;
    if (to == nullptr || value <= 0) {
      std::fprintf(stderr,
                   "gpu_kernel_ladder: %s %s: wanted --tokens, --width, --heads, --kv-heads, "
                   "--vocab, --sequence or --runs and a positive number, or --skip\n",
                   argv[i], argv[i + 1]);
      return 64;
    }
    *to = value;
  }
  trainyard::kernels::cuda::Ladder(settings).run_all();
  return 0;
}
