// Batches of sequences of any length: loss, gradients and update do not depend on which of them
// share a micro-batch, or a rank.

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/worker/comm/world.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/engine.h"
#include "worker/engine/limits.h"
#include "worker/job/engine_state.h"
#include "worker/matrix/matrix.h"

namespace trainyard::engine {
namespace {

constexpr int kSteps = 2;

/// Sample i of a step has kLengths[i] tokens: from one to all of prime_spec's.
constexpr int64_t kLengths[] = {1, 29, 13, 14, 2, 26, 12, 28, 1, 7, 20};

class RaggedBatches final : public data::MicroBatchSource {
 public:
  RaggedBatches(const api::EngineSpec& spec, int data_ranks, int data_rank)
      : partition_(partition_of(spec, data_ranks)),
        data_rank_(data_rank),
        vocab_(static_cast<int32_t>(spec.model.vocab)),
        buffers_(static_cast<size_t>(partition_.micro_batches(data_rank))) {}

  Result<data::MicroBatch> micro_batch(int index) override {
    Buffer& b = buffers_[static_cast<size_t>(index)];
    if (b.sequences.empty()) {
      const layout::Range share = partition_.micro_batch(data_rank_, index);
      for (int64_t i = share.begin; i < share.end; ++i)
        add(b, i);
    }
    return data::MicroBatch{.rows = {.count = std::ssize(b.tokens), .sequences = b.sequences},
                            .tokens = b.tokens,
                            .targets = b.targets};
  }
  void end_step() override {
    ++step_;
    std::fill(buffers_.begin(), buffers_.end(), Buffer());
  }

 private:
  struct Buffer {
    std::vector<kernels::Sequence> sequences;
    std::vector<int32_t> tokens, targets;
  };
  void add(Buffer& b, int64_t i) const {
    const int64_t ordinal = step_ * partition_.samples + i;
    b.sequences.push_back(
        {.begin = std::ssize(b.tokens), .length = kLengths[i], .ordinal = ordinal});
    for (int64_t t = 0; t < kLengths[i]; ++t) {
      b.tokens.push_back(token(ordinal, t));
      b.targets.push_back(token(ordinal, t + 1));
    }
  }
  int32_t token(int64_t ordinal, int64_t t) const {
    return static_cast<int32_t>((ordinal * ordinal + 7 * t + t * t) % vocab_);
  }

  data::BatchPartition partition_;
  int data_rank_;
  int32_t vocab_;
  int64_t step_ = 0;
  std::vector<Buffer> buffers_;
};

struct Lesson {
  std::vector<double> losses, norms;
  std::string hash;
  bool operator==(const Lesson&) const = default;
};

Result<Lesson> teach_one(comm::Communicator& world, api::NumberFormat compute, int64_t micro) {
  api::EngineSpec spec = matrix::prime_spec(compute);
  spec.batch.micro_sequences = micro;
  spec.model.dropout = 0.1;
  const auto device = *make_cpu_device();
  const comm::Groups groups = comm::Groups::of_data_ranks(world);
  TRAINYARD_ASSIGN(const auto engine,
                   Engine::create({.spec = spec, .device = device.get(), .groups = &groups}));
  EXPECT_TRUE(engine->initialize());
  TRAINYARD_TRY(engine->settle());
  RaggedBatches batches(spec, world.size(), world.rank());
  Lesson lesson;
  for (int step = 0; step < kSteps; ++step) {
    TRAINYARD_ASSIGN(const StepReport report, engine->step(batches));
    EXPECT_FALSE(report.skipped);
    lesson.losses.push_back(report.loss);
    lesson.norms.push_back(report.gradient_norm);
  }
  TRAINYARD_ASSIGN(const Hash128 hash, EngineState(*engine).hash());
  lesson.hash = to_hex(hash);
  return lesson;
}

/// Rank 0's.
Lesson teach(int ranks, api::NumberFormat compute, int64_t micro) {
  Lesson lesson;
  comm::testing::run_world(comm::TransportKind::kLocal, ranks, [&](comm::Communicator& world) {
    const auto found = teach_one(world, compute, micro);
    EXPECT_TRUE(found) << found.error().message;
    if (found && world.rank() == 0) lesson = *found;
  });
  return lesson;
}

class RaggedBatchTest : public ::testing::TestWithParam<api::NumberFormat> {};
INSTANTIATE_TEST_SUITE_P(Compute, RaggedBatchTest,
                         ::testing::Values(api::NumberFormat::kFP32, api::NumberFormat::kBF16));

TEST_P(RaggedBatchTest, ASequenceTeachesWhatItTeachesAlone) {
  const Lesson together = teach(1, GetParam(), std::ssize(kLengths));
  ASSERT_EQ(together.norms.size(), size_t{kSteps});
  EXPECT_GT(together.norms[0], 0);
  for (const auto& [ranks, micro] : {std::pair{1, 1}, {1, 4}, {2, 3}, {3, 11}})
    EXPECT_EQ(teach(ranks, GetParam(), micro), together) << ranks << " ranks, " << micro;
}

/// Hands out what it was given.
class AnyBatch final : public data::MicroBatchSource {
 public:
  explicit AnyBatch(std::vector<kernels::Sequence> sequences) : sequences_(std::move(sequences)) {
    for (const kernels::Sequence& sequence : sequences_)
      rows_ += sequence.length;
    tokens_.resize(static_cast<size_t>(rows_));
  }
  Result<data::MicroBatch> micro_batch(int) override {
    return data::MicroBatch{
        .rows = {.count = rows_, .sequences = sequences_}, .tokens = tokens_, .targets = tokens_};
  }
  void end_step() override {}

