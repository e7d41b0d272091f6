// What somebody else has put into a job's checkpoint directory: checkpoints of another job or of
// another copy of the job, directories inside checkpoints, a directory called `latest`.
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/checkpoint/hooked_file_system.h"
#include "tests/unit/worker/checkpoint/job_directory.h"
#include "tests/unit/worker/checkpoint/memory_file_system.h"
#include "worker/checkpoint/prune.h"
#include "worker/checkpoint/store.h"

namespace trainyard::checkpoint::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ForeignTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(job_.train(files_, {.generation = 1, .steps = {10, 20}}), ""); }

  /// A checkpoint with all its files under another root, as `cp -r` leaves it.
  void copy(const std::filesystem::path& from, const std::filesystem::path& to) {
    ASSERT_TRUE(files_.make_directory(to));
    const auto names = files_.list(from);
    ASSERT_TRUE(names);
    for (const std::string& name : *names)
      ASSERT_TRUE(files_.link(from / name, to / name));
  }

  /// Step 1000 of another job beside this one's checkpoints.
  void lay_another_jobs_checkpoint() {
    JobDirectory other("/other", "job-uid-2");
    ASSERT_EQ(other.train(files_, {.generation = 1, .steps = {1000}}), "");
    copy("/other/g1-step-0000001000", "/job/g1-step-0000001000");
  }

  std::vector<std::string> checkpoints() {
    std::vector<std::string> names;
    const auto found = find_checkpoints(files_, job_.root());
    for (const FoundDirectory& directory : *found)
      names.push_back(directory_name(directory.id) + (directory.committed ? "" : " (no manifest)"));
    return names;
  }

  MemoryFileSystem files_;
  JobDirectory job_{"/job"};
};

// ---- Checkpoints of others ---------------------------------------------------------------------

TEST_F(ForeignTest, ACheckpointOfAnotherJobIsPassedOverAndBothAreNamed) {
  lay_another_jobs_checkpoint();
  ASSERT_EQ(job_.train(files_, {.generation = 2, .parent = 1, .ranks = 2, .steps = {30}}), "");
  EXPECT_EQ(job_.restored_step(), 20);
  EXPECT_THAT(job_.notes(),
              ElementsAre(AllOf(HasSubstr("g1-step-0000001000: manifest.json: "),
                                HasSubstr("found jobUid job-uid-2"), HasSubstr("wanted job-uid-1"),
                                HasSubstr("move it away"))));
}

TEST_F(ForeignTest, ACheckpointOfAnotherJobAloneIsAnErrorAndNoFreshStart) {
  lay_another_jobs_checkpoint();
  for (const int64_t step : {10, 20})
    ASSERT_TRUE(remove_checkpoint(files_, job_.root(), {1, step}));
  EXPECT_THAT(job_.train(files_, {.generation = 2, .parent = 1}),
              AllOf(HasSubstr("none of 1 checkpoints is good"), HasSubstr("job-uid-2")));
}

TEST_F(ForeignTest, ACheckpointOfAnotherCopyOfTheJobIsPassedOver) {
  // The run directory was copied; the copy went on from step 10, this one from step 20.
  JobDirectory copied("/copy");
  ASSERT_TRUE(files_.make_directory("/copy"));
  ASSERT_TRUE(files_.make_directory("/copy/lineage"));
  copy("/job/g1-step-0000000010", "/copy/g1-step-0000000010");
  ASSERT_TRUE(files_.link("/job/lineage/1.json", "/copy/lineage/1.json"));
  ASSERT_EQ(copied.train(files_, {.generation = 2, .parent = 1, .steps = {500}}), "");
  ASSERT_EQ(copied.restored_step(), 10);
  ASSERT_EQ(job_.train(files_, {.generation = 2, .parent = 1, .steps = {30}}), "");
  copy("/copy/g2-step-0000000500", "/job/g2-step-0000000500");
  ASSERT_EQ(job_.train(files_, {.generation = 3, .parent = 2}), "");
  EXPECT_EQ(job_.restored_step(), 30);
  EXPECT_THAT(job_.notes(), Contains(AllOf(HasSubstr("another copy of job job-uid-1"),
                                           HasSubstr("found parent 1, fork step 10"),
                                           HasSubstr("wanted parent 1, fork step 20, branchId "),
                                           HasSubstr(" as in lineage/2.json"))));
}

