// What it costs to cut sums: processor seconds of a training step with the numerics of a new run
// and with those of earlier ones (a chunk for each head, grains of 128 tokens), in turns.
//   numerics_bench 30M|124M FP32|BF16 SEQUENCES PAIRS
// Prints one line of JSON: of each pair the seconds of both, and the median of their ratios.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "worker/comm/factory.h"
#include "worker/comm/groups.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/engine.h"
#include "worker/matrix/world.h"

namespace trainyard::bench {
namespace {

struct Case {
  bool large = false;
  api::NumberFormat compute = api::NumberFormat::kFP32;
  int64_t sequences = 1;
  int pairs = 1;
};

api::EngineSpec spec_of(const Case& one, bool cut) {
  api::EngineSpec spec;
  spec.model = {.layers = one.large ? 12 : 6,
                .hidden = one.large ? 768 : 384,
                .heads = one.large ? 12 : 6,
                .ffn = one.large ? 3072 : 1536,
                .vocab = 50257,
                .max_positions = 1024};
  spec.data.sequence_length = 1024;
  spec.batch = {.global_sequences = one.sequences, .micro_sequences = 1};
  spec.steps = 1000;
  spec.precision.compute = one.compute;
  spec.numerics.mode = api::NumericsMode::kCanonical;
  if (cut) {
    spec.numerics.grain_tokens = 128;
    spec.numerics.key_block = 128;
    spec.numerics.tensor_chunks = spec.model.heads;
  }
  return spec;
}

double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// One engine and its data.
struct Run {
  api::EngineSpec spec;
  std::unique_ptr<engine::Device> device;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<matrix::StreamBatches> batches;

  Result<double> step() {
    const double begin = processor_seconds();
    const auto report = engine->step(*batches);
    if (!report) return report.error();
    return processor_seconds() - begin;
  }
};

Result<Run> make_run(const Case& one, bool cut, const comm::Groups& groups,
                     const std::vector<int32_t>& stream) {
  Run run{.spec = spec_of(one, cut)};
  TRAINYARD_ASSIGN(run.device, engine::make_cpu_device());
  TRAINYARD_ASSIGN(
      run.engine,
      engine::Engine::create({.spec = run.spec, .device = run.device.get(), .groups = &groups}));
  TRAINYARD_TRY(run.engine->initialize());
  run.batches = std::make_unique<matrix::StreamBatches>(stream, run.spec, 1, 0);
  return run;
}

Status measure(const Case& one) {
  TRAINYARD_ASSIGN(const auto alone, comm::make_communicator(
                                         comm::TransportKind::kLocal,
                                         {.endpoints = {{.rank = 0}}, .job_uid = "numerics"}, {}));
  const comm::Groups groups = comm::Groups::of_data_ranks(*alone);
  const std::vector<int32_t> stream = matrix::make_token_stream(1 << 16, 50257, 1);
  TRAINYARD_ASSIGN(Run plain, make_run(one, false, groups, stream));
  TRAINYARD_ASSIGN(Run cut, make_run(one, true, groups, stream));
  TRAINYARD_TRY(plain.step());
  TRAINYARD_TRY(cut.step());
  std::vector<double> ratios;
  std::printf("{\"pairs\":[");
  for (int pair = 0; pair < one.pairs; ++pair) {
    double seconds[2];
    for (int turn = 0; turn < 2; ++turn) {
      const bool of_cut = (pair + turn) % 2 == 1;  // so that none is always the first
      TRAINYARD_ASSIGN(seconds[of_cut ? 1 : 0], (of_cut ? cut : plain).step());
    }
    ratios.push_back(seconds[0] / seconds[1]);
    std::printf("%s[%.3f,%.3f]", pair > 0 ? "," : "", seconds[0], seconds[1]);
    std::fflush(stdout);
  }
  std::sort(ratios.begin(), ratios.end());
  const double median = (ratios[ratios.size() / 2] + ratios[(ratios.size() - 1) / 2]) / 2;
  std::printf("],\"medianRatio\":%.3f}\n", median);
  return {};
}

}  // namespace
}  // namespace trainyard::bench

int main(int argc, char** argv) {
  using namespace trainyard;
  const std::vector<std::string> words(argv, argv + argc);
  if (words.size() != 5 || std::atoi(argv[3]) < 1 || std::atoi(argv[4]) < 1) {
    std::fprintf(stderr, "usage: numerics_bench 30M|124M FP32|BF16 SEQUENCES PAIRS\n");
    return 64;
  }
  const Status done = bench::measure(
      {.large = words[1] == "124M",
       .compute = words[2] == "BF16" ? api::NumberFormat::kBF16 : api::NumberFormat::kFP32,
       .sequences = std::atoi(argv[3]),
       .pairs = std::atoi(argv[4])});
  if (done) return 0;
  std::fprintf(stderr, "numerics_bench: %s\n", done.error().message.c_str());
  return 75;
}
