// A run whose model diverges, with the real worker: it fails by name, what it leaves can be gone on
// from, and no command takes the diverged model for a good one.

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/run_fixture.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_support::content_of;
using testing_support::RunFixture;

class DivergenceTest : public RunFixture {
 protected:
  /// The fixture's job with another number of steps, learning rate and policy.
  void write_job(int64_t steps, const std::string& optimizer, const std::string& policy) {
    std::string job = kManifest;
    const auto replace = [&](const std::string& from, const std::string& to) {
      job.replace(job.find(from), from.size(), to);
    };
    replace("steps: 50", "steps: " + std::to_string(steps) + "\n    optimizer: " + optimizer);
    replace("everySteps: 10", policy);
    write("job.yaml", job);
  }
  std::unique_ptr<testing_support::ChildProcess> start_job() {
    return start({{"TRAINYARD_WORKER", testing_support::program_path("trainyard-worker")}});
  }
  /// Trains well, and stops at a checkpoint.
  void train_and_stop(const std::string& policy) {
    write_job(1'000'000, "{learningRate: 1.0e-3}", policy);
    const auto run = start_job();
    ASSERT_TRUE(wait_until([&] { return step_shown() >= 30; })) << output() << errors();
    run->signal(SIGINT);
    expect_end(*run, 75);
  }
  /// Of the committed checkpoints.
  int64_t newest_step() const {
    int64_t newest = -1;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints())) {
      const std::string name = entry.path().filename().string();
      const size_t at = name.find("-step-");
      if (at != std::string::npos && std::filesystem::exists(entry.path() / "manifest.json"))
        newest = std::max<int64_t>(newest, std::stoll(name.substr(at + 6)));
    }
    return newest;
  }
  int evaluate(const std::filesystem::path& checkpoint) {
    return trainyard({"evaluate", checkpoint.string(), (folder() / "data/train").string()},
                     "evaluate-")
        .exit_code;
  }
  /// The checkpoint that a failure advises.
  std::filesystem::path advised(const std::string& reason) {
    const size_t begin = reason.find("resume from ");
    if (begin == std::string::npos) return {};
    const std::string rest = reason.substr(begin + std::string("resume from ").size());
    return checkpoints() / rest.substr(0, rest.find(' '));
  }

  static constexpr char kFatal[] = "{learningRate: 1000, gradientClip: 0}";
};

TEST_F(DivergenceTest, TheLastGoodCheckpointStaysAndTheFailureNamesIt) {
  // From the same step every time: from which, decides what a step that large leaves.
  write_job(30, "{learningRate: 1.0e-3}", "everySteps: 1, keepLast: 1");
  expect_end(*start_job(), 0);
  write_job(1'000'000, kFatal, "everySteps: 1, keepLast: 1");
  expect_end(*start_job(), 65);
  const std::string reason = summary().value("reason", "");
  EXPECT_THAT(reason, HasSubstr("lower learningRate or gradientClip"));
  const std::filesystem::path good = advised(reason);
  ASSERT_TRUE(std::filesystem::exists(good / "manifest.json")) << reason;
  EXPECT_EQ(evaluate(good), 0) << content_of(folder() / "evaluate-err");
  // No checkpoint of a skipped step: only that of the fatal step is newer than the advised one. A
  // slow disk may not commit it within the skipped steps.
  if (newest_step() == 30) return;
  EXPECT_THAT(reason, HasSubstr(std::to_string(newest_step()) + ")"))
      << "the only one to move away";

  const std::string newest = (checkpoints() / "latest").string();
  EXPECT_EQ(evaluate(newest), 65);
  EXPECT_THAT(content_of(folder() / "evaluate-err"),
              AllOf(HasSubstr("a loss that is not finite"), HasSubstr("the model has diverged")));
  EXPECT_EQ(content_of(folder() / "evaluate-out"), "");
}

TEST_F(DivergenceTest, ARunWhoseLastStepWasSkippedIsNotComplete) {
  ASSERT_NO_FATAL_FAILURE(train_and_stop("everySteps: 10, keepLast: 2"));
  write_job(newest_step() + 20, kFatal, "everySteps: 10, keepLast: 2");
  expect_end(*start_job(), 65);
  EXPECT_FALSE(std::filesystem::exists(run_dir() / "result.json"));
  const std::string reason = summary().value("reason", "");
  EXPECT_THAT(reason, HasSubstr("lower learningRate or gradientClip"));
  EXPECT_EQ(summary().value("outcome", ""), "Failed");
  EXPECT_GT(summary().value("skippedSteps", 0), 0);
  ASSERT_TRUE(std::filesystem::exists(advised(reason) / "manifest.json")) << reason;
  EXPECT_EQ(evaluate(advised(reason)), 0);
  // As advised: what is newer moved away, and a lower learning rate.
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints())) {
    const std::string name = entry.path().filename().string();
    const bool newer = name.find("-step-") != std::string::npos &&
                       reason.find("away " + name) != std::string::npos;
    if (newer) std::filesystem::rename(entry.path(), folder() / name);
  }
  write_job(newest_step() + 5, "{learningRate: 1.0e-3}", "everySteps: 10, keepLast: 2");
  expect_end(*start_job(), 0);
  EXPECT_EQ(summary().value("skippedSteps", -1), 0);
}

}  // namespace
}  // namespace trainyard
