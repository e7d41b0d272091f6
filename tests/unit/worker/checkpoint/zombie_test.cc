#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/checkpoint/job_directory.h"
#include "tests/unit/worker/checkpoint/memory_file_system.h"
#include "worker/checkpoint/store.h"

namespace trainyard::checkpoint::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::SizeIs;

/// A generation that everybody believes dead: it is kept alive here and made to act at will.
class Zombie {
 public:
  Zombie(FileSystem& files, const JobDirectory& job, int64_t generation,
         std::optional<int64_t> parent)
      : files_(files), job_(job), generation_(generation) {
    const auto started = start_generation(files, job.plan(generation, parent), group_,
                                          [](CheckpointReader&) { return Status(); });
    if (!started) throw std::runtime_error(started.error().message);
    writer_ = std::make_unique<CheckpointWriter>(
        borrowed(files), group_, WriterOptions{job.root(), {.keep_last = 1}, 256}, *started);
  }

  /// Commits a checkpoint, moves `latest` and removes all others of its history.
  void commit(int64_t step) {
    const auto state = small_state(step);
    Snapshot snapshot = small_snapshot(state, step, 0, 1);
    ASSERT_TRUE(writer_->begin(std::move(snapshot)));
    const auto outcome = writer_->wait(std::chrono::seconds(60));
    ASSERT_TRUE(outcome.has_value());
    ASSERT_TRUE(outcome->status) << outcome->status.error().message;
  }

  /// Cleans up as after a commit, as greedily as it may.
  void clean_up(int64_t step) {
    (void)apply_retention(files_, job_.root(), generation_, step, {.keep_last = 1});
  }

 private:
  FileSystem& files_;
  const JobDirectory& job_;
  int64_t generation_;
  SoloCommitGroup group_;
  std::unique_ptr<CheckpointWriter> writer_;
};

class ZombieTest : public ::testing::Test {
 protected:
  int64_t newest_step(std::optional<int64_t> generation = std::nullopt) {
    const auto reader = open_newest_good(files_, job_.root(), generation, Verify::kAll, nullptr);
    if (!reader) return -1;
    return difference(**reader).empty() ? (*reader)->manifest().step : -2;
  }
  MemoryFileSystem files_;
  JobDirectory job_{"/job"};
};

TEST_F(ZombieTest, LateCommitAfterTheForkIsNeverAccepted) {
  Zombie zombie(files_, job_, 1, std::nullopt);
  zombie.commit(10);
  ASSERT_EQ(job_.train(files_, {.generation = 2, .parent = 1, .steps = {15}}), "");
  EXPECT_EQ(job_.restored_step(), 10);
  zombie.commit(99);
  EXPECT_EQ(newest_step(), 15);
  ASSERT_EQ(job_.train(files_, {.generation = 3, .parent = 2}), "");
  EXPECT_EQ(job_.restored_step(), 15);
}

TEST_F(ZombieTest, LateCleanUpTakesNothingFromItsSuccessor) {
  Zombie zombie(files_, job_, 1, std::nullopt);
  zombie.commit(10);
  ASSERT_EQ(job_.train(files_, {.generation = 2, .parent = 1}), "");
  zombie.commit(20);  // keeps only its newest
  zombie.clean_up(1'000'000);
  EXPECT_EQ(newest_step(2), 10);
  ASSERT_EQ(job_.train(files_, {.generation = 3, .parent = 2, .steps = {11}}), "");
  EXPECT_EQ(job_.restored_step(), 10);
}

TEST_F(ZombieTest, LateLatestMisleadsNoReader) {
  Zombie zombie(files_, job_, 1, std::nullopt);
  zombie.commit(10);
  ASSERT_EQ(job_.train(files_, {.generation = 2, .parent = 1, .steps = {15}}), "");
  zombie.commit(99);
  EXPECT_EQ(read_latest(files_, job_.root()), (CheckpointId{2, 15}));
  // Even when it wins the race between looking and renaming:
  ASSERT_TRUE(files_.remove_file(job_.root() / kLatestLink));
  ASSERT_TRUE(files_.symlink("g1-step-0000000099", job_.root() / kLatestLink));
  EXPECT_EQ(newest_step(), 15);
}

