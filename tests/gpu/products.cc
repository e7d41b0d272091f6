// What cuBLASLt does with the products of GPT-2's and Qwen's layers, as lines of JSON.
//
//   gpu_products [--tokens N] [--width N] [--wide N] [--vocab N] [--runs N] [--what forms|plans]
//
// forms: products [tokens, wide] of depth width of every kind against the chain of k16 steps that
// canonical numerics means.
// plans: of each product of a layer the best time without split-K, with it, and, of weight
// gradients, cut into pieces of tokens of which each is one product without split-K.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/ops.h"
#include "tests/gpu/library.h"

namespace trainyard::kernels::cuda {
namespace {

struct Settings {
  int64_t tokens = 65536, width = 768, wide = 3072, vocab = 50304, runs = 10;
  std::string what = "plans";
};

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "gpu_products: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);  // NOLINT(concurrency-mt-unsafe)
}

/// A message as JSON has it: without quotes and line ends.
std::string words(std::string text) {
  for (char& c : text)
    c = c == '"' ? '\'' : c == '\n' || c == '\\' ? ' ' : c;
  return text;
}

GemmProblem problem(int64_t m, int64_t n, int64_t k, bool transpose_a, bool transpose_b,
                    DType output) {
  GemmProblem p{.m = m, .n = n, .k = k, .transpose_a = transpose_a, .transpose_b = transpose_b};
  p.output = output;
  p.lda = transpose_a ? m : k;
  p.ldb = transpose_b ? k : n;
  p.ldc = n;
  return p;
}

class Products {
 public:
  Products(const Settings& settings, const cublaslt::Api& api) : s_(settings) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    for (cudaEvent_t& event : events_)
      check(cudaEventCreateWithFlags(&event, 0), "event");
    for (const bool split_k : {false, true}) {
      GemmOptions options;
      options.split_k = split_k;
      auto made = Gemm::create(api, options);
      if (!made) {
        std::fprintf(stderr, "gpu_products: %s\n", made.error().message.c_str());
        std::exit(1);  // NOLINT(concurrency-mt-unsafe)
      }
      gemm_[split_k ? 1 : 0] = *std::move(made);
    }
    const int64_t most = std::max(s_.tokens * std::max(s_.wide, 3 * s_.width), s_.vocab * s_.width);
    const int64_t chunk = s_.tokens / 4 * s_.vocab;
    operands_.a = allocate(2 * std::max(most, chunk));
    operands_.b = allocate(2 * std::max(most, chunk));
    operands_.c = allocate(4 * std::max(most, chunk));
    operands_.bias = allocate(4 * std::max({s_.vocab, s_.wide, 3 * s_.width}));
    operands_.workspace = allocate(static_cast<int64_t>(GemmOptions().workspace_bytes));
    result_ = static_cast<uint64_t*>(allocate(16));
    for (const void* x : {operands_.a, operands_.b})
      check(gemm_operand(const_cast<void*>(x), std::max(most, chunk), 1, stream_), "operands");
    check(cudaStreamSynchronize(stream_), "operands");
  }

  /// Of round and of ragged sizes: transposed or not, into bf16 or fp32, with a bias or without.
  int forms() {
    int wrong = 0;
    for (int form = 0; form < 32; ++form) {
      const int64_t less = (form & 16) != 0 ? 8 : 0;
      GemmProblem p = problem(s_.tokens - 3 * less, s_.wide - 3 * less, s_.width - less,
                              (form & 1) != 0, (form & 2) != 0, {});
      p.output = (form & 4) != 0 ? DType::kFloat32 : DType::kBFloat16;
      p.has_bias = (form & 8) != 0;
      wrong += self_test("form " + std::to_string(form), p) ? 0 : 1;
    }
    return wrong;
  }

  int plans() {
    const int64_t t = s_.tokens;
    const int64_t c = s_.width;
    const DType half = DType::kBFloat16;
    const DType single = DType::kFloat32;
    struct Linear {
      const char* name;
      int64_t in, out, rows;
    };
    int wrong = 0;
    for (const Linear& l :
         {Linear{"qkv", c, 3 * c, t}, Linear{"attproj", c, c, t}, Linear{"fc", c, s_.wide, t},
          Linear{"fcproj", s_.wide, c, t}, Linear{"logits", c, s_.vocab, t / 4}}) {
      const std::string name = l.name;
      wrong += both(name, problem(l.rows, l.out, l.in, false, true, half));
      wrong += both(name + " dgrad", problem(l.rows, l.in, l.out, false, false, half));
      wrong += both(name + " wgrad", problem(l.out, l.in, l.rows, true, false, single));
      pieces(name + " wgrad", problem(l.out, l.in, l.rows, true, false, single));
    }
    return wrong;
  }

