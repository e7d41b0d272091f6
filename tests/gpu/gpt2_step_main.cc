// A block and a whole step of GPT-2, chained from the launchers, as lines of JSON.
//
//   gpu_gpt2_step [--layers N] [--width N] [--heads N] [--vocab N] [--sequence N] [--samples N]
//   [--runs N]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/gpu/gpt2_step.h"
#if !defined(TRAINYARD_DEVICE_BUILD)
#include "tests/support/fake_cublaslt.h"
#endif

namespace trainyard::kernels::cuda {
namespace {

Result<cublaslt::Api> library() {
#if defined(TRAINYARD_DEVICE_BUILD)
  for (const char* const name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    if (auto api = cublaslt::load(name)) return api;
  }
  return cublaslt::load("libcublasLt.so");
#else
  return testing_support::fake_cublaslt_api();
#endif
}

template <typename Run>
float median_ms(int64_t runs, cudaStream_t stream, const Run& run) {
  cudaEvent_t events[2];
  for (cudaEvent_t& event : events)
    cudaEventCreateWithFlags(&event, 0);
  std::vector<float> times;
  for (int64_t i = 0; i < runs; ++i) {
    cudaEventRecord(events[0], stream);
    run();
    cudaEventRecord(events[1], stream);
    cudaEventSynchronize(events[1]);
    times.push_back(0);
    cudaEventElapsedTime(&times.back(), events[0], events[1]);
  }
  for (cudaEvent_t event : events)
    cudaEventDestroy(event);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

int run(const Gpt2Shape& shape, int64_t runs) {
  const auto api = library();
  const GemmOptions options;
  auto gemm = api ? Gemm::create(*api, options) : Result<std::unique_ptr<Gemm>>(api.error());
  if (!gemm) {
    std::fprintf(stderr, "gpu_gpt2_step: %s\n", gemm.error().message.c_str());
    return 1;
  }
  cudaStream_t stream = nullptr;
  if (const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
      error != cudaSuccess) {
    std::fprintf(stderr, "gpu_gpt2_step: stream: %s\n", cudaGetErrorString(error));
    return 1;
  }
  {
    Gpt2Step step(shape, **gemm, options.workspace_bytes, stream);
    step.run(false);
    const double first = step.loss();  // plans are measured by now, over gradients
    for (int i = 0; i < 3; ++i)
      step.run(true);
    const auto step_ms = static_cast<double>(median_ms(runs, stream, [&] { step.run(true); }));
    const auto block_ms = static_cast<double>(median_ms(runs, stream, [&] { step.run_block(); }));
    const auto tokens = static_cast<double>(shape.samples * shape.sequence);
    std::printf(
        "{\"layers\": %lld, \"width\": %lld, \"tokens\": %.0f, \"parameters\": %lld, "
        "\"block_ms\": %.4f, \"step_ms\": %.4f, \"tokens_s\": %.0f, "
        "\"first_loss\": %.5f, \"last_loss\": %.5f}\n",
        static_cast<long long>(shape.layers), static_cast<long long>(shape.width), tokens,
        static_cast<long long>(step.parameters()), block_ms, step_ms, tokens / step_ms * 1000,
        first, step.loss());
  }
  gemm->reset();
  cudaStreamDestroy(stream);
  return 0;
}

}  // namespace
}  // namespace trainyard::kernels::cuda

int main(int argc, char** argv) {
  trainyard::kernels::cuda::Gpt2Shape shape;
  int64_t runs = 20;
  for (int i = 1; i + 1 < argc; i += 2) {
    int64_t* const to = std::strcmp(argv[i], "--layers") == 0     ? &shape.layers
                        : std::strcmp(argv[i], "--width") == 0    ? &shape.width
                        : std::strcmp(argv[i], "--heads") == 0    ? &shape.heads
                        : std::strcmp(argv[i], "--vocab") == 0    ? &shape.vocab
                        : std::strcmp(argv[i], "--sequence") == 0 ? &shape.sequence
                        : std::strcmp(argv[i], "--samples") == 0  ? &shape.samples
                        : std::strcmp(argv[i], "--runs") == 0     ? &runs
                                                                  : nullptr;
    const int64_t value = std::atoll(argv[i + 1]);
    if (to == nullptr || value <= 0) {
      std::fprintf(stderr,
                   "gpu_gpt2_step: %s %s: wanted --layers, --width, --heads, --vocab, "
                   "--sequence, --samples or --runs and a positive number\n",
                   argv[i], argv[i + 1]);
      return 64;
    }
    *to = value;
  }
  return trainyard::kernels::cuda::run(shape, runs);
}
