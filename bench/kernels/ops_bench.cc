// ops_bench [threads]: rates of the operations that are not matrix products, fastest instruction
// set, by CPU time of the process over the threads; medians of 7.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <time.h>
#include <vector>

#include "kernels/cpu/cpu_kernel_set.h"

namespace trainyard::bench {
namespace {

std::vector<float> values(int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  uint32_t state = 7;
  for (float& v : x) {
    state = state * 1664525U + 1013904223U;
    v = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31F;
  }
  return x;
}

class Bench {
 public:
  explicit Bench(int threads)
      : threads_(threads),
        kernels_(*kernels::make_cpu_kernel_set(kernels::best_isa(), threads)),
        scratch_(static_cast<std::byte*>(
                     std::aligned_alloc(64, static_cast<size_t>(kernels_->scratch_bytes()))),
                 std::free) {
    kernels_->set_scratch({scratch_.get(), static_cast<size_t>(kernels_->scratch_bytes())});
  }

  /// Prints `amount` / 1e9 per second.
  void report(const char* what, double amount, const char* unit, const std::function<void()>& run) {
    const int inner = static_cast<int>(std::max(1.0, 2e7 / amount));
    std::vector<double> rates;
    for (int repeat = 0; repeat < 8; ++repeat) {
      const double start = cpu_seconds();
      for (int i = 0; i < inner; ++i)
        run();
      const double rate = 1e-9 * amount * inner * threads_ / (cpu_seconds() - start);
      if (repeat > 0) rates.push_back(rate);
    }
    std::sort(rates.begin(), rates.end());
    std::printf("%-34s %9.2f %s\n", what, rates[rates.size() / 2], unit);
  }

  static std::vector<kernels::Sequence> windows(int64_t count, int64_t length) {
    std::vector<kernels::Sequence> sequences;
    for (int64_t i = 0; i < count; ++i)
      sequences.push_back({.begin = i * length, .length = length, .ordinal = i});
    return sequences;
  }

  void attention(DType type, int64_t tokens, int64_t heads, int64_t head_dim, float rate) {
    const std::vector<kernels::Sequence> sequences =
        windows(std::max<int64_t>(1, 1024 / tokens), tokens);
    const int64_t rows = std::ssize(sequences) * tokens;
    const kernels::Rows all{.count = rows, .sequences = sequences};
    const int64_t width = heads * head_dim;
    const std::vector<float> qkv = values(rows * 3 * width);
    std::vector<uint16_t> qkv16(qkv.size());
    kernels_->cast_to_bf16(qkv.data(), qkv16.data(), static_cast<int64_t>(qkv.size()));
    std::vector<float> out(static_cast<size_t>(rows * width));
    std::vector<float> d_qkv(qkv.size());
    const std::vector<float> d_out = values(rows * width);
    std::vector<float> lse(static_cast<size_t>(rows * heads));
    kernels::OverflowFlag overflow{0};
    const kernels::DropoutKey key{.rate = rate, .seed = 1, .op = 2};
    const bool f32 = type == DType::kFloat32;
    const void* in = f32 ? static_cast<const void*>(qkv.data()) : qkv16.data();
    const std::string name = std::string(name_of(type)) + " T " + std::to_string(tokens) + " D " +
                             std::to_string(head_dim) + (rate > 0 ? " dropout" : "");
    const double unit = static_cast<double>(rows * tokens * width);
    report(("attention forward " + name).c_str(), 2 * unit, "GF/s (causal)", [&] {
      kernels_->attention_forward({.rows = all,
                                   .heads = heads,
                                   .kv_heads = heads,
                                   .head_dim = head_dim,
                                   .dropout = key,
                                   .qkv = {in, type},
                                   .out = {out.data(), type},
                                   .lse = lse.data(),
                                   .overflow = &overflow});
    });
    report(("attention backward " + name).c_str(), 4 * unit, "GF/s (causal)", [&] {
      kernels_->attention_backward({.rows = all,
                                    .heads = heads,
                                    .kv_heads = heads,
                                    .head_dim = head_dim,
                                    .dropout = key,
                                    .qkv = {in, type},
                                    .out = {out.data(), type},
                                    .lse = lse.data(),
                                    .d_out = d_out.data(),
                                    .d_qkv = {d_qkv.data(), type},
                                    .overflow = &overflow});
    });
  }

