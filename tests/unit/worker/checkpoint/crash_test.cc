#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/extent.h"
#include "tests/unit/worker/checkpoint/job_directory.h"
#include "tests/unit/worker/checkpoint/memory_file_system.h"
#include "worker/checkpoint/store.h"

namespace trainyard::checkpoint::testing {
namespace {

using Loss = MemoryFileSystem::Loss;

/// The life that is disturbed: a generation that writes more than it keeps, then a second one that
/// goes on from there. One rank, so that call k is the same call every time.
struct Life {
  enum class Links { kThere, kRefused };

  explicit Life(Links links = Links::kThere) {
    if (links == Links::kRefused) files.refuse_links();
  }

  MemoryFileSystem files;
  JobDirectory job{"/pvc/job"};
  std::string first;
  std::string second;

  void live() {
    const RetentionPolicy keep_two{.keep_last = 2, .keep_every_steps = 0};
    first = job.train(files, {.generation = 1, .steps = {1, 2, 3}, .retention = keep_two});
    second =
        job.train(files, {.generation = 2, .parent = 1, .steps = {4, 5, 6}, .retention = keep_two});
  }
};

int64_t calls_of_an_undisturbed_life(Life::Links links = Life::Links::kThere) {
  Life life(links);
  life.live();
  EXPECT_EQ(life.first + life.second, "");
  EXPECT_EQ(life.job.committed_step(), 6);
  return life.files.calls();
}

/// The promises, after whatever happened. `reported`: the newest step that was called committed.
void expect_promises_kept(Life& life, const std::string& what) {
  const int64_t reported = life.job.committed_step();
  const auto reader =
      open_newest_good(life.files, life.job.root(), std::nullopt, Verify::kAll, nullptr);
  if (!reader) {
    ASSERT_EQ(reported, -1) << what << ": " << reader.error().message;
    ASSERT_EQ(reader.error().code, ErrorCode::kNotFound) << what << ": " << reader.error().message;
  } else {
    ASSERT_GE((*reader)->manifest().step, reported) << what;
    ASSERT_EQ(difference(**reader), "") << what;
  }
  // `latest`, where it is, resolves to one that verifies.
  if (const auto latest = read_latest(life.files, life.job.root())) {
    const auto target =
        CheckpointReader::open(life.files, life.job.root() / directory_name(*latest), Verify::kAll);
    ASSERT_TRUE(target.has_value()) << what << ": latest: " << target.error().message;
  }
  // What has a manifest is whole: a clean-up takes that away first, a save puts it there last.
  const auto found = find_checkpoints(life.files, life.job.root());
  ASSERT_TRUE(found.has_value() || found.error().code == ErrorCode::kNotFound) << what;
  for (const FoundDirectory& directory : found ? *found : std::vector<FoundDirectory>()) {
    if (!directory.committed) continue;
    const auto whole = CheckpointReader::open(
        life.files, life.job.root() / directory_name(directory.id), Verify::kManifest);
    ASSERT_TRUE(whole.has_value()) << what << ": " << whole.error().message;
  }
  // The next generation restores at least what was reported, writes, and leaves no old rubbish.
  const int64_t newest = reader ? (*reader)->manifest().step : -1;
  ASSERT_EQ(life.job.train(life.files, {.generation = 3, .parent = 2, .steps = {100, 101, 102}}),
            "")
      << what;
  ASSERT_EQ(life.job.restored_step().value_or(-1), newest) << what;
  const auto left = find_checkpoints(life.files, life.job.root());
  ASSERT_TRUE(left.has_value());
  for (const FoundDirectory& directory : *left) {
    ASSERT_EQ(directory.id.generation, 3) << what << ": " << directory_name(directory.id);
    ASSERT_TRUE(directory.committed) << what;
  }
}

/// One call in so many is struck where not every one is.
constexpr int64_t kShare = testing_support::kSanitized ? 21 : 4;

/// On a file system that has links, and on one that has none: there every third call will do, as a
/// file is made by at least three.
class CrashTest : public ::testing::TestWithParam<Life::Links> {
 protected:
  static bool is_struck(const char* fault, int64_t call) {
    if (GetParam() == Life::Links::kRefused && call % 3 != 0) return false;
    return testing_support::in_sample(fault, GetParam() == Life::Links::kThere ? call : call / 3,
                                      kShare);
  }
};

TEST_P(CrashTest, AnyCallMayFail) {
  const int64_t calls = calls_of_an_undisturbed_life(GetParam());
  ASSERT_GT(calls, 100);
  for (int64_t k = 0; k < calls; ++k) {
    if (!is_struck("fails", k)) continue;
    Life life(GetParam());
    std::string where;
    life.files.set_hook([&](int64_t call, std::string_view what) -> Status {
      if (call != k) return {};
      where = "call " + std::to_string(k) + " (" + std::string(what) + ") fails";
      return Error{ErrorCode::kIo, "injected"};
    });
    life.live();
    life.files.set_hook(nullptr);
    ASSERT_NO_FATAL_FAILURE(expect_promises_kept(life, where));
  }
}

TEST(CrashOnceTest, AnyThreeCallsInARowMayFail) {
  const int64_t calls = calls_of_an_undisturbed_life();
  for (int64_t k = 0; k < calls; ++k) {
    if (!testing_support::in_sample("three fail", k, kShare)) continue;
    Life life;
    life.files.set_hook([&](int64_t call, std::string_view) -> Status {
      if (call < k || call > k + 2) return {};
      return Error{ErrorCode::kIo, "injected"};
    });
    life.live();
    life.files.set_hook(nullptr);
    ASSERT_NO_FATAL_FAILURE(
        expect_promises_kept(life, "calls from " + std::to_string(k) + " fail"));
  }
}

TEST_P(CrashTest, TheProcessMayDieBeforeAnyCall) {
  const int64_t calls = calls_of_an_undisturbed_life(GetParam());
  for (int64_t k = 0; k < calls; ++k) {
    if (!is_struck("dies", k)) continue;
    Life life(GetParam());
    life.files.set_hook([&](int64_t call, std::string_view) -> Status {
      if (call < k) return {};
      return Error{ErrorCode::kIo, "dead"};
    });
    life.live();
    life.files.set_hook(nullptr);
    ASSERT_NO_FATAL_FAILURE(expect_promises_kept(life, "dead from call " + std::to_string(k)));
  }
}

TEST_P(CrashTest, ThePowerMayFailBeforeAnyCall) {
  const int64_t calls = calls_of_an_undisturbed_life(GetParam());
  for (int64_t k = 0; k < calls; ++k) {
    if (!is_struck("power", k)) continue;
    for (const Loss loss : {Loss::kEverything, Loss::kRandom}) {
      Life life(GetParam());
      life.files.set_hook([&](int64_t call, std::string_view) -> Status {
        if (call < k) return {};
        return Error{ErrorCode::kIo, "dead"};
      });
      life.live();
      life.files.lose_power(loss, static_cast<uint64_t>(k));
      life.files.set_hook(nullptr);
      ASSERT_NO_FATAL_FAILURE(expect_promises_kept(
          life, "power lost before call " + std::to_string(k) +
                    (loss == Loss::kRandom ? ", some of it kept" : ", nothing kept")));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Links, CrashTest,
                         ::testing::Values(Life::Links::kThere, Life::Links::kRefused),
                         [](const auto& links) {
                           return links.param == Life::Links::kThere ? "There" : "Refused";
                         });

TEST(CrashOnceTest, FailureOnOneRankAbandonsTheCheckpointOnAllAndTrainingGoesOn) {
  MemoryFileSystem files;
  JobDirectory job("/job");
  ASSERT_EQ(job.train(files, {.generation = 1, .ranks = 3, .steps = {1}}), "");
  std::mutex mutex;
  std::vector<std::string> errors;
  run_ranks(3, [&](CommitGroup& group) {
    const auto started =
        start_generation(files, job.plan(2, 1), group, [](CheckpointReader&) { return Status(); });
    ASSERT_TRUE(started.has_value()) << started.error().message;
    CheckpointWriter writer(borrowed(files), group, {job.root(), {}, 256}, *started);
    for (const int64_t step : {2, 3}) {
      const auto state = small_state(step);
      if (step == 2 && group.rank() == 1) {
        // Taken by something that is no directory entry of ours: rank 1 alone cannot rename to it.
        ASSERT_TRUE(files.make_directory(job.root() / "g2-step-0000000002"));
        ASSERT_TRUE(
            files.make_directory(job.root() / "g2-step-0000000002/shard-1-of-3.safetensors.tmp"));
        ASSERT_TRUE(
            files.make_directory(job.root() / "g2-step-0000000002/shard-1-of-3.safetensors.tmp/x"));
      }
      ASSERT_TRUE(group.any(false));  // rank 1 has prepared its trouble
      ASSERT_TRUE(writer.begin(small_snapshot(state, step, group.rank(), group.size())));
      const auto outcome = writer.wait(std::chrono::seconds(60));
      ASSERT_TRUE(outcome.has_value());
      EXPECT_EQ(outcome->status.has_value(), step == 3);
      if (outcome->status) continue;
      const std::lock_guard lock(mutex);
      errors.push_back(outcome->status.error().message);
    }
  });
  ASSERT_EQ(errors.size(), 3U);
  for (const std::string& error : errors) {
    EXPECT_EQ(error, errors[0]);
    EXPECT_THAT(error, ::testing::StartsWith("checkpoint at step 2: rank 1: "));
  }
  const auto reader = open_newest_good(files, job.root(), std::nullopt, Verify::kAll, nullptr);
  ASSERT_TRUE(reader.has_value());
  EXPECT_EQ((*reader)->manifest().step, 3);
}

}  // namespace
}  // namespace trainyard::checkpoint::testing