TEST_F(ZombieTest, GenerationThatStartsLateFindsNobodyWhoFollowsIt) {
  ASSERT_EQ(job_.train(files_, {.generation = 1, .steps = {10}}), "");
  ASSERT_EQ(job_.train(files_, {.generation = 3, .parent = 2, .steps = {20}}), "");
  // Generation 2 was given up while it started; now it starts after all.
  Zombie zombie(files_, job_, 2, 1);
  zombie.commit(50);
  zombie.clean_up(1'000'000);
  EXPECT_EQ(newest_step(), 20);
  ASSERT_EQ(job_.train(files_, {.generation = 4, .parent = 3, .steps = {21}}), "");
  EXPECT_EQ(job_.restored_step(), 20);
}

TEST_F(ZombieTest, MayCommitAndCleanUpAtAnyMomentOfItsSuccessorsStart) {
  // Between any two calls of generation 2's start and first checkpoint, generation 1 commits
  // another checkpoint and removes all its others.
  int64_t calls = 0;
  for (int64_t k = 0; k == 0 || k < calls; ++k) {
    MemoryFileSystem files;
    JobDirectory job("/job");
    Zombie zombie(files, job, 1, std::nullopt);
    zombie.commit(10);
    files.reset_calls();
    bool acted = false;
    files.set_hook([&](int64_t call, std::string_view) -> Status {
      if (acted || call != k) return {};
      acted = true;
      zombie.commit(20);
      return {};
    });
    // A second bite: what it did not get with the first.
    ASSERT_EQ(job.train(files, {.generation = 2, .parent = 1, .steps = {30}}), "") << k;
    files.set_hook(nullptr);
    if (k == 0) calls = files.calls();
    zombie.commit(40);
    const int64_t restored = job.restored_step().value_or(-1);
    ASSERT_TRUE(restored == 10 || restored == 20) << k << ": " << restored;
    const auto reader = open_newest_good(files, job.root(), 2, Verify::kAll, nullptr);
    ASSERT_TRUE(reader.has_value()) << k;
    ASSERT_EQ((*reader)->manifest().step, 30) << k;
    ASSERT_EQ(difference(**reader), "") << k;
    const auto fork =
        CheckpointReader::open(files, job.root() / directory_name({2, restored}), Verify::kAll);
    ASSERT_TRUE(fork.has_value()) << k << ": " << fork.error().message;
  }
  EXPECT_GT(calls, 40);
}

TEST_F(ZombieTest, ItsSuccessorMayCleanUpAtAnyMomentOfItsCommit) {
  // The other way round: the zombie must fail or finish, but never crash, and harm nobody.
  for (int64_t k = 0; k < 60; ++k) {
    MemoryFileSystem files;
    JobDirectory job("/job");
    SoloCommitGroup group;
    const auto started = start_generation(files, job.plan(1, std::nullopt), group,
                                          [](CheckpointReader&) { return Status(); });
    CheckpointWriter writer(borrowed(files), group, {job.root(), {.keep_last = 1}, 256}, *started);
    const auto first = small_state(10);
    ASSERT_TRUE(writer.begin(small_snapshot(first, 10, 0, 1)));
    ASSERT_TRUE(writer.wait(std::chrono::seconds(60))->status);
    ASSERT_EQ(job.train(files, {.generation = 2, .parent = 1}), "");
    files.reset_calls();
    bool acted = false;
    files.set_hook([&](int64_t call, std::string_view) -> Status {
      if (acted || call != k) return {};
      acted = true;
      (void)apply_retention(files, job.root(), 2, 1'000'000, {.keep_last = 1});
      return {};
    });
    const auto second = small_state(20);
    ASSERT_TRUE(writer.begin(small_snapshot(second, 20, 0, 1)));
    ASSERT_TRUE(writer.wait(std::chrono::seconds(60)).has_value());
    files.set_hook(nullptr);
    const auto reader = open_newest_good(files, job.root(), std::nullopt, Verify::kAll, nullptr);
    ASSERT_TRUE(reader.has_value()) << k;
    ASSERT_EQ((*reader)->manifest().id(), (CheckpointId{2, 10})) << k;
  }
}

