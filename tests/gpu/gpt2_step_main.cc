// Training steps of GPT-2, chained from the launchers, as one line of JSON.
//
//   gpu_gpt2_step [--layers N] [--width N] [--heads N] [--vocab N] [--sequence N] [--samples N]
//                 [--micro-batches N] [--classifier-chunks N] [--runs N] [--losses N] [OPTION ...]
//
// Options: --canonical (exact sums, products without split-K, deterministic attention), --split-k
// (plans that split sums), --own-attention, --profile (time of each operation), --graph (the passes
// captured and replayed), --hash (of the gradient, with micro-batches in either order), --export
// FILE (weights and tokens before the first step).

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/attention_cudnn.h"
#include "tests/gpu/gpt2_step.h"
#include "tests/gpu/library.h"

namespace trainyard::kernels::cuda {
namespace {

struct Options {
  Gpt2Shape shape;
  int64_t runs = 20, losses = 10;
  bool canonical = false, split_k = false, own_attention = false, profile = false, graph = false;
  bool hash = false;
  std::string export_to;
};

int failed(const std::string& what) {
  std::fprintf(stderr, "gpu_gpt2_step: %s\n", what.c_str());
  return 1;
}

/// Passes and update, the passes as a graph where there is one.
class Steps {
 public:
  Steps(Gpt2Step& step, bool as_graph, cudaStream_t stream) : step_(step), stream_(stream) {
    for (cudaEvent_t& event : events_)
      cudaEventCreateWithFlags(&event, 0);
    if (!as_graph) return;
    cudaGraph_t graph = nullptr;
    error_ = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
    if (error_ == cudaSuccess) {
      step_.passes();
      error_ = cudaStreamEndCapture(stream_, &graph);
    }
    if (error_ == cudaSuccess) error_ = cudaGraphInstantiate(&graph_, graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
  ~Steps() {
    for (cudaEvent_t event : events_)
      cudaEventDestroy(event);
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  cudaError_t error() const { return error_; }
  void run() {
    if (graph_ != nullptr) {
      if (const cudaError_t error = cudaGraphLaunch(graph_, stream_); error != cudaSuccess) {
        error_ = error;
      }
    } else {
      step_.passes();
    }
    step_.update();
  }
  double median_ms(int64_t runs) {
    std::vector<float> times;
    for (int64_t i = 0; i < runs; ++i) {
      cudaEventRecord(events_[0], stream_);
      run();
      cudaEventRecord(events_[1], stream_);
      cudaEventSynchronize(events_[1]);
      times.push_back(0);
      cudaEventElapsedTime(&times.back(), events_[0], events_[1]);
    }
    std::sort(times.begin(), times.end());
    return static_cast<double>(times[times.size() / 2]);
  }

 private:
  Gpt2Step& step_;
  cudaStream_t stream_;
  cudaEvent_t events_[2] = {};
  cudaGraphExec_t graph_ = nullptr;
  cudaError_t error_ = cudaSuccess;
};

void print_profile(Gpt2Step& step) {
  std::map<std::string, Gpt2Step::Spent> least = step.profile();
  for (int i = 0; i < 4; ++i) {  // an operation's least time of five: what else runs adds to it
    for (const auto& [name, spent] : step.profile())
      least[name].ms = std::min(least[name].ms, spent.ms);
  }
  std::printf(", \"operations\": {");
  const char* comma = "";
  for (const auto& [name, spent] : least) {
    std::printf("%s\"%s\": {\"ms\": %.4f, \"calls\": %lld}", comma, name.c_str(), spent.ms,
                static_cast<long long>(spent.calls));
    comma = ", ";
  }
  std::printf("}");
}

int measure(const Options& o, Gemm& gemm, size_t workspace_bytes, cudaStream_t stream) {
  const auto no_library = [] {
    return Result<std::unique_ptr<AttentionLibrary>>(
        Error{ErrorCode::kUnavailable, "as --own-attention asks"});
  };
  const auto cudnn = [&] { return open_cudnn_attention({.deterministic = o.canonical}); };
  std::string reason;
  Attention attention(o.own_attention ? Attention::Open(no_library) : Attention::Open(cudnn),
                      [&](const std::string& line) { reason = line; });
  Gpt2Step step(o.shape, o.canonical, gemm, attention, workspace_bytes, stream);
  if (!o.export_to.empty()) {
    std::FILE* const file = std::fopen(o.export_to.c_str(), "wb");
    if (file == nullptr) return failed(o.export_to + ": cannot be written");
    step.write(file);
    if (std::fclose(file) != 0) return failed(o.export_to + ": cannot be written");
  }
  step.passes();  // measures plans, which spoils gradients
  Steps steps(step, o.graph, stream);
  std::printf("{\"layers\": %lld, \"width\": %lld, \"tokens\": %lld, \"parameters\": %lld, ",
              static_cast<long long>(o.shape.layers), static_cast<long long>(o.shape.width),
              static_cast<long long>(step.tokens_per_step()),
              static_cast<long long>(step.parameters()));
  std::printf("\"canonical\": %s, \"graph\": %s, ", o.canonical ? "true" : "false",
              o.graph ? "true" : "false");
  if (o.hash) {
    step.passes(true);
    const uint64_t reversed = step.gradient_hash();
    step.passes();
    const uint64_t hash = step.gradient_hash();
    std::printf("\"gradient\": \"%016llx\", \"same_in_reverse\": %s, ",
                static_cast<unsigned long long>(hash), hash == reversed ? "true" : "false");
  }
  std::printf("\"losses\": [");
  std::vector<double> norms;
  for (int64_t i = 0; i < o.losses; ++i) {
    steps.run();
    std::printf("%s%.17g", i == 0 ? "" : ", ", step.loss());
    norms.push_back(step.gradient_norm());
  }
  std::printf("], \"norms\": [");
  for (size_t i = 0; i < norms.size(); ++i)
    std::printf("%s%.8g", i == 0 ? "" : ", ", norms[i]);
  const double ms = steps.median_ms(o.runs);
  std::printf("], \"step_ms\": %.4f, \"tokens_s\": %.0f", ms,
              static_cast<double>(step.tokens_per_step()) / ms * 1000);
  if (o.profile) print_profile(step);
  // The reason is one line and has no quotes but the library's: as JSON they are apostrophes.
  std::replace(reason.begin(), reason.end(), '"', '\'');
  std::replace(reason.begin(), reason.end(), '\\', '/');
  std::printf(", \"attention\": \"%s\"}\n", attention.uses_library() ? "cudnn" : reason.c_str());
  if (steps.error() != cudaSuccess) return failed(cudaGetErrorString(steps.error()));
  return 0;
}

int run(const Options& o) {
  const auto api = product_library();
  GemmOptions options;
  options.split_k = o.split_k;
  auto gemm = api ? Gemm::create(*api, options) : Result<std::unique_ptr<Gemm>>(api.error());
  if (!gemm) return failed(gemm.error().message);
  cudaStream_t stream = nullptr;
  if (const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
      error != cudaSuccess) {
    return failed(std::string("stream: ") + cudaGetErrorString(error));
  }
  const int status = measure(o, **gemm, options.workspace_bytes, stream);
  gemm->reset();
  cudaStreamDestroy(stream);
  return status;
}

/// Whether the arguments are understood.
bool parse(int argc, char** argv, Options& o) {
  const std::map<std::string, int64_t*> numbers = {
      {"--layers", &o.shape.layers},
      {"--width", &o.shape.width},
      {"--heads", &o.shape.heads},
      {"--vocab", &o.shape.vocab},
      {"--sequence", &o.shape.sequence},
      {"--samples", &o.shape.samples},
      {"--micro-batches", &o.shape.micro_batches},
      {"--classifier-chunks", &o.shape.classifier_chunks},
      {"--runs", &o.runs},
      {"--losses", &o.losses}};
  const std::map<std::string, bool*> switches = {{"--canonical", &o.canonical},
                                                 {"--split-k", &o.split_k},
                                                 {"--own-attention", &o.own_attention},
                                                 {"--profile", &o.profile},
                                                 {"--graph", &o.graph},
                                                 {"--hash", &o.hash}};
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (const auto is = switches.find(name); is != switches.end()) {
      *is->second = true;
      continue;
    }
    if (++i == argc) return false;
    if (name == "--export") {
      o.export_to = argv[i];
      continue;
    }
    const auto to = numbers.find(name);
    if (to == numbers.end() || std::atoll(argv[i]) <= 0) return false;
    *to->second = std::atoll(argv[i]);
  }
  return !(o.canonical && o.split_k) && o.shape.width % o.shape.heads == 0 &&
         o.shape.samples * o.shape.sequence % o.shape.classifier_chunks == 0;
}

}  // namespace
}  // namespace trainyard::kernels::cuda

int main(int argc, char** argv) {
  trainyard::kernels::cuda::Options options;
  if (!trainyard::kernels::cuda::parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "gpu_gpt2_step: wanted the options at the head of tests/gpu/gpt2_step_main.cc; "
                 "numbers are positive, --width a multiple of --heads, tokens one of "
                 "--classifier-chunks, and --canonical without --split-k\n");
    return 64;
  }
  return trainyard::kernels::cuda::run(options);
}
