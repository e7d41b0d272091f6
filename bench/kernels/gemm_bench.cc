// gemm_bench [--threads N] [--isa generic|avx2|avx512|avx512_bf16|amx] [--repeats N] [--shape
// part-of-name]
//
// Rate of the matrix products that training runs, beside the peak of a register-only loop and,
// where found when this was configured, OpenBLAS (fp32) and oneDNN (both types). Every repeat runs
// all contenders in turn; medians are printed. Rates of one thread are by CPU time of the process,
// so that a busy machine does not blur them, those of more by elapsed time; `wall` is by elapsed
// time.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

#include "bench/kernels/peak.h"
#include "bench/kernels/peers.h"
#include "kernels/cpu/cpu_kernel_set.h"

namespace trainyard::bench {
namespace {

using kernels::GemmOutput;
using kernels::Isa;

struct Options {
  int threads = 1;
  Isa isa = kernels::best_isa();
  int repeats = 5;
  std::string shape;  // only shapes whose name contains this
};

struct Shape {
  const char* what;
  int64_t m, n, k;
  bool transpose_a, transpose_b;
  GemmOutput output;
  int64_t grain;  // of the chains; 0: one chain
};

// A GPT of hidden size 192 or 384 with 512 tokens a step, and GPT-2 124M with 1,024.
constexpr Shape kShapes[] = {
    {"qkv 192", 512, 576, 192, false, true, GemmOutput::kStore, 0},
    {"ffn up 192", 512, 768, 192, false, true, GemmOutput::kStore, 0},
    {"ffn down 192", 512, 192, 768, false, true, GemmOutput::kExactRound, 128},
    {"dx 192", 512, 192, 768, false, false, GemmOutput::kExactRound, 128},
    {"dw 192", 768, 192, 512, true, false, GemmOutput::kExactAccumulate, 128},
    {"qkv 384", 512, 1152, 384, false, true, GemmOutput::kStore, 0},
    {"ffn down 384", 512, 384, 1536, false, true, GemmOutput::kExactRound, 256},
    {"dw 384", 1536, 384, 512, true, false, GemmOutput::kExactAccumulate, 128},
    {"qkv 768", 1024, 2304, 768, false, true, GemmOutput::kStore, 0},
    {"ffn up 768", 1024, 3072, 768, false, true, GemmOutput::kStore, 0},
    {"ffn down 768", 1024, 768, 3072, false, true, GemmOutput::kExactRound, 256},
    {"dx 768", 1024, 768, 3072, false, false, GemmOutput::kExactRound, 256},
    {"dw 768", 768, 3072, 1024, true, false, GemmOutput::kExactAccumulate, 128},
    {"logits", 256, 50304, 768, false, true, GemmOutput::kStore, 0},
    {"d logits", 256, 768, 50304, false, false, GemmOutput::kExactRound, 4192},
    {"2048 cubed", 2048, 2048, 2048, false, false, GemmOutput::kStore, 0},
};

double seconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Longer than the worker threads of OpenBLAS and OpenMP go on spinning after a product.
constexpr std::chrono::milliseconds kSpinOut{100};
/// What the kernel's scheduler needs until threads that were woken together have a core each.
constexpr double kSpreadSeconds = 0.1;

/// GF/s of one contestant.
struct Rate {
  std::vector<double> cpu, wall;
  void add(double flops, int threads, const std::function<void()>& run) {
    if (threads > 1) {
      std::this_thread::sleep_for(kSpinOut);
      const double begin = seconds(CLOCK_MONOTONIC);
      while (seconds(CLOCK_MONOTONIC) < begin + kSpreadSeconds)
        run();
    }
    const double cpu0 = seconds(CLOCK_PROCESS_CPUTIME_ID);
    const double wall0 = seconds(CLOCK_MONOTONIC);
    run();
    const double wall1 = seconds(CLOCK_MONOTONIC);
    const double cpu1 = seconds(CLOCK_PROCESS_CPUTIME_ID);
    cpu.push_back(1e-9 * flops / (cpu1 - cpu0));
    wall.push_back(1e-9 * flops / (wall1 - wall0));
  }
  /// By the processor's clock, which a busy machine does not disturb, where one thread works;
  /// threads that wait for one another take the wall's.
  double median(int threads) const { return median(threads > 1 ? wall : cpu); }
  static double median(std::vector<double> v) {
    if (v.empty()) return 0;
    std::nth_element(v.begin(), v.begin() + static_cast<ptrdiff_t>(v.size() / 2), v.end());
    return v[v.size() / 2];
  }
};

/// Values of magnitude near 1, so that no exact sum overflows.
std::vector<float> values(int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  uint32_t state = 1;
  for (float& v : x) {
    state = state * 1664525U + 1013904223U;
    v = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31F;
  }
  return x;
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        kernels_(*kernels::make_cpu_kernel_set(options.isa, options.threads)),
        scratch_(static_cast<std::byte*>(
            std::aligned_alloc(64, static_cast<size_t>(kernels_->scratch_bytes())))) {
    kernels_->set_scratch({scratch_.get(), static_cast<size_t>(kernels_->scratch_bytes())});
  }

  void run(DType type) {
    std::printf("%s %s, %d threads\n", std::string(name_of(options_.isa)).c_str(),
                std::string(name_of(type)).c_str(), options_.threads);
    std::printf("%-13s %6s %6s %6s %9s %7s %9s %9s %9s\n", "", "m", "n", "k", "GF/s", "% peak",
                "wall", "OpenBLAS", "oneDNN");
    for (const Shape& shape : kShapes) {
      const bool wanted = std::string(shape.what).find(options_.shape) != std::string::npos;
      if (wanted) run_shape(shape, type);
    }
  }

 private:
  void run_peak(Rate& rate, DType type) {
    const PeakLoop loop = peak_loop(options_.isa, type);
    constexpr int64_t kIterations = 300000;
    if (options_.threads > 1) {
      rate.wall.push_back(peak_of_threads(loop, kIterations));
      return;
    }
    float sink = 0;
    const auto flops = static_cast<double>(loop(1, &sink)) * kIterations;
    rate.add(flops, 1, [&] { loop(kIterations, &sink); });
  }

  /// The sum of the best rates of threads that run at once, each by its own clock, once they have a
  /// core each.
  double peak_of_threads(PeakLoop loop, int64_t iterations) const {
    std::this_thread::sleep_for(kSpinOut);
    std::vector<double> rates(static_cast<size_t>(options_.threads), 0.0);
    const auto measure = [loop, iterations](double& rate) {
      float sink = 0;
      const auto flops = static_cast<double>(loop(1, &sink)) * static_cast<double>(iterations);
      const double begin = seconds(CLOCK_MONOTONIC);
      double now = begin;
      while (now < begin + 2 * kSpreadSeconds) {
        loop(iterations, &sink);
        const double after = seconds(CLOCK_MONOTONIC);
        if (now > begin + kSpreadSeconds) rate = std::max(rate, 1e-9 * flops / (after - now));
        now = after;
      }
    };
    {
      std::vector<std::jthread> others;
      for (size_t t = 1; t < rates.size(); ++t)
        others.emplace_back([&, t] { measure(rates[t]); });
      measure(rates[0]);
    }
    return std::accumulate(rates.begin(), rates.end(), 0.0);
  }

  void run_shape(const Shape& s, DType type) {
    const std::vector<float> a = values(s.m * s.k);
    const std::vector<float> b = values(s.k * s.n);
    std::vector<uint16_t> a16(a.size());
    std::vector<uint16_t> b16(b.size());
    kernels_->cast_to_bf16(a.data(), a16.data(), s.m * s.k);
    kernels_->cast_to_bf16(b.data(), b16.data(), s.k * s.n);
    std::vector<int64_t> c(static_cast<size_t>(s.m * s.n), 0);
    std::vector<int64_t> ends;
    for (int64_t end = s.grain; s.grain > 0 && end < s.k; end += s.grain)
      ends.push_back(end);
    if (s.grain > 0) ends.push_back(s.k);
    const bool f32 = type == DType::kFloat32;
    kernels::OverflowFlag overflow{0};
    const kernels::GemmParams p{.m = s.m,
                                .n = s.n,
                                .k = s.k,
                                .a = f32 ? static_cast<const void*>(a.data()) : a16.data(),
                                .lda = s.transpose_a ? s.m : s.k,
                                .transpose_a = s.transpose_a,
                                .b = f32 ? static_cast<const void*>(b.data()) : b16.data(),
                                .ldb = s.transpose_b ? s.k : s.n,
                                .transpose_b = s.transpose_b,
                                .input = type,
                                .chain_ends = ends,
                                .output = s.output,
                                .c = c.data(),
                                .ldc = s.n,
                                .overflow = &overflow};
    const PeerProduct peer{.m = s.m,
                           .n = s.n,
                           .k = s.k,
                           .a = p.a,
                           .transpose_a = s.transpose_a,
                           .b = p.b,
                           .transpose_b = s.transpose_b,
                           .type = type,
                           .c = reinterpret_cast<float*>(c.data()),
                           .threads = options_.threads};
    const auto openblas = openblas_product(peer);
    const auto onednn = onednn_product(peer);
    const double flops =
        2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
    // At least a few milliseconds a measurement.
    const int inner = static_cast<int>(std::max(1.0, 1e9 / flops));
    Rate ours;
    Rate peak;
    Rate blas;
    Rate dnn;
    for (int repeat = 0; repeat <= options_.repeats; ++repeat) {
      Rate warm_up;
      const bool count = repeat > 0;
      const auto measure = [&](Rate& rate, const std::function<void()>& run) {
        (count ? rate : warm_up).add(flops * inner, options_.threads, [&] {
          for (int i = 0; i < inner; ++i)
            run();
        });
      };
      run_peak(count ? peak : warm_up, type);
      measure(ours, [&] { kernels_->gemm(p); });
      if (openblas) measure(blas, openblas);
      if (onednn) measure(dnn, onednn);
    }
    const double rate = ours.median(options_.threads);
    std::printf("%-13s %6ld %6ld %6ld %9.1f %6.1f%% %9.1f %9.1f %9.1f\n", s.what,
                static_cast<long>(s.m), static_cast<long>(s.n), static_cast<long>(s.k), rate,
                100 * rate / peak.median(options_.threads), Rate::median(ours.wall),
                blas.median(options_.threads), dnn.median(options_.threads));
    std::fflush(stdout);
  }

  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  Options options_;
  std::unique_ptr<kernels::KernelSet> kernels_;
  std::unique_ptr<std::byte, Free> scratch_;
};

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--threads") {
      options.threads = std::atoi(value.c_str());
    } else if (name == "--repeats") {
      options.repeats = std::atoi(value.c_str());
    } else if (name == "--shape") {
      options.shape = value;
    } else if (name == "--isa") {
      for (const Isa isa : kernels::available_isas()) {
        if (value == name_of(isa)) options.isa = isa;
      }
      if (value != name_of(options.isa)) return false;
    } else {
      return false;
    }
  }
  return argc % 2 == 1 && options.threads > 0 && options.repeats > 0 &&
         kernels::is_available(options.isa);
}

}  // namespace
}  // namespace trainyard::bench

int main(int argc, char** argv) {
  // OpenBLAS takes recent AMD processors for Haswell, and reads its settings when it is loaded: set
  // the faster kernels and start over.
  const char* core = std::getenv("OPENBLAS_CORETYPE");
  if (trainyard::kernels::is_available(trainyard::kernels::Isa::kAvx512) &&
      (core == nullptr || std::string(core) != "SKYLAKEX")) {
    setenv("OPENBLAS_CORETYPE", "SKYLAKEX", 1);
    execv("/proc/self/exe", argv);
  }
  trainyard::bench::Options options;
  if (!trainyard::bench::parse(argc, argv, options)) {
    std::fprintf(
        stderr,
        "usage: gemm_bench [--threads N] [--isa generic|avx2|avx512|avx512_bf16|amx] [--repeats N] "
        "[--shape part-of-name]\n");
    return 64;
  }
  trainyard::bench::Bench bench(options);
  bench.run(trainyard::DType::kFloat32);
  bench.run(trainyard::DType::kBFloat16);
  return 0;
}
