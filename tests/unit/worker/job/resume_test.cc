// A run that stops under one layout and goes on under another ends with the bits of the run that
// was never stopped.
#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/api/decode.h"
#include "common/api/encode.h"
#include "common/api/enum_names.h"
#include "common/random/philox.h"
#include "tests/comm/worker/comm/world.h"
#include "tests/support/extent.h"
#include "tests/unit/worker/checkpoint/job_directory.h"
#include "tests/unit/worker/checkpoint/memory_file_system.h"
#include "worker/device/cpu_device.h"
#include "worker/job/engine_state.h"
#include "worker/matrix/matrix.h"
#include "worker/matrix/world.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kSteps = 4;
constexpr int kRanksMax = 6;
constexpr int64_t kPairs = 48;
/// One pair in so many is drawn where not all run. Under a sanitizer teams of threads that
/// wait for each other take up to forty times as long.
constexpr int64_t kShare = testing_support::kSanitized ? 8 : 2;

constexpr api::PipelineSchedule kSchedules[] = {
    api::PipelineSchedule::kNaive, api::PipelineSchedule::kGPipe, api::PipelineSchedule::kOneFOneB,
    api::PipelineSchedule::kZeroBubbleH1};

/// Who trains for how long: a layout, and what else a restart may change.
struct Life {
  matrix::Cell cell;
  bool by_hand = false;  ///< cut into stages: all blocks that others need not have on the first
  int64_t unit_bytes = 0;
  int64_t until = 0;  ///< steps done at its end
};

struct Pair {
  api::NumberFormat compute = api::NumberFormat::kFP32;
  Life before;
  Life after;
};

std::string name_of(const Life& life) {
  const matrix::Cell& cell = life.cell;
  const layout::Mesh mesh = cell.mesh();
  std::string ranks = std::to_string(mesh.dp) + "x" + std::to_string(mesh.fsdp);
  if (mesh.pp > 1)
    ranks = std::to_string(mesh.pp) + std::string(api::name_of(cell.schedule)) +
            (cell.chunks > 1 ? std::to_string(cell.chunks) : "") + (life.by_hand ? "ByHand" : "") +
            ranks;
  if (mesh.tp > 1) ranks += "Tensor" + std::to_string(mesh.tp);
  return (cell.mode == api::ParallelMode::kDataParallel
              ? "DataParallel" + ranks
              : "Zero" + std::to_string(cell.zero_stage) + "On" + ranks) +
         "Units" + std::to_string(life.unit_bytes >> 10);
}

std::string name_of(const Pair& pair) {
  return (pair.compute == api::NumberFormat::kBF16 ? "BF16_" : "FP32_") + name_of(pair.before) +
         "_Step" + std::to_string(pair.before.until) + "_" + name_of(pair.after);
}

void PrintTo(const Pair& pair, std::ostream* out) { *out << name_of(pair); }

/// Pairs of layouts of 1 to 6 ranks: dp x shard of every ZeRO stage, and DataParallel, in one to
/// four stages.
std::vector<Pair> pairs() {
  std::vector<matrix::Cell> layouts;
  for (int ranks = 1; ranks <= kRanksMax; ++ranks) {
    for (const int pipeline : {1, 2, 3, 4}) {
      for (const matrix::Cell& cell : matrix::layouts_of(ranks, {0, 1, 2, 3}, pipeline))
        layouts.push_back(cell);
    }
  }
  uint64_t drawn = 20260101;
  const auto draw = [&](size_t choices) { return mix64(++drawn) % choices; };
  const auto live = [&](int64_t until) {
    Life life{.cell = layouts[draw(layouts.size())],
              .unit_bytes = int64_t{16} << 10 << 2 * draw(3),
              .until = until};
    life.cell.micro_sequences = 1 + static_cast<int64_t>(draw(4));
    if (life.cell.pipeline > 1) life.cell.schedule = kSchedules[draw(std::size(kSchedules))];
    life.by_hand = life.cell.pipeline > 1 && draw(2) == 1;
    matrix::Cell& cell = life.cell;
    cell.chunks = 2;  // of 4 blocks, embedding and head: where that is at most 6 stages
    const auto sizes = matrix::interleaved_micro_sequences(cell);
    const bool interleaves = (cell.pipeline == 2 || cell.pipeline == 3) && !sizes.empty();
    if (interleaves && draw(2) == 1) {
      cell.schedule = api::PipelineSchedule::kInterleaved;
      cell.micro_sequences = sizes[draw(sizes.size())];
    } else {
      cell.chunks = 1;
    }
    return life;
  };
  std::vector<Pair> all;
  for (int64_t i = 0; i < kPairs; ++i) {
    const auto stop = 1 + static_cast<int64_t>(draw(kSteps - 1));
    Pair pair{.compute = i % 2 == 0 ? api::NumberFormat::kFP32 : api::NumberFormat::kBF16,
              .before = live(stop),
              .after = live(kSteps)};
    if (testing_support::in_sample("resume", i / 2, kShare)) all.push_back(pair);
  }
  return all;
}