TEST_F(ForeignTest, ACopyThatForkedAtTheSameStepInTheSameGenerationIsPassedOverToo) {
  JobDirectory copied("/copy");
  ASSERT_TRUE(files_.make_directory("/copy"));
  ASSERT_TRUE(files_.make_directory("/copy/lineage"));
  copy("/job/g1-step-0000000020", "/copy/g1-step-0000000020");
  ASSERT_TRUE(files_.link("/job/lineage/1.json", "/copy/lineage/1.json"));
  ASSERT_EQ(copied.train(files_, {.generation = 2, .parent = 1, .steps = {500}}), "");
  ASSERT_EQ(job_.train(files_, {.generation = 2, .parent = 1, .steps = {30}}), "");
  copy("/copy/g2-step-0000000500", "/job/g2-step-0000000500");
  ASSERT_EQ(job_.train(files_, {.generation = 3, .parent = 2}), "");
  EXPECT_EQ(job_.restored_step(), 30);
  const std::string theirs = load_lineage(files_, "/copy")->records.at(2).branch_id;
  const std::string own = load_lineage(files_, "/job")->records.at(2).branch_id;
  EXPECT_THAT(job_.notes(), Contains(AllOf(HasSubstr("another copy of job job-uid-1"),
                                           HasSubstr("found parent 1, fork step 20, branchId " +
                                                     theirs + ", wanted parent 1, fork step 20"),
                                           HasSubstr("branchId " + own + " as in"))));
}

TEST_F(ForeignTest, ARecordThatIsToldAgainByAManifestHasItsBranch) {
  const LineageRecord record = load_lineage(files_, "/job")->records.at(1);
  ASSERT_TRUE(files_.remove_file("/job/lineage/1.json"));
  ASSERT_TRUE(files_.create("/job/lineage/1.json"));  // empty: damaged
  EXPECT_EQ(load_lineage(files_, "/job")->records.at(1), record);
  ASSERT_EQ(job_.train(files_, {.generation = 2, .parent = 1}), "");
  EXPECT_EQ(job_.restored_step(), 20);
}

TEST_F(ForeignTest, AGenerationOfAnEarlierProgramHasNoBranchAndGoesOn) {
  // Its record and its manifest, as the first version wrote them.
  LineageRecord record = load_lineage(files_, "/job")->records.at(1);
  record.branch_id.clear();
  ASSERT_TRUE(files_.remove_file("/job/lineage/1.json"));
  ASSERT_TRUE(write_lineage(files_, "/job", record));
  ASSERT_TRUE(remove_checkpoint(files_, "/job", {1, 20}));
  const std::filesystem::path path = "/job/g1-step-0000000010/manifest.json";
  auto manifest = decode_manifest(*read_text(files_, path, kMaxManifestBytes));
  ASSERT_TRUE(manifest);
  manifest->branch_id.clear();
  ASSERT_TRUE(replace_file(files_, path, *encode(*manifest), ".tmp"));
  ASSERT_EQ(job_.train(files_, {.generation = 2, .parent = 1, .steps = {30}}), "");
  EXPECT_EQ(job_.restored_step(), 10);
  EXPECT_THAT(job_.notes(), Not(Contains(HasSubstr("copy of"))));
}

TEST_F(ForeignTest, ToolsPassItOverToo) {
  lay_another_jobs_checkpoint();
  std::vector<std::string> notes;
  const auto reader =
      open_newest_good(files_, job_.root(), std::nullopt, Verify::kManifest, &notes);
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ((*reader)->manifest().step, 20);
  EXPECT_THAT(notes, ElementsAre(HasSubstr("job-uid-2")));
  // Who names it itself means it.
  EXPECT_TRUE(
      CheckpointReader::open(files_, job_.root() / "g1-step-0000001000", Verify::kManifest));
}

