#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/checkpoint/hooked_file_system.h"
#include "tests/unit/worker/checkpoint/job_directory.h"
#include "tests/unit/worker/checkpoint/memory_file_system.h"
#include "worker/checkpoint/store.h"

namespace trainyard::checkpoint::testing {
namespace {

using ::testing::HasSubstr;

/// Two checkpoints, the newer one to be damaged.
class DamageTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(job_.train(files_, {.generation = 1, .steps = {10, 20}}), ""); }
  std::filesystem::path newest(const std::string& file) const {
    const auto directory = job_.root() / "g1-step-0000000020";
    return file.empty() ? directory : directory / file;
  }

  /// Opens the newest good one: its step, or -1. Demands a note that names the rejected one.
  int64_t newest_good() {
    std::vector<std::string> notes;
    const auto reader = open_newest_good(files_, job_.root(), std::nullopt, Verify::kAll, &notes);
    if (!reader) return -1;
    const int64_t step = (*reader)->manifest().step;
    if (step == 10 && (notes.size() != 1 || notes[0].find("g1-step-0000000020: ") != 0)) return -2;
    if (!difference(**reader).empty()) return -3;
    return step;
  }

  MemoryFileSystem files_;
  JobDirectory job_{"/job"};
};

// Most flips are tried on the newest checkpoint alone, every 61st through the whole fall-back.
constexpr size_t kThrough = 61;

TEST_F(DamageTest, EveryFlippedBitOfAManifestIsFoundAndTheOneBeforeUsed) {
  ASSERT_EQ(newest_good(), 20);
  std::string& content = files_.content(newest("manifest.json"));
  for (size_t at = 0; at < content.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      content[at] = static_cast<char>(content[at] ^ (1 << bit));
      ASSERT_EQ(CheckpointReader::open(files_, newest(""), Verify::kManifest).error().code,
                ErrorCode::kInvalidData)
          << "byte " << at << " bit " << bit;
      if (at % kThrough == 0) {
        ASSERT_EQ(newest_good(), 10) << at;
      }
      content[at] = static_cast<char>(content[at] ^ (1 << bit));
    }
  }
  EXPECT_EQ(newest_good(), 20);
}

TEST_F(DamageTest, EveryFlippedBitOfAShardIsFoundAndTheOneBeforeUsed) {
  const auto reader = CheckpointReader::open(files_, newest(""), Verify::kAll);
  ASSERT_TRUE(reader.has_value());
  std::string& content = files_.content(newest("shard-0-of-1.safetensors"));
  for (size_t at = 0; at < content.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      content[at] = static_cast<char>(content[at] ^ (1 << bit));
      const auto damages = (*reader)->verify_all();
      ASSERT_EQ(damages.size(), 1U) << "byte " << at << " bit " << bit;
      ASSERT_EQ(damages[0].chunk, static_cast<int64_t>(at / 256));
      if (at % kThrough == 0) {
        ASSERT_EQ(newest_good(), 10) << at;
      }
      content[at] = static_cast<char>(content[at] ^ (1 << bit));
    }
  }
  EXPECT_EQ(newest_good(), 20);
}

TEST_F(DamageTest, EveryTruncationIsFoundAndTheOneBeforeUsed) {
  for (const std::string file : {"manifest.json", "shard-0-of-1.safetensors"}) {
    std::string& content = files_.content(newest(file));
    const std::string whole = content;
    for (size_t size = 0; size < whole.size(); ++size) {
      content = whole.substr(0, size);
      ASSERT_FALSE(CheckpointReader::open(files_, newest(""), Verify::kManifest).has_value())
          << file << " cut to " << size;
      if (size % kThrough == 0) {
        ASSERT_EQ(newest_good(), 10) << file << " cut to " << size;
      }
    }
    content = whole + '\0';
    EXPECT_EQ(newest_good(), 10) << file << " with a byte more";
    content = whole;
  }
}

