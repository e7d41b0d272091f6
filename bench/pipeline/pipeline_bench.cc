// How long a step of a pipeline takes whose passes take a known time: real engines, programs,
// interpreters and channels, whose ranks are threads of this process, train a tiny model. The hooks
// for heartbeats let each pass of a block last as long as it is to last.
//   pipeline_bench SCHEDULE STAGES STAGES_PER_RANK MICRO_BATCHES PASS_MS STEPS
// A rank goes forward through its blocks in PASS_MS, and so for B and W. Prints one line of JSON:
// seconds of each step but a first one, and what simulate() says of the same programs.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "common/api/enum_names.h"
#include "worker/comm/factory.h"
#include "worker/comm/groups.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/engine.h"
#include "worker/matrix/world.h"
#include "worker/program/schedules/schedules.h"

namespace trainyard::bench {
namespace {

using Clock = std::chrono::steady_clock;
using engine::Instruction;
using engine::RankProgram;

struct Case {
  api::PipelineSchedule schedule = api::PipelineSchedule::kOneFOneB;
  int ranks = 0;
  int per_rank = 1;
  int micro_batches = 0;
  double pass_seconds = 0;
  int steps = 0;
};

api::EngineSpec spec_of(const Case& one) {
  api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kFP32);
  const int blocks = one.ranks * one.per_rank;  // one per stage
  spec.model.layers = blocks;
  spec.model.tie_embeddings = false;
  spec.parallelism.pipeline = one.ranks;
  spec.parallelism.pipeline_schedule = one.schedule;
  spec.parallelism.chunks_per_stage = one.per_rank;
  spec.parallelism.stages.assign(static_cast<size_t>(blocks), 1);
  spec.batch = {.global_sequences = one.micro_batches, .micro_sequences = 1};
  spec.steps = one.steps + 1;
  return spec;
}

/// Of F, B or W of a block; embedding and head, the first and the last layer, take none.
double seconds_of(const Case& one, const Instruction& instruction) {
  const bool block = is_pass(instruction.kind) && instruction.layer > 0 &&
                     instruction.layer <= one.ranks * one.per_rank;
  return block ? one.pass_seconds / one.per_rank : 0;
}

/// Lets a rank's passes last. What a pass computes counts, the time in which it waits does not.
class Pacer {
 public:
  Pacer(const Case& one, engine::Engine& engine) {
    engine.observer().on_instruction = [this, one](int, const Instruction& instruction, int64_t) {
      std::this_thread::sleep_until(end_of_pass());
      begin_ = Clock::now();
      lasts_ = std::chrono::duration<double>(seconds_of(one, instruction));
    };
    engine.observer().on_wait = [this](bool waits) {
      if (!waits) begin_ = Clock::now();
    };
  }

 private:
  Clock::time_point end_of_pass() const {
    return begin_ + std::chrono::duration_cast<Clock::duration>(lasts_);
  }