TEST_F(ForeignTest, ItNeitherCountsAmongThoseKeptNorIsRemoved) {
  lay_another_jobs_checkpoint();
  copy("/other/g1-step-0000001000", "/job/g1-step-0000000005");  // by a wrong name, and old
  const auto plan = plan_prune(files_, job_.root(), {.keep_last = 1});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_THAT(plan->kept, ElementsAre(CheckpointId{1, 20}));
  EXPECT_THAT(plan->removed, ElementsAre(CheckpointId{1, 10}));
  EXPECT_THAT(plan->left_alone, Contains(HasSubstr("g1-step-0000001000: manifest.json: is of")));
  ASSERT_EQ(
      job_.train(
          files_,
          {.generation = 2, .parent = 1, .steps = {30, 40, 50}, .retention = {.keep_last = 1}}),
      "");
  EXPECT_THAT(checkpoints(),
              ElementsAre("g1-step-0000000005", "g1-step-0000001000", "g2-step-0000000050"));
  EXPECT_THAT(job_.writer_notes(),
              Contains(AllOf(HasSubstr("clean-up: g1-step-0000001000: "), HasSubstr("job-uid-2"))));
}

// ---- Directories inside checkpoints ------------------------------------------------------------

TEST_F(ForeignTest, ACheckpointWithADirectoryInItStaysWholeAndOthersGo) {
  ASSERT_TRUE(files_.make_directory("/job/g1-step-0000000010/notes"));
  ASSERT_EQ(
      job_.train(files_,
                 {.generation = 2, .parent = 1, .steps = {30, 40}, .retention = {.keep_last = 1}}),
      "");
  EXPECT_THAT(checkpoints(), ElementsAre("g1-step-0000000010", "g2-step-0000000040"));
  EXPECT_TRUE(CheckpointReader::open(files_, "/job/g1-step-0000000010", Verify::kAll));
  EXPECT_THAT(job_.writer_notes(),
              Contains(AllOf(HasSubstr("clean-up: g1-step-0000000010: stays"),
                             HasSubstr("directory notes"), HasSubstr("move it away"))));
  ASSERT_TRUE(files_.remove_directory("/job/g1-step-0000000010/notes"));
  ASSERT_EQ(
      job_.train(files_,
                 {.generation = 3, .parent = 2, .steps = {50}, .retention = {.keep_last = 1}}),
      "");
  EXPECT_THAT(checkpoints(), ElementsAre("g3-step-0000000050"));
  EXPECT_THAT(job_.writer_notes(), IsEmpty());
}

TEST_F(ForeignTest, WhatGoesIsLookedAtOnce) {
  std::map<std::filesystem::path, int> looks;
  HookedFileSystem watched(borrowed(files_),
                           [&](std::string_view what, const std::filesystem::path& path) {
                             if (what == "lstat") ++looks[path];
                             return Status();
                           });
  const auto removed =
      remove_checkpoints(watched, job_.root(), {}, std::vector<CheckpointId>{{1, 10}});
  EXPECT_THAT(removed.removed, ElementsAre(CheckpointId{1, 10}));
  EXPECT_THAT(looks, Not(IsEmpty()));
  for (const auto& [path, count] : looks)
    EXPECT_EQ(count, 1) << path;
}

TEST_F(ForeignTest, WhatAnEarlierProgramHalfRemovedIsNamedUntilItCanGo) {
  ASSERT_TRUE(files_.make_directory("/job/g1-step-0000000010/notes"));
  ASSERT_TRUE(files_.remove_file("/job/g1-step-0000000010/manifest.json"));
  ASSERT_EQ(job_.train(files_, {.generation = 2, .parent = 1, .steps = {30}}), "");
  EXPECT_THAT(checkpoints(), Contains("g1-step-0000000010 (no manifest)"));
  EXPECT_THAT(job_.writer_notes(), Contains(HasSubstr("g1-step-0000000010: stays")));
}