TEST_F(ZombieTest, SameGenerationBeginsOnce) {
  ASSERT_EQ(job_.train(files_, {.generation = 1, .steps = {10}}), "");
  SoloCommitGroup group;
  const auto again = start_generation(files_, job_.plan(1, std::nullopt), group,
                                      [](CheckpointReader&) { return Status(); });
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code, ErrorCode::kConflict);
  // Also when both looked before either wrote.
  EXPECT_EQ(write_lineage(files_, job_.root(), {1, "job-uid-1", std::nullopt, -1}).error().code,
            ErrorCode::kConflict);
}

TEST_F(ZombieTest, AnotherJobsDirectoryIsRefused) {
  ASSERT_EQ(job_.train(files_, {.generation = 1, .steps = {10}}), "");
  // Also where the other job has begun a generation of the same number.
  for (const int64_t generation : {1, 2}) {
    GenerationPlan plan = job_.plan(generation, std::nullopt);
    plan.job_uid = "job-uid-2";
    SoloCommitGroup group;
    const auto other =
        start_generation(files_, plan, group, [](CheckpointReader&) { return Status(); });
    ASSERT_FALSE(other.has_value());
    EXPECT_EQ(other.error().code, ErrorCode::kInvalidConfig);
    EXPECT_THAT(other.error().message, HasSubstr("holds checkpoints of job job-uid-1"));
  }
}

TEST_F(ZombieTest, GenerationThatNeverTrainedIsPassedOver) {
  ASSERT_EQ(job_.train(files_, {.generation = 1, .steps = {10}}), "");
  // Generations 2 and 3 died before they wrote a record; 2 had adopted already.
  ASSERT_TRUE(files_.make_directory(job_.root() / "g2-step-0000000010"));
  ASSERT_EQ(job_.train(files_, {.generation = 4, .parent = 3, .steps = {20}}), "");
  EXPECT_EQ(job_.restored_step(), 10);
  EXPECT_EQ(files_.list(job_.root() / "g2-step-0000000010").error().code, ErrorCode::kNotFound);
}

TEST_F(ZombieTest, FatalErrorOfARankStopsAllInsteadOfSteppingBack) {
  ASSERT_EQ(job_.train(files_, {.generation = 1, .steps = {10, 20}}), "");
  std::mutex mutex;
  std::vector<Error> errors;
  run_ranks(3, [&](CommitGroup& group) {
    const auto started =
        start_generation(files_, job_.plan(2, 1), group, [&](CheckpointReader&) -> Status {
          if (group.rank() != 1) return {};
          return Error{ErrorCode::kInvalidConfig, "hidden: found 12, the checkpoint has 16"};
        });
    const std::lock_guard lock(mutex);
    if (!started) errors.push_back(started.error());
  });
  ASSERT_EQ(errors.size(), 3U);
  for (const Error& error : errors) {
    EXPECT_EQ(error.code, ErrorCode::kInvalidConfig);
    EXPECT_EQ(error.message, "rank 1: hidden: found 12, the checkpoint has 16");
  }
  // Nothing has been begun, so the next generation starts from the same place.
  ASSERT_EQ(job_.train(files_, {.generation = 3, .parent = 2}), "");
  EXPECT_EQ(job_.restored_step(), 20);
}

TEST_F(ZombieTest, WithoutHardLinksTheForkPointIsCopied) {
  Zombie zombie(files_, job_, 1, std::nullopt);
  zombie.commit(10);
  files_.refuse_links();
  ASSERT_EQ(job_.train(files_, {.generation = 2, .parent = 1, .steps = {15}}), "");
  EXPECT_EQ(job_.restored_step(), 10);
  zombie.commit(20);
  EXPECT_EQ(newest_step(), 15);
  const auto fork =
      CheckpointReader::open(files_, job_.root() / "g2-step-0000000010", Verify::kAll);
  ASSERT_TRUE(fork.has_value()) << fork.error().message;
}

