// Agents of pods that a restart has kept, and that do not join: all in a pod stands still, or its
// agent is of the version before, at every point of a recovery.
#include <string>

#include <gtest/gtest.h>

#include "tests/sim/operator/in_place_world.h"

namespace trainyard::sim {
namespace {

/// Longer than a recovery: whatever happens, it happens in training.
constexpr int kLongTraining = 500;

/// The job is complete; one pod was replaced, in the restart that the dead rank caused or in the
/// next.
void check_replaced(const World& world, int64_t most_restarts, const std::string& what) {
  for (const std::string& violation : world.judge.violations)
    ADD_FAILURE() << what << ": " << violation;
  const auto status = world.cluster.truth().status;
  EXPECT_TRUE(control::is_true(status, api::ConditionType::kComplete)) << what;
  EXPECT_GE(status.restarts.total, 1) << what;
  EXPECT_LE(status.restarts.total, most_restarts) << what;
  EXPECT_EQ(status.restarts.pod_replacements, 1) << what;
  EXPECT_EQ(world.created(), kNodes + 1) << what << ": it is replaced alone";
}

struct Freeze {
  std::string name;
  bool ends_stream = false;
  bool leader_changes = false;
};

class JoiningSimulation : public testing::TestWithParam<Freeze> {};

TEST_P(JoiningSimulation, APodMayFreezeAtAnyPointOfARecovery) {
  for (int64_t after = 0; after < kRecovery; ++after) {
    World world({.training_rounds = kLongTraining});
    world.run([&](World& now, int64_t action) {
      if (action == kKilledAt) now.kill_rank(kRankThatDies);
      if (action != kKilledAt + after) return;
      now.freeze(0, GetParam().ends_stream);
      if (GetParam().leader_changes) now.lead();
    });
    // A new leader does not know that it was silent when the others missed it.
    const int64_t most_restarts = GetParam().leader_changes ? 3 : 2;
    check_replaced(world, most_restarts,
                   "frozen " + std::to_string(after) + " actions after a kill");
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, JoiningSimulation,
                         testing::Values(Freeze{"InSilence"}, Freeze{"AndItsStreamEnds", true},
                                         Freeze{"AndTheLeaderChanges", false, true}),
                         [](const auto& play) { return play.param.name; });

/// Peers report it, and nothing else has failed: kept, it would be waited for.
TEST(ReportedPodSimulation, ItIsReplacedInTheSameRestart) {
  for (int64_t after = 0; after < 14; ++after) {
    for (const bool ends_stream : {false, true}) {
      World world({.training_rounds = kLongTraining});
      world.run([&](World& now, int64_t action) {
        if (action == kKilledAt + after) now.freeze(0, ends_stream);
      });
      check_replaced(world, 1, "frozen " + std::to_string(after) + " actions into training");
      if (HasFailure()) return;
    }
  }
}

/// Once per upgrade: it is not known of them whether they have joined.
TEST(OlderAgentsSimulation, AllPodsAreReplacedOnce) {
  for (const bool leader_changes : {false, true}) {
    for (int64_t after = 0; after < kRecovery; after += leader_changes ? 1 : kRecovery) {
      World world({.training_rounds = kLongTraining, .older_agents = true});
      world.run([&](World& now, int64_t action) {
        if (action == kKilledAt) now.kill_rank(kRankThatDies);
        if (leader_changes && action == kKilledAt + after) now.lead();
        if (action == 8 * kKilledAt) now.kill_rank(0);
      });
      const std::string what = "leader changes " + std::to_string(after) + " actions after a kill";
      for (const std::string& violation : world.judge.violations)
        ADD_FAILURE() << what << ": " << violation;
      const auto status = world.cluster.truth().status;
      EXPECT_TRUE(control::is_true(status, api::ConditionType::kComplete)) << what;
      EXPECT_EQ(status.restarts.total, 2) << what;
      EXPECT_EQ(status.restarts.in_place, 1) << what << ": the new pods are kept";
      EXPECT_EQ(world.created(), 2 * kNodes) << what;
      if (HasFailure()) return;
    }
  }
}

TEST(JoiningAgentsSimulation, HealthyPodsAreKept) {
  World world({.training_rounds = 10'000});
  int64_t kills = 0;
  world.run([&](World& now, int64_t action) {
    // Two of each pod: the third failure of one replaces it.
    const int64_t number = action / 14'000;
    if (action % 14'000 == 0 && number >= 1 && number <= 4) {
      kills += now.kill_rank(static_cast<int>(number - 1)) ? 1 : 0;
    }
  });
  ASSERT_EQ(kills, 4);
  for (const std::string& violation : world.judge.violations)
    ADD_FAILURE() << violation;
  const auto status = world.cluster.truth().status;
  EXPECT_TRUE(control::is_true(status, api::ConditionType::kComplete));
  EXPECT_EQ(status.restarts.total, kills);
  EXPECT_EQ(status.restarts.in_place, kills);
  EXPECT_EQ(world.created(), kNodes);
}

}  // namespace
}  // namespace trainyard::sim