/// Pairs of layouts of one run of 12 heads, with tensor ranks on one side or both.
std::vector<Pair> tensor_pairs() {
  using Pipeline = api::PipelineSchedule;
  const std::vector<matrix::Cell> cells = {
      {.ranks = 1},
      {.ranks = 2, .micro_sequences = 2, .tensor = 2},
      {.ranks = 4, .zero_stage = 3, .tensor = 2},
      {.ranks = 3, .micro_sequences = 4, .tensor = 3},
      {.ranks = 4, .pipeline = 2, .schedule = Pipeline::kZeroBubbleH1, .tensor = 2},
      {.ranks = 6, .shard = 1, .zero_stage = 0, .tensor = 2},
      {.ranks = 8, .zero_stage = 2, .pipeline = 2, .tensor = 2},
      {.ranks = 4, .recompute = api::Recompute::kFull, .tensor = 4}};
  std::vector<Pair> all;
  const auto count = static_cast<int64_t>(cells.size());
  for (int64_t i = 0; i < 2 * count; ++i) {
    const auto cell = [&](int64_t place) { return cells[static_cast<size_t>(place % count)]; };
    const int64_t after = i < count ? i + 1 : i + 3;
    const Pair pair{.compute = i % 3 == 0 ? api::NumberFormat::kBF16 : api::NumberFormat::kFP32,
                    .before = {.cell = cell(i), .unit_bytes = 64 << 10, .until = 2},
                    .after = {.cell = cell(after), .unit_bytes = 16 << 10, .until = kSteps}};
    if (testing_support::in_sample("resume tensor", i, kShare)) all.push_back(pair);
  }
  return all;
}

/// Pairs of layouts of one run, with slices of sequences on one side or both.
std::vector<Pair> sliced_pairs() {
  using Pipeline = api::PipelineSchedule;
  const std::vector<matrix::Cell> cells = {
      {.ranks = 1},
      {.ranks = 2, .micro_sequences = 2, .tensor = 2, .slices = true},
      {.ranks = 4, .zero_stage = 3, .tensor = 2, .slices = true},
      {.ranks = 2, .tensor = 2},
      {.ranks = 3, .micro_sequences = 4, .tensor = 3, .slices = true},
      {.ranks = 4, .pipeline = 2, .schedule = Pipeline::kGPipe, .tensor = 2, .slices = true},
      {.ranks = 8, .shard = 1, .zero_stage = 0, .tensor = 4, .slices = true},
      {.ranks = 4, .zero_stage = 2},
      {.ranks = 2, .zero_stage = 2, .tensor = 2, .slices = true}};
  std::vector<Pair> all;
  const auto count = static_cast<int64_t>(cells.size());
  for (int64_t i = 0; i < count; ++i) {
    const auto cell = [&](int64_t place) { return cells[static_cast<size_t>(place % count)]; };
    const Pair pair{.compute = i % 3 == 0 ? api::NumberFormat::kBF16 : api::NumberFormat::kFP32,
                    .before = {.cell = cell(i), .unit_bytes = 64 << 10, .until = 2},
                    .after = {.cell = cell(i + 1), .unit_bytes = 16 << 10, .until = kSteps}};
    if (testing_support::in_sample("resume slices", i, kShare)) all.push_back(pair);
  }
  return all;
}

