// Engines of several ranks, which agree on when they end and free each other when one fails.

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/worker/comm/world.h"
#include "tests/support/progress_pages.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/engine.h"
#include "worker/matrix/world.h"

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;
using testing_support::is_first;
using testing_support::ProgressPages;

/// Much longer than any wait here that ends in order.
constexpr std::chrono::seconds kDeadline{90};
/// As long as a rank that hangs in a test does so until the others have gone past it.
constexpr std::chrono::seconds kPatience{15};

/// Runs `rank_main` on every rank of a mesh, with an engine of `spec`. All engines live until every
/// rank has returned.
void for_each_rank(const api::EngineSpec& spec, const layout::Mesh& mesh,
                   const std::function<void(comm::Groups& groups, Engine& engine)>& rank_main) {
  std::barrier all_returned(mesh.size());
  const auto one_rank = [&](comm::Communicator& world) {
    auto groups = comm::Groups::make(world, mesh, spec.parallelism.chunks_per_stage);
    ASSERT_TRUE(groups) << groups.error().message;
    const auto device = *make_cpu_device();
    const auto engine = Engine::create({.spec = spec, .device = device.get(), .groups = &*groups});
    ASSERT_TRUE(engine) << engine.error().message;
    EXPECT_TRUE((*engine)->initialize());
    rank_main(*groups, **engine);
    all_returned.arrive_and_wait();
  };
  comm::testing::run_world(comm::TransportKind::kLocal, mesh.size(), one_rank, kDeadline);
}

api::EngineSpec spec_of_stage(int zero_stage) {
  api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kFP32);
  spec.parallelism.zero_stage = zero_stage;
  return spec;
}

TEST(EngineRanksTest, AnEvaluationThatOneRankIsAskedToStopEndsOnAllWithinAPiece) {
  const api::EngineSpec spec = spec_of_stage(3);
  const auto stream = matrix::make_token_stream(8192, spec.model.vocab, 1);
  for_each_rank(spec, {.fsdp = 2}, [&](comm::Groups& groups, Engine& engine) {
    const int rank = groups.world->rank();
    int gathers = 0;
    std::atomic<bool> asked{false};
    engine.observer().on_instruction = [&](int, const Instruction& instruction, int64_t) {
      gathers += instruction.kind == InstructionKind::kGather ? 1 : 0;
      if (instruction.kind == InstructionKind::kForward) asked = rank == 1;
    };
    const auto evaluate = [&](int64_t windows, const StopAsked& stop_asked) {
      api::EngineSpec held_out = spec;
      held_out.batch = {.global_sequences = windows, .micro_sequences = 1};
      matrix::StreamBatches batches(stream, held_out, 2, rank);
      gathers = 0;
      return engine.evaluate(batches, windows, 1, stop_asked);
    };
    // A step has two micro-batches, so a piece of an evaluation has six.
    const auto piece = evaluate(12, {});
    ASSERT_TRUE(piece) << piece.error().message;
    EXPECT_FALSE(piece->stop_requested);
    const int gathers_of_piece = gathers;
    EXPECT_GT(gathers_of_piece, 0);
    asked = false;
    const auto stopped = evaluate(200, [&] { return asked.load(); });
    ASSERT_TRUE(stopped) << stopped.error().message;
    EXPECT_TRUE(stopped->stop_requested);
    EXPECT_EQ(gathers, gathers_of_piece) << "rank " << rank << ", of seventeen pieces";
  });
}

/// Fails at the first micro-batch.
class FailingBatches final : public data::MicroBatchSource {
 public:
  Result<data::MicroBatch> micro_batch(int) override {
    return Error{ErrorCode::kIo, "read shard 7: the disk is gone"};
  }
  void end_step() override {}
};

TEST(EngineRanksTest, AnEvaluationThatOneStageIsAskedToStopEndsOnAll) {
  api::EngineSpec spec = spec_of_stage(1);
  spec.parallelism.pipeline = 3;
  const auto stream = matrix::make_token_stream(8192, spec.model.vocab, 1);
  for_each_rank(spec, {.pp = 3}, [&](comm::Groups& groups, Engine& engine) {
    int passes = 0;
    std::atomic<bool> asked{false};
    engine.observer().on_instruction = [&](int, const Instruction& instruction, int64_t) {
      if (instruction.kind != InstructionKind::kForward) return;
      ++passes;
      asked = groups.at.pp == 1;
    };
    api::EngineSpec held_out = spec;
    held_out.batch = {.global_sequences = 200, .micro_sequences = 1};
    matrix::StreamBatches batches(stream, held_out, 1, 0);
    batches.start_step(0);
    const auto stopped = engine.evaluate(batches, 200, 1, [&] { return asked.load(); });
    ASSERT_TRUE(stopped) << stopped.error().message;
    EXPECT_TRUE(stopped->stop_requested);
    EXPECT_LT(passes, 200) << "stage " << groups.at.pp << " of one to two layers";
  });
}

/// A step, which the weights are gathered for, a snapshot and two pieces of an evaluation.
void run_programs(const api::EngineSpec& spec, comm::Groups& groups, Engine& engine,
                  Progress& progress) {
  const auto stream = matrix::make_token_stream(8192, spec.model.vocab, 1);
  matrix::StreamBatches batches(stream, spec, groups.data_ranks(), groups.data_rank());
  const auto report = engine.step(batches);
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_TRUE(engine.at_snapshot([] { return Status(); }));
  {
    const Progress::Waiting waiting(progress);
    ASSERT_TRUE(groups.world->barrier()->wait());
  }
  const int64_t windows = spec.batch.global_sequences * 4 - 1;
  api::EngineSpec held_out = spec;
  held_out.batch = {.global_sequences = windows, .micro_sequences = 1};
  matrix::StreamBatches evaluated(stream, held_out, groups.data_ranks(), groups.data_rank());
  const auto loss = engine.evaluate(evaluated, windows, 1);
  ASSERT_TRUE(loss) << loss.error().message;
}