TEST_F(DamageTest, ReadFindsTheDamageWithoutAFullVerification) {
  // Every byte of data lies in some chunk that a reader of everything checks.
  std::string& content = files_.content(newest("shard-0-of-1.safetensors"));
  for (size_t at = content.size() - 1200; at < content.size(); at += 7) {
    content[at] = static_cast<char>(content[at] ^ 1);
    const auto reader =
        CheckpointReader::open(files_, job_.root() / "g1-step-0000000020", Verify::kManifest);
    ASSERT_TRUE(reader.has_value());
    EXPECT_THAT(difference(**reader),
                HasSubstr("shard-0-of-1.safetensors: chunk " + std::to_string(at / 256)));
    content[at] = static_cast<char>(content[at] ^ 1);
  }
}

TEST_F(DamageTest, VerifyNamesEveryDamagedChunk) {
  std::string& content = files_.content(newest("shard-0-of-1.safetensors"));
  content[1] = static_cast<char>(content[1] ^ 1);
  content[content.size() - 1] = static_cast<char>(content[content.size() - 1] ^ 1);
  const auto reader =
      CheckpointReader::open(files_, job_.root() / "g1-step-0000000020", Verify::kManifest);
  const auto damages = (*reader)->verify_all();
  ASSERT_EQ(damages.size(), 2U);
  EXPECT_EQ(damages[0].chunk, 0);
  EXPECT_EQ(damages[1].chunk, static_cast<int64_t>((content.size() - 1) / 256));
}

TEST_F(DamageTest, RanksStepBackTogetherWhenOneOfThemFindsDamage) {
  ASSERT_EQ(job_.train(files_, {.generation = 2, .parent = 1, .ranks = 3, .steps = {30}}), "");
  files_.content(job_.root() / "g2-step-0000000030/shard-2-of-3.safetensors").back() ^= 1;
  ASSERT_EQ(job_.train(files_, {.generation = 3, .parent = 2, .ranks = 2, .steps = {31}}), "");
  EXPECT_EQ(job_.restored_step(), 20);
  ASSERT_EQ(job_.notes().size(), 1U);
  EXPECT_THAT(job_.notes()[0], HasSubstr("g2-step-0000000030: rank 0: shard-2-of-3.safetensors"));
}

TEST_F(DamageTest, NothingGoodIsAnErrorAndNotAFreshStart) {
  for (const char* name : {"g1-step-0000000010", "g1-step-0000000020"}) {
    files_.content(job_.root() / name / "shard-0-of-1.safetensors").back() ^= 1;
  }
  const std::string trouble = job_.train(files_, {.generation = 2, .parent = 1});
  EXPECT_THAT(trouble, HasSubstr("none of 2 checkpoints is good"));
  EXPECT_THAT(trouble, HasSubstr("shard-0-of-1.safetensors: chunk"));
}

/// Begins generation 2 on two ranks, on the second of which `reads(step)` says whether a disk lets
/// a checkpoint be read. What rank 0 is told.
Result<StartedGeneration> begin_on(FileSystem& files, const JobDirectory& job,
                                   const std::function<bool(int64_t)>& reads) {
  std::optional<Result<StartedGeneration>> told;
  run_ranks(2, [&](CommitGroup& group) {
    auto started =
        start_generation(files, job.plan(2, 1), group, [&](CheckpointReader& reader) -> Status {
          if (group.rank() == 0 || reads(reader.manifest().step)) {
            return {};
          }
          return Error{ErrorCode::kIo, "stale file handle"};
        });
    if (group.rank() == 0) told = std::move(started);
  });
  return *std::move(told);
}

TEST_F(DamageTest, ADisksBadMomentCostsNoProgress) {
  int failures = 2;
  const auto started = begin_on(files_, job_, [&](int64_t) { return failures-- <= 0; });
  ASSERT_TRUE(started) << started.error().message;
  ASSERT_TRUE(started->resumed_from);
  EXPECT_EQ(started->resumed_from->id.step, 20);
  ASSERT_EQ(started->notes.size(), 2U);
  EXPECT_THAT(started->notes[0], HasSubstr("rank 1: stale file handle"));
}