 private:
  std::vector<kernels::Sequence> sequences_;
  int64_t rows_ = 0;
  std::vector<int32_t> tokens_;
};

TEST(RaggedBoundsTest, WhatNobodyPlannedForIsRefused) {
  const api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kFP32);
  const int64_t rows = spec.batch.micro_sequences * spec.data.sequence_length;
  const auto refusal = [&](std::vector<kernels::Sequence> sequences) {
    std::string message;
    comm::testing::run_world(comm::TransportKind::kLocal, 1, [&](comm::Communicator& world) {
      const auto device = *make_cpu_device();
      const comm::Groups groups = comm::Groups::of_data_ranks(world);
      const auto engine = Engine::create({.spec = spec, .device = device.get(), .groups = &groups});
      ASSERT_TRUE(engine) << engine.error().message;
      EXPECT_TRUE((*engine)->initialize());
      AnyBatch batches(std::move(sequences));
      const auto report = (*engine)->step(batches);
      message = report ? "taken" : report.error().message;
    });
    return message;
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(refusal({{.length = 2, .position = spec.model.max_positions - 1}}),
              HasSubstr("micro-batch 0: found " + std::to_string(spec.model.max_positions + 1) +
                        " positions of a sample, wanted at most"));
  std::vector<kernels::Sequence> many;
  for (int64_t row = 0; row <= rows; ++row)
    many.push_back({.begin = row, .length = 1});
  EXPECT_THAT(refusal(many), HasSubstr("micro-batch 0: found " + std::to_string(rows + 1) +
                                       " rows, wanted 1 to " + std::to_string(rows)));
  many.pop_back();
  EXPECT_THAT(refusal(many),
              HasSubstr("micro-batch 0: found " + std::to_string(rows) + " rows in " +
                        std::to_string(rows) + " grains, wanted at most"))
      << "each sequence is a grain, and the sums are made for those of whole windows";
  EXPECT_THAT(refusal({{.begin = 1, .length = 2}}), HasSubstr("found 1 as the first row"));
  // The third micro-batch is planned for one window less.
  const int64_t length = spec.data.sequence_length;
  std::vector<kernels::Sequence> windows;
  for (int64_t row = 0; row < rows; row += length)
    windows.push_back({.begin = row, .length = length});
  const int64_t left = spec.batch.global_sequences * length - 2 * rows;
  EXPECT_THAT(refusal(windows),
              AllOf(HasSubstr("micro-batch 2: found " + std::to_string(rows) + " rows in "),
                    HasSubstr("wanted at most " + std::to_string(left) + " in ")));
}

/// A step of up to 20 rows in 6 grains of 4 positions. A micro-batch of it has up to 12 rows, a
/// sample up to 8 positions.
class BatchBoundsTest : public ::testing::Test {
 protected:
  using Sequences = std::vector<kernels::Sequence>;

  /// "taken", or why not. The micro-batch has `rows` more rows than its sequences, and `tokens` and
  /// `targets` more of these than rows.
  std::string take(const Sequences& sequences, const Sequences& samples = {}, int64_t rows = 0,
                   int64_t tokens = 0, int64_t targets = 0) {
    for (const kernels::Sequence& sequence : sequences)
      rows += sequence.length;
    const std::vector<int32_t> values(static_cast<size_t>(rows + std::max(tokens, targets)));
    const auto first = [&](int64_t count) {
      return std::span(values).first(static_cast<size_t>(count));
    };
    const Status taken = take_micro_batch({.rows = {.count = rows, .sequences = sequences},
                                           .samples = samples,
                                           .tokens = first(rows + tokens),
                                           .targets = first(rows + targets)},
                                          0, left_);
    return taken ? "taken" : taken.error().message;
  }