/// Whoever waits is later in logical time than the rank it waits for, also by way of others: the
/// first is the one that hangs, wherever that is.
TEST(EngineRanksTest, ARankThatHangsIsTheFirstInLogicalTimeInEveryInstruction) {
  using enum api::PipelineSchedule;
  struct Case {
    int stage;
    layout::Mesh mesh;
    api::PipelineSchedule schedule = kOneFOneB;
  };
  for (const auto& [stage, mesh, schedule] : std::vector<Case>{{1, {.pp = 2}},
                                                               {1, {.pp = 3}},
                                                               {1, {.pp = 2}, kInterleaved},
                                                               {1, {.pp = 2}, kZeroBubbleH1},
                                                               {0, {.pp = 2, .dp = 2}},
                                                               {1, {.pp = 2, .dp = 1, .fsdp = 2}},
                                                               {1, {.pp = 3, .dp = 2}},
                                                               {3, {.dp = 1, .fsdp = 2}},
                                                               {1, {.tp = 2}},
                                                               {1, {.pp = 2, .cp = 2}}}) {
    api::EngineSpec spec = mesh.tp * mesh.cp == 1 ? spec_of_stage(stage)
                                                  : matrix::context_spec(api::NumberFormat::kFP32);
    spec.parallelism.zero_stage = stage;
    spec.parallelism.pipeline = mesh.pp;
    spec.parallelism.pipeline_schedule = schedule;
    if (schedule == kInterleaved) {
      spec.parallelism.chunks_per_stage = 2;
      spec.batch.global_sequences = 12;
    }
    spec.parallelism.tensor = mesh.tp;
    spec.parallelism.context = mesh.cp;
    spec.batch.micro_sequences = 1;
    for (int hung = 0; hung < mesh.size(); ++hung) {
      SCOPED_TRACE("pipeline " + std::to_string(mesh.pp) + ", ZeRO " + std::to_string(stage) +
                   ", rank " + std::to_string(hung) + " of " + std::to_string(mesh.size()));
      ProgressPages pages(mesh.size());
      std::set<InstructionKind> hung_in;
      std::string missed;
      for_each_rank(spec, mesh, [&](comm::Groups& groups, Engine& engine) {
        const int rank = groups.world->rank();
        Progress& progress = pages.of(rank);
        engine.observer().on_instruction = [&](int id, const Instruction& instruction,
                                               int64_t level) {
          progress.level(level);
          if (rank != hung || !missed.empty()) return;
          hung_in.insert(instruction.kind);
          const auto give_up = std::chrono::steady_clock::now() + kPatience;
          std::vector<int64_t> before;
          for (auto now = pages.arrivals(); now != before || !is_first(now, hung);
               now = pages.arrivals()) {
            before = std::move(now);
            std::this_thread::sleep_for(std::chrono::microseconds(100));
            if (std::chrono::steady_clock::now() < give_up) continue;
            missed = std::to_string(id) + " (" + to_string(instruction) + ")";
            return;
          }
        };
        engine.observer().on_end = [&](int64_t level) { progress.level(level); };
        engine.observer().on_wait = [&](bool waits) { progress.waits(waits); };
        run_programs(spec, groups, engine, progress);
      });
      ASSERT_EQ(missed, "") << "another rank is as early as the one that hangs there";
      EXPECT_THAT(hung_in, ::testing::IsSupersetOf(
                               {InstructionKind::kForward, InstructionKind::kBackwardInput,
                                InstructionKind::kReduceControl, InstructionKind::kOptimize,
                                InstructionKind::kSnapshot}));
    }
  }
}

TEST(EngineRanksTest, ARankThatFailsFreesItsPeersInAllGroups) {
  for (const auto& [stage, mesh] : {std::pair<int, layout::Mesh>{1, {.dp = 2, .fsdp = 2}},
                                    {3, {.dp = 2, .fsdp = 2}},
                                    {1, {.pp = 2, .dp = 1, .fsdp = 2}},
                                    {1, {.pp = 4}}}) {
    api::EngineSpec spec = spec_of_stage(stage);
    spec.parallelism.pipeline = mesh.pp;
    const auto stream = matrix::make_token_stream(4096, spec.model.vocab, 1);
    for_each_rank(spec, mesh, [&](comm::Groups& groups, Engine& engine) {
      const int rank = groups.world->rank();
      const auto background = groups.background();
      ASSERT_TRUE(background) << background.error().message;
      // As a checkpoint that is being agreed upon; the rank that fails has no part in it yet.
      const comm::WorkPtr checkpoint = rank == 0 ? nullptr : (*background)->barrier();
      matrix::StreamBatches good(stream, spec, groups.data_ranks(), groups.data_rank());
      FailingBatches failing;
      data::MicroBatchSource& batches =
          rank == 0 ? static_cast<data::MicroBatchSource&>(failing) : good;
      const auto report = engine.step(batches);
      ASSERT_FALSE(report);
      EXPECT_THAT(report.error().message, HasSubstr("read shard 7: the disk is gone"));
      EXPECT_EQ(report.error().code, rank == 0 ? ErrorCode::kIo : ErrorCode::kAborted);
      EXPECT_TRUE(groups.lost_ranks().empty()) << "rank " << rank << " holds a living one lost";
      if (checkpoint == nullptr) return;
      const Status freed = checkpoint->wait();
      ASSERT_FALSE(freed);
      EXPECT_EQ(freed.error().code, ErrorCode::kAborted) << freed.error().message;
    });
  }
}

}  // namespace
}  // namespace trainyard::engine