 private:
  void* allocate(int64_t bytes) {
    void* memory = nullptr;
    check(cudaMallocAsync(&memory, static_cast<size_t>(bytes), stream_), "memory");
    return memory;
  }

  bool self_test(const std::string& name, const GemmProblem& p) {
    const Result<uint64_t> hash = canonical_self_test(*gemm_[0], p, operands_, result_, stream_);
    if (hash) {
      std::printf("{\"chain\": \"%s\", \"hash\": \"%016llx\"}\n", name.c_str(),
                  static_cast<unsigned long long>(*hash));
    } else {
      std::printf("{\"chain\": \"%s\", \"error\": \"%s\"}\n", name.c_str(),
                  words(hash.error().message).c_str());
    }
    std::fflush(stdout);
    return static_cast<bool>(hash);
  }

  template <typename Run>
  double median_ms(const Run& run) {
    std::vector<float> times;
    for (int64_t i = 0; i < s_.runs + 2; ++i) {
      check(cudaEventRecord(events_[0], stream_), "event");
      if (const Status status = run(); !status) return -1;
      check(cudaEventRecord(events_[1], stream_), "event");
      check(cudaEventSynchronize(events_[1]), "product");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, events_[0], events_[1]), "event");
      if (i >= 2) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return static_cast<double>(times[times.size() / 2]);
  }

  /// Without split-K, by the plan that is then checked against the chain, and with it.
  int both(const std::string& name, const GemmProblem& p) {
    for (const int split_k : {0, 1}) {
      Gemm& gemm = *gemm_[split_k];
      const Status prepared = gemm.prepare(p, operands_, stream_);
      if (!prepared) {
        std::printf("{\"product\": \"%s\", \"split_k\": %d, \"error\": \"%s\"}\n", name.c_str(),
                    split_k, words(prepared.error().message).c_str());
        continue;
      }
      const double ms = median_ms([&] { return gemm.run(p, operands_, stream_); });
      const double flops =
          2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
      std::printf(
          "{\"product\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": %lld, \"split_k\": %d, "
          "\"ms\": %.5f, \"tflop_s\": %.1f}\n",
          name.c_str(), static_cast<long long>(p.m), static_cast<long long>(p.n),
          static_cast<long long>(p.k), split_k, ms, flops / ms * 1e-9);
      std::fflush(stdout);
    }
    return self_test(name, p) ? 0 : 1;
  }

  /// The tokens in pieces, one product each, one behind the other: an upper bound of what a batched
  /// product costs.
  void pieces(const std::string& name, const GemmProblem& whole) {
    for (const int64_t count : {4, 16}) {
      if (whole.k % (count * 16) != 0) continue;
      GemmProblem p = whole;
      p.k /= count;
      if (!gemm_[0]->prepare(p, operands_, stream_)) continue;
      const double ms = median_ms([&] {
        Status status;
        for (int64_t i = 0; i < count && status; ++i)
          status = gemm_[0]->run(p, operands_, stream_);
        return status;
      });
      std::printf("{\"product\": \"%s\", \"pieces\": %lld, \"ms\": %.5f}\n", name.c_str(),
                  static_cast<long long>(count), ms);
      std::fflush(stdout);
    }
  }

  Settings s_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t events_[2] = {};
  std::unique_ptr<Gemm> gemm_[2];
  GemmOperands operands_;
  uint64_t* result_ = nullptr;
};

}  // namespace
}  // namespace trainyard::kernels::cuda

int main(int argc, char** argv) {
  using namespace trainyard::kernels::cuda;  // NOLINT(google-build-using-namespace)
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--what") == 0) {
      settings.what = argv[i + 1];
      continue;
    }
    int64_t* const to = std::strcmp(argv[i], "--tokens") == 0  ? &settings.tokens
                        : std::strcmp(argv[i], "--width") == 0 ? &settings.width
                        : std::strcmp(argv[i], "--wide") == 0  ? &settings.wide
                        : std::strcmp(argv[i], "--vocab") == 0 ? &settings.vocab
                        : std::strcmp(argv[i], "--runs") == 0  ? &settings.runs
                                                               : nullptr;
    const int64_t value = std::atoll(argv[i + 1]);
    if (to == nullptr || value <= 0) {
      std::fprintf(stderr,
                   "gpu_products: %s %s: wanted --tokens, --width, --wide, --vocab or --runs and a "
                   "positive number, or --what forms or plans\n",
                   argv[i], argv[i + 1]);
      return 64;
    }
    *to = value;
  }
  const auto api = product_library();
  if (!api) {
    std::fprintf(stderr, "gpu_products: %s\n", api.error().message.c_str());
    return 1;
  }
  Products products(settings, *api);
  return (settings.what == "forms" ? products.forms() : products.plans()) == 0 ? 0 : 1;
}
