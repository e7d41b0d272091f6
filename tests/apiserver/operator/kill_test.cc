// An operator that is killed at moments that nobody chose.
#include <chrono>
#include <csignal>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/extent.h"
#include "tests/support/operator_process.h"

namespace trainyard::apiserver {
namespace {

constexpr int kRounds = 6;
constexpr int kJobs = 3;
/// A restart of such a job takes about as long.
constexpr int kLatestKillMs = 600;

class KillTest : public testing_support::OperatorTest {};

TEST_F(KillTest, EveryFailureIsCountedOnceWhereverTheOperatorDies) {
  const auto seed = static_cast<unsigned>(testing_support::test_seed());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto draw = [&](int below) {
    return std::uniform_int_distribution<int>(0, below - 1)(random);
  };
  std::vector<std::string> jobs;
  for (int i = 0; i < kJobs; ++i) {
    jobs.push_back("train-" + std::to_string(i));
    Json job = job_manifest(jobs.back(), 3);
    if (i % 2 == 1) job["spec"]["failurePolicy"]["restartStrategy"] = "ReplacePod";
    apply(job);
  }
  for (const std::string& job : jobs)
    ASSERT_TRUE(runs(job, 3, 0));
  for (int round = 1; round <= kRounds; ++round) {
    // In each job a pod ends or is deleted; while that is dealt with, the operator dies.
    for (const std::string& job : jobs) {
      const std::string pod = member(job, draw(3));
      if (draw(2) == 0) {
        end_container(pod, 1);
      } else {
        must({"delete", "pod", pod, "--wait=false"});
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(draw(kLatestKillMs)));
    running_operator().process().signal(SIGKILL);
    ASSERT_TRUE(running_operator().process().wait(kDeadline).has_value());
    restart_operator();
    for (const std::string& job : jobs)
      ASSERT_TRUE(runs(job, 3, round)) << "round " << round;
  }
}

}  // namespace
}  // namespace trainyard::apiserver
