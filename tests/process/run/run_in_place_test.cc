// `restartStrategy: InPlace` under `trainyard run`: ranks that die start again in the pods that
// run.
#include <csignal>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/run_fixture.h"

namespace trainyard {
namespace {

using testing_support::RunFixture;

class RunInPlaceTest : public RunFixture {
 protected:
  RunInPlaceTest() { use("InPlace"); }

  void use(const std::string& strategy, const std::string& budgets = "") const {
    std::string manifest = kManifest;
    const std::string line = "failurePolicy: {";
    manifest.replace(manifest.find(line), line.size(),
                     line + "restartStrategy: " + strategy + ", " + budgets);
    write("job.yaml", manifest);
  }

  /// Also those that are gone: their folders are kept.
  int64_t pods_made() const {
    const std::filesystem::directory_iterator pods(run_dir() / "pods");
    return std::distance(begin(pods), end(pods));
  }
};

TEST_F(RunInPlaceTest, AKilledRankStartsAgainInItsPod) {
  const auto run = start({{"FAKE_RANK_FAULT", "3:25:kill"}}, {"--nodes", "2"});
  expect_end(*run, 0);
  EXPECT_EQ(pods_made(), 2);
  const Json now = status();
  EXPECT_EQ(now["restarts"].value("inPlace", 0), 1);
  EXPECT_EQ(now["restarts"].value("podReplacements", -1), 0);
  EXPECT_EQ(now["membership"].value("generation", 0), 2);
  EXPECT_EQ(now["membership"].value("podsSince", 0), 1);
  const Json attempt = now["attempts"][0];
  EXPECT_TRUE(attempt.value("inPlace", false)) << attempt.dump(1);
  EXPECT_EQ(attempt.value("rank", -1), 3);
  EXPECT_EQ(attempt.value("signal", 0), SIGKILL);
  EXPECT_GE(attempt.value("resumedFromStep", -1), 10) << attempt.dump(1);
  expect_nothing_left();
}

TEST_F(RunInPlaceTest, AJobThatFailsForGoodLeavesWhatItLeavesWithoutIt) {
  std::vector<Json> left;
  for (const char* strategy : {"RecreateAll", "InPlace"}) {
    use(strategy);
    std::filesystem::remove_all(run_dir());
    const auto run = start({{"FAKE_RANK_FAULT", "0:5:config"}}, {"--nodes", "2"});
    expect_end(*run, 64);
    EXPECT_EQ(summary().value("outcome", ""), "Failed");
    const Json now = status();
    EXPECT_EQ(now["restarts"].value("total", -1), 0);
    const Json& attempt = now["attempts"][0];
    left.push_back({now["nodes"]["failed"], attempt["exitCode"], attempt["rank"],
                    attempt["message"], attempt["reason"], now["conditions"].size()});
    expect_nothing_left();
  }
  EXPECT_EQ(left[0], left[1]);
}

TEST_F(RunInPlaceTest, AKilledAgentIsReplacedAndTheOtherPodGoesOn) {
  const auto run =
      start({{"FAKE_RANK_STEP_MS", "40"}, {"FAKE_RANK_STEPS", "300"}}, {"--nodes", "2"});
  ASSERT_TRUE(wait_until([&] { return checkpointed(10); })) << errors();
  const std::vector<pid_t> agents = running("trainyard-agent");
  ASSERT_EQ(agents.size(), 2u);
  ::kill(agents[0], SIGKILL);
  ASSERT_TRUE(wait_until([&] { return status()["restarts"].value("total", 0) == 1; })) << errors();
  ASSERT_TRUE(wait_until([&] { return running("trainyard-agent").size() == 2; })) << errors();
  EXPECT_THAT(running("trainyard-agent"), ::testing::Contains(agents[1]));
  expect_end(*run, 0);
  EXPECT_EQ(status()["restarts"].value("podReplacements", 0), 1);
  EXPECT_EQ(status()["restarts"].value("inPlace", -1), 0);
  EXPECT_EQ(status()["restarts"].value("total", 0), 1) << "one generation, one restart";
  expect_nothing_left();
}

TEST_F(RunInPlaceTest, ASpareTakesTheIndexOfAKilledAgent) {
  std::string manifest = kManifest;
  const std::string line = "failurePolicy: {";
  manifest.replace(manifest.find(line), line.size(),
                   "spares: {count: 1}\n  failurePolicy: {restartStrategy: InPlace, ");
  write("job.yaml", manifest);
  const auto run =
      start({{"FAKE_RANK_STEP_MS", "40"}, {"FAKE_RANK_STEPS", "200"}}, {"--nodes", "2"});
  const auto is_parked = [&] {
    const Json now = status();
    return now.contains("nodes") && now["nodes"].value("spare", 0) == 1 &&
           running("trainyard-agent").size() == 3;
  };
  ASSERT_TRUE(wait_until([&] { return is_parked() && checkpointed(10); })) << errors();
  ::kill(running("trainyard-agent")[0], SIGKILL);
  ASSERT_TRUE(wait_until([&] { return status()["restarts"].value("total", 0) == 1; })) << errors();
  expect_end(*run, 0);
  const Json now = status();
  EXPECT_EQ(now["restarts"].value("promotions", 0), 1);
  EXPECT_EQ(now["restarts"].value("podReplacements", 0), 1);
  EXPECT_EQ(now["restarts"].value("total", 0), 1);
  EXPECT_EQ(pods_made(), 3);
  EXPECT_EQ(now["membership"]["promoted"].size(), 1u);
  expect_nothing_left();
}

TEST_F(RunInPlaceTest, ReplacePodReplacesThePodWhoseRankFailed) {
  use("ReplacePod");
  const auto run = start({{"FAKE_RANK_FAULT", "3:25:crash"}}, {"--nodes", "2"});
  expect_end(*run, 0);
  const Json now = status();
  EXPECT_EQ(now["restarts"].value("podReplacements", 0), 1);
  EXPECT_EQ(now["restarts"].value("total", 0), 1);
  EXPECT_EQ(pods_made(), 3);
  EXPECT_EQ(now["membership"].value("podsSince", 0), 1);
  expect_nothing_left();
}

}  // namespace
}  // namespace trainyard
