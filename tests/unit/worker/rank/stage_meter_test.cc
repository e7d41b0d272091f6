#include "worker/rank/stage_meter.h"

#include <numeric>
#include <sys/mman.h>

#include <gtest/gtest.h>

#include "common/base/unique_fd.h"
#include "worker/comm/operation.h"
#include "worker/rank/progress.h"

namespace trainyard::engine {
namespace {

using contract::Stage;
using trace::Activity;
using trace::Span;
using trace::Track;

class StageMeterTest : public testing::Test {
 protected:
  void add(Activity activity, int64_t begin_ns, int64_t end_ns, int instruction = 0) {
    meter_.add(
        Track::kStep,
        {.activity = activity, .instruction = instruction, .begin_ns = begin_ns, .end_ns = end_ns});
  }
  /// The counters that the page behind `progress_` holds.
  contract::RankCountersReading counters() const {
    void* memory =
        ::mmap(nullptr, contract::kProgressPageBytes, PROT_READ, MAP_SHARED, fd_.get(), 0);
    const auto reading =
        contract::read_counters(static_cast<contract::ProgressPage*>(memory)->counters);
    ::munmap(memory, contract::kProgressPageBytes);
    return reading;
  }
  static UniqueFd page() {
    UniqueFd fd(::memfd_create("page", MFD_CLOEXEC));
    EXPECT_EQ(::ftruncate(fd.get(), contract::kProgressPageBytes), 0);
    return fd;
  }
  static int64_t of(const StageMeter::Split& split, Stage stage) {
    return split[static_cast<size_t>(stage)];
  }
  static int64_t sum(const StageMeter::Split& split) {
    return std::accumulate(split.begin(), split.end(), int64_t{0});
  }