/// Pairs of layouts of one run, with context ranks on one side or both: a checkpoint knows nothing
/// of them.
std::vector<Pair> context_pairs() {
  const std::vector<matrix::Cell> cells = {
      {.ranks = 1},
      {.ranks = 2, .micro_sequences = 2, .context = 2},
      {.ranks = 4, .zero_stage = 3, .context = 2},
      {.ranks = 4, .micro_sequences = 4, .context = 4},
      {.ranks = 4, .tensor = 2, .slices = true, .context = 2},
      {.ranks = 4, .pipeline = 2, .schedule = api::PipelineSchedule::kGPipe, .context = 2},
      {.ranks = 8, .shard = 1, .zero_stage = 0, .context = 4},
      {.ranks = 2, .tensor = 2}};
  std::vector<Pair> all;
  // From a ring to ranks that exchange heads, and to a longer one.
  const matrix::Cell ring{.ranks = 6, .zero_stage = 3, .context = 3, .ring = true};
  all.push_back(
      {.compute = api::NumberFormat::kBF16,
       .before = {.cell = ring, .unit_bytes = 64 << 10, .until = 2},
       .after = {.cell = {.ranks = 2, .context = 2}, .unit_bytes = 16 << 10, .until = kSteps}});
  all.push_back({.before = {.cell = {.ranks = 4, .micro_sequences = 2, .tensor = 2, .context = 2},
                            .unit_bytes = 64 << 10,
                            .until = 2},
                 .after = {.cell = {.ranks = 4, .context = 4, .ring = true},
                           .unit_bytes = 16 << 10,
                           .until = kSteps}});
  const auto count = static_cast<int64_t>(cells.size());
  for (int64_t i = 0; i < count; ++i) {
    const auto cell = [&](int64_t place) { return cells[static_cast<size_t>(place % count)]; };
    const Pair pair{.compute = i % 3 == 1 ? api::NumberFormat::kBF16 : api::NumberFormat::kFP32,
                    .before = {.cell = cell(i), .unit_bytes = 64 << 10, .until = 2},
                    .after = {.cell = cell(i + 1), .unit_bytes = 16 << 10, .until = kSteps}};
    if (testing_support::in_sample("resume contexts", i, kShare)) all.push_back(pair);
  }
  return all;
}

class ResumeTest : public ::testing::TestWithParam<Pair> {
 protected:
  ResumeTest() {
    const bool shares_layers = GetParam().before.cell.tensor * GetParam().after.cell.tensor > 1;
    const bool has_slices = GetParam().before.cell.slices || GetParam().after.cell.slices;
    const bool has_contexts = GetParam().before.cell.context * GetParam().after.cell.context > 1;
    const bool has_rings = GetParam().before.cell.ring || GetParam().after.cell.ring;
    spec_ = has_rings       ? matrix::ring_spec(GetParam().compute)
            : has_contexts  ? matrix::context_spec(GetParam().compute)
            : has_slices    ? matrix::sliced_spec(GetParam().compute)
            : shares_layers ? matrix::tensor_spec(GetParam().compute)
                            : matrix::prime_spec(GetParam().compute);
    spec_.steps = kSteps;
    if (!shares_layers && !has_contexts)
      spec_.model.layers = 4;              // as many as a pipeline may have stages
    spec_.data.tokens = {"tokens/train"};  // named in the checkpoint, never opened
    // As a rank gets it: with every default in its place.
    auto complete = api::decode_engine(api::encode_engine(spec_));
    EXPECT_TRUE(complete) << complete.error().message;
    spec_ = *std::move(complete);
    stream_ = matrix::make_token_stream(4096, spec_.model.vocab, 99);
  }

  /// Of a run of one rank that nothing stops.
  std::string uninterrupted() const {
    const auto facts = matrix::train_world(spec_, {}, kSteps, stream_);
    EXPECT_TRUE(facts) << facts.error().message;
    return facts ? facts->front().state_hash : "";
  }

  /// One generation: goes on with the parent's newest checkpoint, trains, leaves a checkpoint.
  /// Returns the state hash as each rank has it.
  std::vector<std::string> live(const Life& life, int64_t generation) {
    const int ranks = life.cell.ranks;
    comm::testing::World world = comm::testing::make_world(comm::TransportKind::kLocal, ranks);
    std::vector<std::string> hashes(static_cast<size_t>(ranks));
    checkpoint::testing::run_ranks(ranks, [&](checkpoint::CommitGroup& group) {
      const auto ranks_met = world.connect(group.rank());
      ASSERT_TRUE(ranks_met) << ranks_met.error().message;
      const auto groups = comm::Groups::make(**ranks_met, life.cell.mesh(), life.cell.chunks);
      ASSERT_TRUE(groups) << groups.error().message;
      const Status status =
          train(life, generation, group, *groups, hashes[static_cast<size_t>(group.rank())]);
      EXPECT_TRUE(status) << "rank " << group.rank() << ": " << status.error().message;
      // Others may wait for this rank.
      if (!status) groups->abort(status.error());
    });
    return hashes;
  }