  Clock::time_point begin_;
  std::chrono::duration<double> lasts_{0};
};

struct Step {
  Clock::time_point begin;
  Clock::time_point end;
};

double simulated_seconds(const Case& one, const engine::Engine& engine,
                         const layout::Layout& layout) {
  engine::Lowering lowering{
      .stages = engine.stages(), .layout = &layout, .micro_batches = one.micro_batches};
  std::vector<RankProgram> ranks;
  for (int pp = 0; pp < one.ranks; ++pp) {
    lowering.at = {.pp = pp};
    ranks.push_back(
        {.program = engine::lower(
             engine::training_schedule(one.schedule, lowering.stages, one.micro_batches, pp),
             lowering),
         .micro_batches = one.micro_batches,
         .at = lowering.at,
         .rank = pp});
  }
  const api::EngineSpec spec = spec_of(one);
  const int64_t message_bytes = spec.batch.micro_sequences * spec.data.sequence_length *
                                spec.model.hidden * static_cast<int64_t>(sizeof(float));
  const engine::Costs costs{
      .seconds = [&](const RankProgram&,
                     const Instruction& instruction) { return seconds_of(one, instruction); },
      .bytes_sent =
          [&](const RankProgram&, const Instruction& instruction) {
            return is_message(instruction.kind) ? message_bytes : 0;
          },
      .eager_bytes = comm::eager_bytes(2)};  // a channel has two members
  const auto simulation = engine::simulate(ranks, lowering, costs);
  if (!simulation) return 0;
  return *std::max_element(simulation->end_seconds.begin(), simulation->end_seconds.end());
}

/// One rank; `simulated` is set by the first.
Status train(const Case& one, const comm::Options& options,
             const std::shared_ptr<comm::LocalWorld>& meeting, std::vector<Step>& steps,
             double& simulated) {
  auto world = comm::make_local_communicator(options, meeting);
  if (!world) return world.error();
  TRAINYARD_ASSIGN(const comm::Groups groups,
                   comm::Groups::make(**world, {.pp = one.ranks}, one.per_rank));
  const api::EngineSpec spec = spec_of(one);
  TRAINYARD_ASSIGN(const auto device, engine::make_cpu_device());
  TRAINYARD_ASSIGN(
      const auto engine,
      engine::Engine::create({.spec = spec, .device = device.get(), .groups = &groups}));
  TRAINYARD_TRY(engine->initialize());
  if (options.rank == 0) simulated = simulated_seconds(one, *engine, engine->states().layout());
  const std::vector<int32_t> stream = matrix::make_token_stream(1000, spec.model.vocab, 1);
  matrix::StreamBatches batches(stream, spec, 1, 0);
  const Pacer pacer(one, *engine);
  for (Step& step : steps) {
    step.begin = Clock::now();
    TRAINYARD_TRY(engine->step(batches));
    step.end = Clock::now();
  }
  return {};
}

int run(const Case& one) {
  const auto meeting = std::make_shared<comm::LocalWorld>();
  comm::Options options{.generation = 1, .job_uid = "pipeline_bench"};
  for (int rank = 0; rank < one.ranks; ++rank)
    options.endpoints.push_back({.rank = rank, .host_id = "here"});
  const auto ranks = static_cast<size_t>(one.ranks);
  std::vector<std::vector<Step>> steps(ranks,
                                       std::vector<Step>(static_cast<size_t>(one.steps) + 1));
  std::vector<Status> ended(ranks);
  double simulated = 0;
  {
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < ranks; ++rank) {
      options.rank = static_cast<int>(rank);
      threads.emplace_back([&, rank, options] {
        ended[rank] = train(one, options, meeting, steps[rank], simulated);
      });
    }
  }
  for (const Status& status : ended) {
    if (status) continue;
    std::fprintf(stderr, "pipeline_bench: %s\n", status.error().message.c_str());
    return 75;
  }
  std::printf("{\"schedule\":\"%s\",\"ranks\":%d,\"perRank\":%d,\"microBatches\":%d,",
              std::string(api::name_of(one.schedule)).c_str(), one.ranks, one.per_rank,
              one.micro_batches);
  std::printf("\"simulated\":%.4f,\"measured\":[", simulated);
  for (size_t step = 1; step < steps[0].size(); ++step) {
    Step whole = steps[0][step];
    for (const std::vector<Step>& of_rank : steps) {
      whole.begin = std::min(whole.begin, of_rank[step].begin);
      whole.end = std::max(whole.end, of_rank[step].end);
    }
    std::printf("%s%.4f", step > 1 ? "," : "",
                std::chrono::duration<double>(whole.end - whole.begin).count());
  }
  std::printf("]}\n");
  return 0;
}

}  // namespace
}  // namespace trainyard::bench

int main(int argc, char** argv) {
  using namespace trainyard;
  const std::vector<std::string> words(argv, argv + argc);
  if (words.size() != 7) {
    std::fprintf(stderr,
                 "usage: pipeline_bench SCHEDULE STAGES STAGES_PER_RANK MICRO_BATCHES PASS_MS "
                 "STEPS\n");
    return 64;
  }
  for (const api::PipelineSchedule schedule :
       {api::PipelineSchedule::kNaive, api::PipelineSchedule::kGPipe,
        api::PipelineSchedule::kOneFOneB, api::PipelineSchedule::kInterleaved,
        api::PipelineSchedule::kZeroBubbleH1}) {
    if (api::name_of(schedule) != words[1]) continue;
    return bench::run({.schedule = schedule,
                       .ranks = std::atoi(argv[2]),
                       .per_rank = std::atoi(argv[3]),
                       .micro_batches = std::atoi(argv[4]),
                       .pass_seconds = std::atof(argv[5]) / 1000,
                       .steps = std::atoi(argv[6])});
  }
  std::fprintf(stderr, "pipeline_bench: no schedule %s\n", argv[1]);
  return 64;
}
