// `trainyard run` whose healthy ranks have few seconds to move (tests/support/fake_rank.cc).
#include <csignal>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/run_fixture.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using testing_support::RunFixture;

class RunTest : public RunFixture {};

TEST_F(RunTest, ARankThatHangsIsFoundAndRestarted) {
  write("job.yaml",
        std::string(kManifest) + "  progressPolicy: {minStallSeconds: 2, maxStallSeconds: 4}\n");
  const auto run = start({{"FAKE_RANK_FAULT", "1:25:hang"}});
  expect_end(*run, 0);
  const Json now = status();
  EXPECT_EQ(now["restarts"].value("total", 0), 1) << now["restarts"].dump(1);
  EXPECT_EQ(now["restarts"]["classes"][0].value("class", ""), "Hang");
  expect_nothing_left();
}

class RunFaultsTest : public RunFixture {};

TEST_F(RunFaultsTest, AStoppedAgentIsNamedAndItsWorkGoesOn) {
  // A shorter bound than it takes to find an agent silent: its rank is not to blame all the same.
  write("job.yaml",
        std::string(kManifest) + "  progressPolicy: {minStallSeconds: 2, maxStallSeconds: 3}\n");
  const auto run =
      start({{"FAKE_RANK_STEP_MS", "40"}, {"FAKE_RANK_STEPS", "150"}}, {"--nodes", "2"});
  ASSERT_TRUE(wait_until([&] { return checkpointed(10); })) << errors();
  const std::vector<pid_t> agents = running("trainyard-agent");
  ASSERT_EQ(agents.size(), 2u);
  ::kill(agents[0], SIGSTOP);
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("restarts", -1), 1);
  const Json attempt = status()["attempts"][0];
  EXPECT_THAT(attempt.value("message", ""), HasSubstr("silent")) << attempt.dump(1);
  EXPECT_THAT(attempt.value("podName", ""), HasSubstr("tiny-")) << attempt.dump(1);
  expect_nothing_left();
}

TEST_F(RunFaultsTest, AnAgentThatIsStoppedWhenTheRunIsStartedAnewIsReplaced) {
  write("job.yaml",
        std::string(kManifest) + "  progressPolicy: {minStallSeconds: 2, maxStallSeconds: 3}\n");
  auto run = start({{"FAKE_RANK_STEP_MS", "40"}, {"FAKE_RANK_STEPS", "150"}});
  ASSERT_TRUE(wait_until([&] { return checkpointed(10); })) << errors();
  const std::vector<pid_t> agents = running("trainyard-agent");
  ASSERT_EQ(agents.size(), 1u);
  ::kill(agents[0], SIGSTOP);
  run->signal(SIGKILL);
  ASSERT_TRUE(run->wait(kDeadline));
  run = start({{"FAKE_RANK_STEP_MS", "40"}, {"FAKE_RANK_STEPS", "150"}});
  expect_end(*run, 0);
  EXPECT_EQ(summary().value("restarts", -1), 1);
  const Json attempt = status()["attempts"][0];
  EXPECT_THAT(attempt.value("message", ""), HasSubstr("a new coordinator received nothing from it"))
      << attempt.dump(1);
  expect_nothing_left();
}

}  // namespace
}  // namespace trainyard