  BatchBounds left_{
      .rows = 12, .positions = 8, .grain_tokens = 4, .step_rows = 20, .step_grains = 6};
};

TEST_F(BatchBoundsTest, WhatIsPlannedForIsTaken) {
  EXPECT_EQ(take({{.length = 8}, {.begin = 8, .length = 4, .position = 4}}), "taken");
  EXPECT_EQ(left_.step_rows, 8);
  EXPECT_EQ(left_.step_grains, 3);
  EXPECT_EQ(take({{.length = 3}, {.begin = 3, .length = 5}}, {{.length = 8}}), "taken")
      << "two documents of one sample, which has the grains";
  EXPECT_EQ(left_.step_rows, 0);
  EXPECT_EQ(left_.step_grains, 1);
}

TEST_F(BatchBoundsTest, AStepHasNoMoreRowsThanItsPlan) {
  EXPECT_EQ(take({{.length = 8}, {.begin = 8, .length = 4}}), "taken");
  EXPECT_EQ(take({{.length = 8}, {.begin = 8, .length = 1}}),
            "micro-batch 0: found 9 rows in 3 grains, wanted at most 8 in 3, the rest of this "
            "rank's step");
  EXPECT_EQ(left_.step_rows, 8) << "what is refused takes nothing";
  EXPECT_EQ(left_.step_grains, 3);
}

TEST_F(BatchBoundsTest, AStepHasNoMoreGrainsThanItsPlan) {
  EXPECT_EQ(take({{.length = 1}, {.begin = 1, .length = 2, .position = 3}}), "taken")
      << "positions 3 and 4 belong to two grains";
  EXPECT_EQ(left_.step_grains, 3);
  EXPECT_EQ(take({{.length = 5}, {.begin = 5, .length = 2, .position = 3}}),
            "micro-batch 0: found 7 rows in 4 grains, wanted at most 17 in 3, the rest of this "
            "rank's step");
}

TEST_F(BatchBoundsTest, RowsAndPositionsBeyondThePlanAreRefused) {
  EXPECT_EQ(take({{.length = 8}, {.begin = 8, .length = 5}}),
            "micro-batch 0: found 13 rows, wanted 1 to 12, what memory is planned for");
  EXPECT_EQ(take({}), "micro-batch 0: found 0 rows, wanted 1 to 12, what memory is planned for");
  EXPECT_EQ(take({{.length = 9}}),
            "micro-batch 0: found 9 positions of a sample, wanted at most 8");
  EXPECT_EQ(take({{.length = 4, .position = 5}}),
            "micro-batch 0: found 9 positions of a sample, wanted at most 8");
  EXPECT_THAT(take({{.length = 4, .position = -1}}),
              ::testing::HasSubstr("positions of a sample, wanted at most 8"));
}

TEST_F(BatchBoundsTest, SequencesAndSamplesCoverTheRows) {
  EXPECT_EQ(take({{.length = 4}, {.begin = 5, .length = 4}}),
            "micro-batch 0: found 5 as the first row of a sequence of 4, wanted 4 and at least one "
            "row");
  EXPECT_EQ(take({{.length = 4}, {.begin = 4}}),
            "micro-batch 0: found 4 as the first row of a sequence of 0, wanted 4 and at least one "
            "row");
  EXPECT_EQ(take({{.length = 4}}, {}, 1), "micro-batch 0: found 5 rows, wanted 4 of its sequences");
  EXPECT_EQ(take({{.length = 8}}, {{.length = 4}, {.begin = 3, .length = 5}}),
            "micro-batch 0: found 3 as the first row of a sample of 5, wanted 4 and at least one "
            "row");
  EXPECT_EQ(take({{.length = 8}}, {{.length = 8}, {.begin = 8}}),
            "micro-batch 0: found 8 as the first row of a sample of 0, wanted 8 and at least one "
            "row");
  for (const int64_t length : {7, 9}) {
    EXPECT_EQ(take({{.length = 8}}, {{.length = length}}),
              "micro-batch 0: found " + std::to_string(length) +
                  " rows of samples, wanted 8 of its sequences");
  }
}

TEST_F(BatchBoundsTest, EachRowHasATokenAndATargetOrNoRowHasATarget) {
  for (const int64_t more : {-1, 1}) {
    EXPECT_EQ(
        take({{.length = 4}}, {}, 0, more),
        "micro-batch 0: found " + std::to_string(4 + more) + " tokens, wanted 4, one per row");
    EXPECT_EQ(
        take({{.length = 4}}, {}, 0, 0, more),
        "micro-batch 0: found " + std::to_string(4 + more) + " targets, wanted 4, one per row");
  }
  EXPECT_EQ(take({{.length = 4}}, {}, 0, 0, -4), "taken") << "as while sampling";
}

TEST(RaggedBoundsTest, SlicesOfSequencesBreakNoGrain) {
  const auto refusal = [](const kernels::Sequence& sequence) {
    const std::vector<int32_t> tokens(static_cast<size_t>(sequence.length));
    BatchBounds left{.rows = 100, .positions = 100, .grain_tokens = 4, .slices = 2};
    const Status taken = take_micro_batch(
        {.rows = {.count = sequence.length, .sequences = {&sequence, 1}}, .tokens = tokens}, 3,
        left);
    return taken ? "taken" : taken.error().message;
  };
  EXPECT_EQ(refusal({.length = 16}), "taken");
  EXPECT_EQ(refusal({.length = 16, .position = 4}), "taken");
  EXPECT_EQ(refusal({.length = 12}),
            "micro-batch 3: found 12 positions of a sequence from 0 on, wanted slices of whole "
            "grains (4) for each of 2 ranks");
  EXPECT_EQ(refusal({.length = 16, .position = 2}),
            "micro-batch 3: found 16 positions of a sequence from 2 on, wanted slices of whole "
            "grains (4) for each of 2 ranks");
}

}  // namespace
}  // namespace trainyard::engine