  const UniqueFd fd_ = page();
  Progress progress_ = *Progress::map(fd_.get());
  StageMeter meter_;
};

TEST_F(StageMeterTest, AStepIsItsInstructionsTheirWaitsApart) {
  meter_.begin(0);
  add(Activity::kDataWait, 110, 120);
  add(Activity::kForward, 100, 200);
  add(Activity::kPipelineWait, 205, 225);
  add(Activity::kBackwardInput, 200, 350);
  add(Activity::kBackwardWeight, 350, 400);
  add(Activity::kReduce, 400, 401);
  add(Activity::kCommunicationWait, 401, 451);
  add(Activity::kReduceControl, 401, 461);
  add(Activity::kCommunicationWait, 470, 480);
  add(Activity::kOptimize, 461, 490);
  add(Activity::kGather, 490, 500);
  add(Activity::kStep, 90, 520);
  const StageMeter::Split split = meter_.take(600);
  EXPECT_EQ(of(split, Stage::kDataWait), 10);
  EXPECT_EQ(of(split, Stage::kForward), 90);
  EXPECT_EQ(of(split, Stage::kBackward), 181);
  EXPECT_EQ(of(split, Stage::kPipelineWait), 20);
  EXPECT_EQ(of(split, Stage::kCollectiveWait), 60);
  EXPECT_EQ(of(split, Stage::kOptimizer), 10 + 29);
  EXPECT_EQ(of(split, Stage::kEvaluation), 0);
  EXPECT_EQ(of(split, Stage::kOther), 10 + 20 + 90 + 80);
  EXPECT_EQ(sum(split), 600) << "every moment is in one stage";
}

TEST_F(StageMeterTest, WeightsAreGatheredAndFreedForThePassTheyBelongTo) {
  meter_.begin(0);
  add(Activity::kCommunicationWait, 0, 10, /*instruction=*/-1);  // before the first instruction
  add(Activity::kGather, 10, 20);
  add(Activity::kForward, 20, 50);
  add(Activity::kFree, 50, 52);
  add(Activity::kGather, 52, 55);
  add(Activity::kBackwardWeight, 55, 85);
  add(Activity::kFree, 85, 90);
  add(Activity::kStep, 0, 90);
  add(Activity::kGather, 90, 95);
  add(Activity::kStep, 90, 95);
  const StageMeter::Split split = meter_.take(95);
  EXPECT_EQ(of(split, Stage::kCollectiveWait), 10);
  EXPECT_EQ(of(split, Stage::kForward), 10 + 30 + 2 + 3 + 5);
  EXPECT_EQ(of(split, Stage::kBackward), 35);
  EXPECT_EQ(of(split, Stage::kOptimizer), 0);
  EXPECT_EQ(sum(split), 95);
}

TEST_F(StageMeterTest, AnEvaluationCountsWholeAndSoDoesAStall) {
  meter_.begin(1000);
  add(Activity::kDataWait, 1000, 1010);
  add(Activity::kForward, 1000, 1100);
  add(Activity::kCommunicationWait, 1110, 1120);
  add(Activity::kEvaluate, 1000, 1150);
  add(Activity::kSnapshot, 1160, 1190);
  add(Activity::kCheckpointWait, 1155, 1200);
  add(Activity::kForward, 1200, 1210);
  add(Activity::kStep, 1200, 1210);
  const StageMeter::Split split = meter_.take(1210);
  EXPECT_EQ(of(split, Stage::kEvaluation), 150);
  EXPECT_EQ(of(split, Stage::kCheckpoint), 45);
  EXPECT_EQ(of(split, Stage::kForward), 10);
  EXPECT_EQ(of(split, Stage::kDataWait), 0);
  EXPECT_EQ(of(split, Stage::kCollectiveWait), 0);
  EXPECT_EQ(of(split, Stage::kOther), 5);
  EXPECT_EQ(sum(split), 210);
}

TEST_F(StageMeterTest, TakingBeginsAnew) {
  meter_.begin(0);
  add(Activity::kStep, 0, 100);
  meter_.take(100);
  const StageMeter::Split split = meter_.take(130);
  EXPECT_EQ(sum(split), 30);
  EXPECT_EQ(of(split, Stage::kOther), 30);
}

TEST_F(StageMeterTest, OtherTracksAreNoTimeOfTheTrainingThread) {
  meter_.begin(0);
  meter_.add(Track::kDataGroup, {.activity = Activity::kCollective, .begin_ns = 0, .end_ns = 50});
  EXPECT_EQ(of(meter_.take(60), Stage::kOther), 60);
}

TEST_F(StageMeterTest, CollectivesHaveTheCommunicatorsNames) {
  for (size_t kind = 0; kind < contract::kCollectives; ++kind)
    EXPECT_EQ(comm::name_of(comm::kOperations[kind]), contract::kCollectiveNames[kind]);
  progress_.set_collective(
      2, {.operations = 3, .nanoseconds = 5, .bytes_sent = 7, .bytes_received = 11});
  const contract::CollectiveReading reading = counters().collectives[2];
  EXPECT_EQ(reading.operations, 3);
  EXPECT_EQ(reading.nanoseconds, 5);
  EXPECT_EQ(reading.bytes_sent, 7);
  EXPECT_EQ(reading.bytes_received, 11);
}

TEST_F(StageMeterTest, StepsAndStagesReachThePage) {
  progress_.count_step(std::chrono::milliseconds(3), 64, /*skipped=*/true);
  progress_.count_step(std::chrono::milliseconds(4), 64, /*skipped=*/false);
  StageMeter::Split split{};
  split[1] = 2'000'000;
  progress_.count_stages(split);
  progress_.set_memory(contract::MemoryPurpose::kGradients, 4096);
  const contract::RankCountersReading reading = counters();
  EXPECT_EQ(reading.step.count(), 2);
  EXPECT_EQ(reading.step.nanoseconds, 7'000'000);
  EXPECT_EQ(reading.tokens_trained, 128);
  EXPECT_EQ(reading.steps_skipped, 1);
  EXPECT_EQ(reading.stages[1].count(), 1);
  EXPECT_EQ(reading.stages[0].count(), 0) << "a stage that the turn did not meet";
  EXPECT_EQ(reading.memory_bytes[2], 4096);
}

}  // namespace
}  // namespace trainyard::engine