TEST_F(ZombieTest, WithoutHardLinksRestartsDoNotFillTheDisk) {
  files_.refuse_links();
  ASSERT_EQ(job_.train(files_, {.generation = 1, .steps = {10}}), "");
  const auto checkpoints = [&] {
    std::vector<std::string> names;
    const auto all = files_.list(job_.root());
    for (const std::string& name : *all) {
      if (parse_directory_name(name)) names.push_back(name);
    }
    return names;
  };
  // Lives without a checkpoint of their own.
  for (const int64_t generation : {2, 3, 4}) {
    ASSERT_EQ(job_.train(files_, {.generation = generation, .parent = generation - 1}), "");
    EXPECT_EQ(job_.restored_step(), 10);
    EXPECT_THAT(checkpoints(), ElementsAre(directory_name({generation, 10})));
  }
  // Lives that end before they are recorded, in the middle of a copy or after it.
  for (const int64_t generation : {5, 6, 7}) {
    int64_t writes = 0;
    files_.set_hook([&](int64_t, std::string_view what) -> Status {
      if (what == "write") ++writes;
      if (writes < generation - 4) return {};
      return Error{ErrorCode::kIo, "dead"};
    });
    ASSERT_NE(job_.train(files_, {.generation = generation, .parent = 4}), "");
    files_.set_hook(nullptr);
    EXPECT_THAT(checkpoints(), SizeIs(Le(2U)));
  }
  ASSERT_EQ(job_.train(files_, {.generation = 8, .parent = 7}), "");
  EXPECT_EQ(job_.restored_step(), 10);
  EXPECT_THAT(checkpoints(), ElementsAre(directory_name({8, 10})));
}

TEST_F(ZombieTest, WithoutHardLinksARecordIsWholeAndMadeOnce) {
  files_.refuse_links();
  ASSERT_EQ(job_.train(files_, {.generation = 1, .steps = {10}}), "");
  const LineageRecord again{1, "job-uid-1", std::nullopt, 5};
  EXPECT_EQ(write_lineage(files_, job_.root(), again).error().code, ErrorCode::kConflict);
  // Its successor removes the claim, for which there is the record.
  ASSERT_EQ(job_.train(files_, {.generation = 2, .parent = 1}), "");
  const auto left = files_.list(job_.root() / kLineageDirectory);
  EXPECT_THAT(*left, ElementsAre("1.json", "2.json", "2.json.claim"));
  EXPECT_EQ(write_lineage(files_, job_.root(), again).error().code, ErrorCode::kConflict);
  EXPECT_EQ(load_lineage(files_, job_.root())->records.at(1).fork_step, kFromScratch);
}

TEST_F(ZombieTest, WithoutSymbolicLinksThereIsNoLatestAndNobodyIsToldAtEachCheckpoint) {
  files_.refuse_links();
  SoloCommitGroup group;
  const auto started = start_generation(files_, job_.plan(1, std::nullopt), group,
                                        [](CheckpointReader&) { return Status(); });
  ASSERT_TRUE(started.has_value()) << started.error().message;
  const auto notes = std::make_shared<Notes>();
  {
    CheckpointWriter writer(
        borrowed(files_), group,
        {.root = job_.root(), .retention = {}, .chunk_bytes = 256, .notes = notes}, *started);
    const auto state = small_state(10);
    ASSERT_TRUE(writer.begin(small_snapshot(state, 10, 0, 1)));
    const auto outcome = writer.wait(std::chrono::seconds(60));
    ASSERT_TRUE(outcome.has_value());
    EXPECT_TRUE(outcome->status) << outcome->status.error().message;
  }
  EXPECT_THAT(notes->take(), ::testing::IsEmpty());
  EXPECT_EQ(newest_step(), 10);
}

}  // namespace
}  // namespace trainyard::checkpoint::testing
