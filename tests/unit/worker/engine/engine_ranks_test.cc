// Engines of several ranks, which agree on when they end and free each other when one fails.

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/worker/comm/world.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/engine.h"
#include "worker/matrix/world.h"

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;

/// Much longer than any wait here that ends in order.
constexpr std::chrono::seconds kDeadline{90};

/// Runs `rank_main` on every rank of a mesh, with an engine of `spec`. All engines live until every
/// rank has returned.
void for_each_rank(const api::EngineSpec& spec, const layout::Mesh& mesh,
                   const std::function<void(comm::Groups& groups, Engine& engine)>& rank_main) {
  std::barrier all_returned(mesh.size());
  const auto one_rank = [&](comm::Communicator& world) {
    auto groups = comm::Groups::make(world, mesh);
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

using Levels = std::vector<std::atomic<int64_t>>;

/// Whether every level but that of `hung` is above it.
bool is_lowest(const Levels& levels, int hung) {
  const int64_t level = levels[static_cast<size_t>(hung)];
  return std::count_if(levels.begin(), levels.end(),
                       [&](const std::atomic<int64_t>& other) { return other <= level; }) == 1;
}

/// Waits until the levels stand still and `hung` has the lowest.
void expect_others_wait(const Levels& levels, int hung) {
  const auto give_up = std::chrono::steady_clock::now() + kDeadline;
  for (int quiet = 0; quiet < 50 && std::chrono::steady_clock::now() < give_up; ++quiet) {
    const std::vector<int64_t> before(levels.begin(), levels.end());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const bool stands = before == std::vector<int64_t>(levels.begin(), levels.end());
    if (!stands || !is_lowest(levels, hung)) quiet = 0;
  }
  EXPECT_TRUE(is_lowest(levels, hung)) << "rank " << hung << " hangs";
}

/// The levels of whoever waits are above that of the rank it waits for: the lowest is the one that
/// hangs.
TEST(EngineRanksTest, TheRankOfAStageThatHangsHasTheLowestLevel) {
  for (int hung = 0; hung < 3; ++hung) {
    api::EngineSpec spec = spec_of_stage(1);
    spec.parallelism.pipeline = 3;
    spec.batch.micro_sequences = 1;
    const auto stream = matrix::make_token_stream(4096, spec.model.vocab, 1);
    Levels levels(3);
    std::atomic<bool> released{false};
    for_each_rank(spec, {.pp = 3}, [&](comm::Groups& groups, Engine& engine) {
      const int rank = groups.world->rank();
      engine.observer().on_instruction = [&](int id, const Instruction&, int64_t level) {
        levels[static_cast<size_t>(rank)] = level;
        if (rank != hung || id != static_cast<int>(engine.program().size()) / 2) return;
        expect_others_wait(levels, hung);
        released = true;
      };
      matrix::StreamBatches batches(stream, spec, 1, 0);
      const auto report = engine.step(batches);
      ASSERT_TRUE(report) << report.error().message;
    });
    EXPECT_TRUE(released);
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