TEST_F(DamageTest, ACheckpointThatStaysUnreadableIsSteppedBackFrom) {
  const auto started = begin_on(files_, job_, [](int64_t step) { return step != 20; });
  ASSERT_TRUE(started) << started.error().message;
  ASSERT_TRUE(started->resumed_from);
  EXPECT_EQ(started->resumed_from->id.step, 10);
}

TEST_F(DamageTest, WhereNoneCanBeReadAnotherAttemptMay) {
  const auto started = begin_on(files_, job_, [](int64_t) { return false; });
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code, ErrorCode::kIo) << "damage would end the job for good";
  EXPECT_THAT(started.error().message, HasSubstr("none of 2 checkpoints can be read"));
  const auto next = begin_on(files_, job_, [](int64_t) { return true; });
  ASSERT_TRUE(next) << next.error().message;
  EXPECT_EQ(next->resumed_from->id.step, 20);
}

/// Begins generation 2 alone on a disk that says `failing_opens` times that manifests of step 20
/// cannot be opened.
Result<StartedGeneration> begin_on_bad_manifest(MemoryFileSystem& files, const JobDirectory& job,
                                                int failing_opens) {
  HookedFileSystem bad(borrowed(files), [&](std::string_view what, const auto& path) -> Status {
    const bool newest = path.string().find("step-0000000020/manifest.json") != std::string::npos;
    if (what != "open" || !newest || failing_opens-- <= 0) return {};
    return Error{ErrorCode::kIo, "open " + path.string() + ": Input/output error"};
  });
  std::optional<Result<StartedGeneration>> told;
  run_ranks(1, [&](CommitGroup& group) {
    told = start_generation(bad, job.plan(2, 1), group,
                            [](CheckpointReader&) -> Status { return {}; });
  });
  return *std::move(told);
}

TEST_F(DamageTest, AManifestThatOpensAtTheThirdAttemptCostsNoProgress) {
  const auto started = begin_on_bad_manifest(files_, job_, 2);
  ASSERT_TRUE(started) << started.error().message;
  EXPECT_EQ(started->resumed_from->id.step, 20);
  ASSERT_EQ(started->notes.size(), 2U);
  EXPECT_THAT(started->notes[0], HasSubstr("g1-step-0000000020: open"));
}

TEST_F(DamageTest, AManifestThatStaysUnreadableIsSteppedBackFrom) {
  const auto started = begin_on_bad_manifest(files_, job_, 1000);
  ASSERT_TRUE(started) << started.error().message;
  EXPECT_EQ(started->resumed_from->id.step, 10);
}

TEST_F(DamageTest, AReaderToldOfIoErrorsAloneCallsNothingDamaged) {
  const auto code_of = [&](const std::string& unreadable) {
    HookedFileSystem bad(borrowed(files_), [&](std::string_view what, const auto& path) -> Status {
      if (what != "open" || path.string().find(unreadable) == std::string::npos) return {};
      return Error{ErrorCode::kIo, "open " + path.string() + ": Input/output error"};
    });
    const auto reader = open_newest_good(bad, job_.root(), std::nullopt, Verify::kAll, nullptr);
    return reader ? ErrorCode::kInternal : reader.error().code;
  };
  EXPECT_EQ(code_of("manifest.json"), ErrorCode::kIo);
  EXPECT_EQ(code_of("shard-0-of-1"), ErrorCode::kIo) << "a shard of each";
  files_.content(newest("shard-0-of-1.safetensors")).back() ^= 1;
  EXPECT_EQ(code_of("0000000010/manifest.json"), ErrorCode::kIo) << "the other may be good";
  files_.content(job_.root() / "g1-step-0000000010/shard-0-of-1.safetensors").back() ^= 1;
  EXPECT_EQ(code_of("nothing at all"), ErrorCode::kInvalidData);
}

