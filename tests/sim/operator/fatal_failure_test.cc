// A rank fails for good, at any point and after any number of restarts: the job fails, and the pod
// to blame is there to tell why.
#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "tests/sim/operator/in_place_world.h"

namespace trainyard::sim {
namespace {

/// Longer than any wait for a verdict.
constexpr int kRoundsToClearUp = 240;

/// Pods of the job that ended with this code and are still there.
int64_t count_ended(const World& world, int exit_code) {
  const auto pods = world.cluster.truth().pods;
  return std::count_if(pods.begin(), pods.end(), [&](const control::ObservedPod& pod) {
    return pod.exit && pod.exit->exit_code == exit_code && !pod.terminating;
  });
}

/// A rank failed for good, and the job with it: its pod tells why, for as long as the job is there.
void check_failed(World& world, int64_t restarts, const std::string& what) {
  for (const std::string& violation : world.judge.violations)
    ADD_FAILURE() << what << ": " << violation;
  const auto status = world.cluster.truth().status;
  const api::Condition* const failed = control::find_condition(status, api::ConditionType::kFailed);
  ASSERT_NE(failed, nullptr) << what;
  EXPECT_EQ(failed->reason, api::reason::kFatalExitCode) << what;
  EXPECT_EQ(status.restarts.total, restarts) << what;
  const api::Attempt* const last = control::newest_ended_attempt(status);
  ASSERT_NE(last, nullptr) << what;
  EXPECT_EQ(last->exit_code, contract::kExitBadData) << what;
  world.run_on(kRoundsToClearUp);
  const auto pods = world.cluster.truth().pods;
  const auto blamed = std::find_if(pods.begin(), pods.end(), [&](const control::ObservedPod& pod) {
    return pod.uid == last->pod_uid;
  });
  ASSERT_NE(blamed, pods.end()) << what << ": the pod to blame is gone";
  EXPECT_EQ(blamed->phase, control::PodPhase::kFailed) << what;
  EXPECT_EQ(blamed->node_index, kRankThatDies / kRanksPerNode) << what;
  ASSERT_TRUE(blamed->exit) << what;
  EXPECT_EQ(blamed->exit->exit_code, contract::kExitBadData) << what;
}

/// In training, after as many restarts.
constexpr int64_t kFailsAt[] = {150, 450, 900};

class FatalFailureSimulation : public testing::TestWithParam<api::RestartStrategy> {
 protected:
  /// Ranks die, then one fails for good `after` actions after it could, and cleans up for `rounds`;
  /// then there may be trouble.
  void fail(int64_t kills, int64_t after, int rounds, int64_t trouble_after,
            const Trouble& trouble) const {
    World world({.strategy = GetParam(), .training_rounds = 400});
    const int64_t at = kFailsAt[kills] + after;
    bool failed = false;
    int64_t killed = 0;
    world.run([&](World& now, int64_t action) {
      for (int64_t kill = 0; kill < kills; ++kill) {
        if (action == kFailsAt[kill] && now.kill_rank(0)) ++killed;
      }
      if (action == at) failed = now.fail_rank(kRankThatDies, contract::kExitBadData, rounds);
      if (action == at + trouble_after) trouble(now);
    });
    ASSERT_TRUE(failed);
    ASSERT_EQ(killed, kills);
    check_failed(world, kills,
                 std::to_string(after) + " actions into the time after " + std::to_string(kills) +
                     " restarts, trouble " + std::to_string(trouble_after) + " later");
  }
};

TEST_P(FatalFailureSimulation, ThePodToBlameTellsWhyWheneverItComes) {
  for (int64_t kills = 0; kills <= 2; ++kills) {
    for (int64_t after = 0; after < 14; ++after) {
      for (const int rounds : {0, 30}) {
        fail(kills, after, rounds, -1, [](World&) {});
        if (HasFatalFailure() || HasNonfatalFailure()) return;
      }
    }
  }
}

TEST_P(FatalFailureSimulation, TheLeaderMayChangeAtAnyPoint) {
  for (const int rounds : {0, kRoundsToComeBack}) {
    for (int64_t later = 0; later < kRecovery; later += 2) {
      fail(1, 0, 0, later, [&](World& world) { world.lead(rounds); });
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
  }
}

TEST_P(FatalFailureSimulation, StreamsMayEndAtAnyPoint) {
  for (int64_t later = 0; later < kRecovery; later += 2) {
    fail(1, 0, 0, later, [](World& world) { world.cut_streams(); });
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

/// One that ends with a generation that is over already fails nothing.
TEST_P(FatalFailureSimulation, ItMayComeAtAnyPointOfARecovery) {
  int64_t failures = 0;
  for (int64_t after = 0; after < kRecovery; ++after) {
    World world({.strategy = GetParam()});
    world.run([&](World& now, int64_t action) {
      if (action == kKilledAt) now.kill_rank(0);
      if (action == kKilledAt + after) now.fail_rank(kRankThatDies, contract::kExitBadData);
    });
    const auto status = world.cluster.truth().status;
    if (control::is_true(status, api::ConditionType::kFailed)) {
      ++failures;
      check_failed(world, status.restarts.total, std::to_string(after) + " actions after a kill");
    } else {
      EXPECT_TRUE(control::is_true(status, api::ConditionType::kComplete)) << after;
      world.run_on(kRoundsToClearUp);
      EXPECT_EQ(count_ended(world, 0), kNodes) << after;
    }
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  EXPECT_GE(failures, 10) << "before and after the back-off, in which no ranks run";
}

TEST_P(FatalFailureSimulation, ACompleteJobKeepsItsPods) {
  World world({.strategy = GetParam()});
  world.run([](World& now, int64_t action) {
    if (action == kKilledAt) now.kill_rank(kRankThatDies);
  });
  EXPECT_EQ(world.cluster.truth().status.restarts.total, 1);
  EXPECT_TRUE(control::is_true(world.cluster.truth().status, api::ConditionType::kComplete));
  world.run_on(kRoundsToClearUp);
  EXPECT_EQ(count_ended(world, 0), kNodes);
}

INSTANTIATE_TEST_SUITE_P(Strategies, FatalFailureSimulation,
                         testing::Values(api::RestartStrategy::kRecreateAll,
                                         api::RestartStrategy::kReplacePod,
                                         api::RestartStrategy::kInPlace));

}  // namespace
}  // namespace trainyard::sim