 private:
  Status train(const Life& life, int64_t generation, checkpoint::CommitGroup& group,
               const comm::Groups& groups, std::string& hash) {
    api::EngineSpec spec = spec_;
    spec.batch.micro_sequences = life.cell.micro_sequences;
    spec.parallelism.zero_stage = life.cell.zero_stage;
    // A spec may name it under stages 1 to 3 alone.
    if (life.cell.zero_stage > 0) spec.parallelism.shard = life.cell.shard;
    spec.parallelism.mode = life.cell.mode;
    spec.parallelism.pipeline = life.cell.pipeline;
    spec.parallelism.pipeline_schedule = life.cell.schedule;
    spec.parallelism.chunks_per_stage = life.cell.chunks;
    spec.parallelism.tensor = life.cell.tensor;
    spec.parallelism.sequence_parallel = life.cell.slices;
    spec.parallelism.context = life.cell.context;
    if (life.cell.ring) spec.parallelism.context_mode = api::ContextMode::kRing;
    spec.parallelism.recompute = life.cell.recompute;
    if (life.by_hand) {
      const int count = life.cell.pipeline * life.cell.chunks;
      std::vector<int64_t>& stages = spec.parallelism.stages;
      stages.assign(static_cast<size_t>(count), 1);
      stages.back() = 0;
      stages.front() = spec.model.layers - (count - 2);
    }
    TRAINYARD_ASSIGN(const auto device, make_cpu_device());
    TRAINYARD_ASSIGN(const auto engine, Engine::create({.spec = spec,
                                                        .device = device.get(),
                                                        .groups = &groups,
                                                        .unit_bytes = life.unit_bytes}));
    EXPECT_TRUE(engine->initialize());
    EngineState state(*engine);
    const std::optional<int64_t> parent =
        generation == 1 ? std::nullopt : std::optional(generation - 1);
    TRAINYARD_ASSIGN(const auto started,
                     checkpoint::start_generation(files_, job_.plan(generation, parent), group,
                                                  [&](checkpoint::CheckpointReader& reader) {
                                                    return state.restore(reader);
                                                  }));
    // From scratch it would end with the same bits.
    EXPECT_EQ(engine->steps_done(), generation == 1 ? 0 : GetParam().before.until);
    matrix::StreamBatches batches(stream_, spec, groups.data_ranks(), groups.data_rank());
    while (engine->steps_done() < life.until) {
      batches.start_step(engine->steps_done());
      TRAINYARD_TRY(engine->step(batches));
    }
    checkpoint::CheckpointWriter writer(checkpoint::testing::borrowed(files_), group,
                                        {.root = job_.root()}, started);
    TRAINYARD_ASSIGN(checkpoint::Snapshot snapshot, state.snapshot());
    TRAINYARD_TRY(writer.begin(std::move(snapshot)));
    const auto outcome = writer.wait(std::chrono::minutes(10));
    if (!outcome) return Error{ErrorCode::kDeadline, "the checkpoint did not end"};
    TRAINYARD_TRY(outcome->status);
    TRAINYARD_ASSIGN(const Hash128 found, state.hash());
    hash = to_hex(found);
    return {};
  }

 protected:
  api::EngineSpec spec_;
  std::vector<int32_t> stream_;
  checkpoint::testing::MemoryFileSystem files_;
  checkpoint::testing::JobDirectory job_{"/job"};
};

TEST_P(ResumeTest, EndsWithTheBitsOfTheRunThatWasNotStopped) {
  live(GetParam().before, 1);
  ASSERT_FALSE(HasFailure());
  const std::string wanted = uninterrupted();
  for (const std::string& hash : live(GetParam().after, 2))
    EXPECT_EQ(hash, wanted);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ResumeTest, ::testing::ValuesIn(pairs()), [](const auto& pair) {
  return std::to_string(pair.index) + "_" + name_of(pair.param);
});

INSTANTIATE_TEST_SUITE_P(Slices, ResumeTest, ::testing::ValuesIn(sliced_pairs()),
                         [](const auto& pair) {
                           return std::to_string(pair.index) + "_" + name_of(pair.param);
                         });

INSTANTIATE_TEST_SUITE_P(Contexts, ResumeTest, ::testing::ValuesIn(context_pairs()),
                         [](const auto& pair) {
                           return std::to_string(pair.index) + "_" + name_of(pair.param);
                         });

INSTANTIATE_TEST_SUITE_P(TensorRanks, ResumeTest, ::testing::ValuesIn(tensor_pairs()),
                         [](const auto& pair) {
                           return std::to_string(pair.index) + "_" + name_of(pair.param);
                         });

}  // namespace
}  // namespace trainyard::engine