TEST_F(DamageTest, WhereACommittedCheckpointIsGoneNothingBeginsFromScratch) {
  for (const char* removed : {"steps", "everything"}) {
    const auto found = find_checkpoints(files_, job_.root());
    ASSERT_TRUE(found);
    for (const FoundDirectory& directory : *found)
      ASSERT_TRUE(remove_checkpoint(files_, job_.root(), directory.id));
    if (std::string_view(removed) == "everything") {
      ASSERT_TRUE(files_.remove_file(job_.root() / "lineage/1.json"));
    }
    GenerationPlan plan = job_.plan(2, 1);
    plan.committed_step = 20;
    run_ranks(1, [&](CommitGroup& group) {
      const auto started = start_generation(files_, plan, group, [](CheckpointReader&) -> Status {
        ADD_FAILURE() << "there is nothing to restore";
        return {};
      });
      ASSERT_FALSE(started) << removed;
      EXPECT_EQ(started.error().code, ErrorCode::kInvalidData);
      EXPECT_THAT(started.error().message,
                  HasSubstr("/job: found no checkpoint, though one at step 20 was committed"));
    });
    EXPECT_FALSE(files_.open(job_.root() / "lineage/2.json")) << "it has not begun";
  }
}

TEST_F(DamageTest, MissingShardIsDamageNotCleanUp) {
  ASSERT_TRUE(files_.remove_file(newest("shard-0-of-1.safetensors")));
  ASSERT_EQ(job_.train(files_, {.generation = 2, .parent = 1}), "");
  EXPECT_EQ(job_.restored_step(), 10);
}

TEST_F(DamageTest, DamagedLineageRecordIsToldAgainFromAManifest) {
  const std::string whole = files_.content(job_.root() / "lineage/1.json");
  for (size_t at = 0; at < whole.size(); ++at) {
    files_.content(job_.root() / "lineage/1.json")[at] ^= 2;
    std::vector<std::string> notes;
    const auto reader = open_newest_good(files_, job_.root(), 1, Verify::kManifest, &notes);
    ASSERT_TRUE(reader.has_value()) << at;
    ASSERT_EQ((*reader)->manifest().step, 20);
    ASSERT_EQ(notes.size(), 1U) << at;
    EXPECT_THAT(notes[0], HasSubstr("lineage/1.json"));
    files_.content(job_.root() / "lineage/1.json") = whole;
  }
}

TEST_F(DamageTest, HistoryThatCannotBeReadIsAnErrorAndNotAFreshStart) {
  files_.content(job_.root() / "lineage/1.json") = "";
  files_.content(newest("manifest.json")) = "";
  files_.content(job_.root() / "g1-step-0000000010/manifest.json") = "";
  EXPECT_THAT(job_.train(files_, {.generation = 2, .parent = 1}),
              HasSubstr("the history cannot be read"));
}

TEST_F(DamageTest, FileWhereACheckpointShouldBeIsPassedOver) {
  ASSERT_TRUE(write_new_file(files_, job_.root() / "g1-step-0000000030", "not a directory"));
  std::vector<std::string> notes;
  const auto reader = open_newest_good(files_, job_.root(), 1, Verify::kAll, &notes);
  ASSERT_TRUE(reader.has_value());
  EXPECT_EQ((*reader)->manifest().step, 20);
}

TEST(DamageOnDiskTest, FileWhereACheckpointShouldBeIsPassedOver) {
  PosixFileSystem files;
  JobDirectory job;
  ASSERT_EQ(job.train(files, {.generation = 1, .steps = {10, 20}}), "");
  ASSERT_TRUE(write_new_file(files, job.root() / "g1-step-0000000030", "not a directory"));
  ASSERT_EQ(job.train(files, {.generation = 2, .parent = 1, .steps = {21}}), "");
  EXPECT_EQ(job.restored_step(), 20);
}

TEST_F(DamageTest, ManifestUnderAnotherNameIsRefused) {
  files_.content(newest("manifest.json")) =
      files_.content(job_.root() / "g1-step-0000000010/manifest.json");
  files_.content(newest("shard-0-of-1.safetensors")) =
      files_.content(job_.root() / "g1-step-0000000010/shard-0-of-1.safetensors");
  EXPECT_EQ(newest_good(), 10);
}

}  // namespace
}  // namespace trainyard::checkpoint::testing