TEST_F(ForeignTest, PruneTellsWhichStaysAndGoesOnWithTheRest) {
  ASSERT_EQ(
      job_.train(files_,
                 {.generation = 2, .parent = 1, .steps = {30, 40}, .retention = {.keep_last = 9}}),
      "");
  ASSERT_TRUE(files_.make_directory("/job/g2-step-0000000020/export"));
  const auto plan = plan_prune(files_, job_.root(), {.keep_last = 1});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_THAT(plan->left_alone, ElementsAre(HasSubstr("g2-step-0000000020: stays")));
  EXPECT_THAT(plan->removed, Not(Contains(CheckpointId{2, 20})));
  // One that cannot be removed for a reason which shows only then.
  HookedFileSystem bad(borrowed(files_), [](std::string_view what, const auto& path) -> Status {
    const bool it = path.string().find("g1-step-0000000010/manifest") != std::string::npos;
    if (what != "unlink" || !it) return {};
    return Error{ErrorCode::kIo, "unlink: permission denied"};
  });
  const CleanUp done = prune(bad, job_.root(), *plan, nullptr);
  EXPECT_THAT(done.left, ElementsAre(HasSubstr("g1-step-0000000010: unlink")));
  ASSERT_TRUE(done.unremoved);
  EXPECT_THAT(checkpoints(),
              ElementsAre("g1-step-0000000010", "g2-step-0000000020", "g2-step-0000000040"));
}

// ---- latest ------------------------------------------------------------------------------------

TEST_F(ForeignTest, ADirectoryCalledLatestIsMovedAsideAndHindersNothing) {
  ASSERT_TRUE(files_.remove_file("/job/latest"));
  copy("/job/g1-step-0000000020", "/job/latest");
  ASSERT_EQ(
      job_.train(files_,
                 {.generation = 2, .parent = 1, .steps = {30, 40}, .retention = {.keep_last = 1}}),
      "");
  EXPECT_THAT(job_.notes(), ElementsAre(AllOf(HasSubstr("latest: was a directory"),
                                              HasSubstr("/job/latest-moved-aside"))));
  EXPECT_EQ(read_latest(files_, "/job"), (CheckpointId{2, 40}));
  EXPECT_THAT(checkpoints(), ElementsAre("g2-step-0000000040"));
  EXPECT_TRUE(CheckpointReader::open(files_, "/job/latest-moved-aside", Verify::kAll));
}

TEST_F(ForeignTest, WhereLatestCannotBeMovedTheOldOnesGoAllTheSame) {
  ASSERT_TRUE(files_.remove_file("/job/latest"));
  ASSERT_TRUE(files_.make_directory("/job/latest"));
  ASSERT_TRUE(files_.make_directory("/job/latest-moved-aside"));
  const auto taken = files_.create("/job/latest-moved-aside/taken");
  ASSERT_TRUE(taken);
  HookedFileSystem full(borrowed(files_), [](std::string_view what, const auto& path) -> Status {
    if (what != "rename" || path.filename() != "latest") return {};
    return Error{ErrorCode::kAlreadyExists, "rename /job/latest: directory not empty"};
  });
  ASSERT_EQ(
      job_.train(full,
                 {.generation = 2, .parent = 1, .steps = {30, 40}, .retention = {.keep_last = 1}}),
      "");
  EXPECT_THAT(checkpoints(), ElementsAre("g2-step-0000000040"));
  EXPECT_THAT(job_.writer_notes(),
              Contains(AllOf(HasSubstr("latest: could be neither moved nor removed"),
                             HasSubstr("directory not empty"))));
}

TEST_F(ForeignTest, ALatestThatWasSetBackByHandDecidesNothingAndItIsSaid) {
  ASSERT_TRUE(files_.remove_file("/job/latest"));
  ASSERT_TRUE(files_.symlink("g1-step-0000000010", "/job/latest"));
  ASSERT_EQ(job_.train(files_, {.generation = 2, .parent = 1}), "");
  EXPECT_EQ(job_.restored_step(), 20);
  EXPECT_THAT(job_.notes(), ElementsAre(AllOf(HasSubstr("latest: named g1-step-0000000010"),
                                              HasSubstr("resumes from g2-step-0000000020"))));
}

TEST_F(ForeignTest, ALatestThatLeadsNowhereIsMendedWithoutAWord) {
  ASSERT_TRUE(files_.remove_file("/job/latest"));
  ASSERT_TRUE(files_.symlink("g1-step-0000000777", "/job/latest"));
  ASSERT_EQ(job_.train(files_, {.generation = 2, .parent = 1}), "");
  EXPECT_EQ(read_latest(files_, "/job"), (CheckpointId{2, 20}));
  EXPECT_THAT(job_.notes(), IsEmpty());
}

}  // namespace
}  // namespace trainyard::checkpoint::testing