  void rows() {
    constexpr int64_t kRows = 1024;
    constexpr int64_t kWidth = 768;
    constexpr int64_t kCount = kRows * kWidth;
    const std::vector<float> x = values(kCount);
    const std::vector<float> w = values(kWidth);
    std::vector<float> y(kCount);
    std::vector<float> mean(kRows);
    std::vector<float> rstd(kRows);
    std::vector<int64_t> sums(2 * kWidth);
    const std::vector<kernels::Sequence> sequences = windows(8, 128);
    const kernels::Grains grains{sequences, 128};
    kernels::OverflowFlag overflow{0};
    report("layer norm forward", kCount, "G elements/s", [&] {
      kernels_->layer_norm_forward({.rows = kRows,
                                    .width = kWidth,
                                    .x = x.data(),
                                    .gamma = w.data(),
                                    .beta = w.data(),
                                    .y = y.data(),
                                    .mean = mean.data(),
                                    .rstd = rstd.data()});
    });
    report("layer norm backward input", kCount, "G elements/s", [&] {
      kernels_->layer_norm_backward_input({.rows = kRows,
                                           .width = kWidth,
                                           .dy = x.data(),
                                           .x = x.data(),
                                           .gamma = w.data(),
                                           .mean = mean.data(),
                                           .rstd = rstd.data(),
                                           .dx = y.data()});
    });
    report("layer norm backward weight", kCount, "G elements/s", [&] {
      kernels_->layer_norm_backward_weight({.rows = kRows,
                                            .width = kWidth,
                                            .dy = x.data(),
                                            .x = x.data(),
                                            .mean = mean.data(),
                                            .rstd = rstd.data(),
                                            .grains = grains,
                                            .quantum_log2 = 30,
                                            .dgamma = sums.data(),
                                            .dbeta = sums.data() + kWidth,
                                            .overflow = &overflow});
    });
    report("bias backward", kCount, "G elements/s", [&] {
      kernels_->bias_backward({.rows = kRows,
                               .width = kWidth,
                               .dy = x.data(),
                               .stride = kWidth,
                               .grains = grains,
                               .quantum_log2 = 30,
                               .d_bias = sums.data(),
                               .overflow = &overflow});
    });
    report("gelu forward", kCount, "G elements/s",
           [&] { kernels_->gelu_forward({.count = kCount, .x = x.data(), .y = y.data()}); });
    report("gelu backward", kCount, "G elements/s", [&] {
      kernels_->gelu_backward({.count = kCount, .dy = x.data(), .x = x.data(), .dx = y.data()});
    });
    for (const float rate : {0.0F, 0.1F}) {
      report(rate > 0 ? "dropout add, rate 0.1" : "dropout add, rate 0", kCount, "G elements/s",
             [&] {
               kernels_->dropout_add({.rows = {.count = kRows, .sequences = sequences},
                                      .width = kWidth,
                                      .dropout = {.rate = rate, .seed = 1, .op = 1},
                                      .x = x.data(),
                                      .residual = x.data(),
                                      .y = y.data()});
             });
    }
  }

  void cross_entropy() {
    constexpr int64_t kRows = 64;
    constexpr int64_t kVocab = 50304;
    const std::vector<float> logits = values(kRows * kVocab);
    std::vector<float> d(logits.size());
    const std::vector<int32_t> targets(kRows, 17);
    int64_t loss = 0;
    kernels::OverflowFlag overflow{0};
    report("cross-entropy with gradient", kRows * kVocab, "G elements/s", [&] {
      kernels_->cross_entropy({.rows = kRows,
                               .vocab = kVocab,
                               .padded_vocab = kVocab,
                               .logits = logits.data(),
                               .targets = targets.data(),
                               .loss_sum = &loss,
                               .d_logits = d.data(),
                               .overflow = &overflow});
    });
  }

  void optimizer() {
    constexpr int64_t kCount = 8 << 20;
    std::vector<float> p = values(kCount);
    std::vector<float> m = p;
    std::vector<float> v(kCount, 0.1F);
    const std::vector<int64_t> sums(kCount, 12345);
    const kernels::StepGradient gradient{sums.data(), 1e-12};
    std::vector<int64_t> limbs(kernels::kSquareLimbs);
    const kernels::OptimizerScalars scalars{1, 1, 1e-4F, 1, 1, 0};
    const kernels::AdamW update{.count = kCount,
                                .gradient = gradient,
                                .parameter = p.data(),
                                .m = m.data(),
                                .v = v.data(),
                                .scalars = &scalars};
    report("adamw (32 bytes an element)", 32.0 * kCount, "GB/s", [&] {
      kernels_->adamw({&update, 1});
    });
    report("sum of squares (8 bytes)", 8.0 * kCount, "GB/s", [&] {
      kernels_->sum_of_squares({.count = kCount, .gradient = gradient, .limbs = limbs.data()});
    });
  }

 private:
  static double cpu_seconds() {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }

  int threads_;
  std::unique_ptr<kernels::KernelSet> kernels_;
  std::unique_ptr<std::byte, void (*)(void*)> scratch_;
};

}  // namespace
}  // namespace trainyard::bench

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  if (threads < 1) {
    std::fprintf(stderr, "usage: ops_bench [threads]\n");
    return 64;
  }
  trainyard::bench::Bench bench(threads);
  using trainyard::DType;
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    bench.attention(type, 64, 6, 32, 0);
    bench.attention(type, 128, 6, 64, 0);
    bench.attention(type, 1024, 12, 64, 0);
  }
  bench.attention(DType::kFloat32, 128, 6, 64, 0.1F);
  bench.rows();
  bench.cross_entropy();
  bench.optimizer();
  return 0;
}
