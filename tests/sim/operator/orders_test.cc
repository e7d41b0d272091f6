// What people do to a job at any point of a recovery in place, also where the leader changes at
// that moment: they suspend it, edit it, delete it or drain one of its nodes.
#include <algorithm>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "tests/sim/operator/in_place_world.h"

namespace trainyard::sim {
namespace {

/// A rank dies; `order` is given at each action of the recovery, without and with a new leader.
/// `watch` is asked before each action.
void order_at_any_point(const std::string& name, const Trouble& order, const Trouble& watch,
                        const std::function<void(World&, const std::string& what)>& check) {
  for (const bool leader_changes : {false, true}) {
    for (int64_t after = 0; after < kRecovery; after += 2) {
      World world;
      world.run([&](World& now, int64_t action) {
        watch(now);
        if (action == kKilledAt) now.kill_rank(kRankThatDies);
        if (action != kKilledAt + after) return;
        order(now);
        if (leader_changes) now.lead();
      });
      const std::string what = name + " " + std::to_string(after) + " actions after the kill" +
                               (leader_changes ? ", by a new leader" : "");
      for (const std::string& violation : world.judge.violations)
        ADD_FAILURE() << what << ": " << violation;
      check(world, what);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

void watch_nothing(World& /*world*/) {}

bool is_complete(const World& world) {
  return control::is_true(world.cluster.truth().status, api::ConditionType::kComplete);
}

TEST(OrdersSimulation, AJobThatIsSuspendedGoesOnWhenItIsResumed) {
  const auto set_suspend = [](World& world, bool suspend) {
    world.cluster.edit_spec([&](api::TrainingJobSpec& spec) { spec.suspend = suspend; });
  };
  order_at_any_point(
      "suspended", [&](World& world) { set_suspend(world, true); },
      [&](World& world) {
        const control::Observed truth = world.cluster.truth();
        const bool rests = control::is_true(truth.status, api::ConditionType::kSuspended);
        if (truth.spec.suspend && rests) {
          EXPECT_TRUE(truth.pods.empty());
          set_suspend(world, false);
        }
      },
      [](World& world, const std::string& what) {
        EXPECT_TRUE(is_complete(world)) << what;
        EXPECT_LE(world.cluster.truth().status.restarts.total, 1) << what;
        EXPECT_EQ(world.created(), 2 * kNodes) << what;
      });
}

TEST(OrdersSimulation, AnEditReplacesPodsOnlyWhereItComesBeforeTheRestart) {
  int64_t kept = 0;
  int64_t replaced = 0;
  order_at_any_point(
      "edited",
      [](World& world) {
        world.cluster.edit_spec(
            [](api::TrainingJobSpec& spec) { spec.checkpoint_policy.every_steps = 7; });
      },
      watch_nothing,
      [&](World& world, const std::string& what) {
        EXPECT_TRUE(is_complete(world)) << what;
        const api::RestartCounts restarts = world.cluster.truth().status.restarts;
        EXPECT_EQ(restarts.total, 1) << what;
        EXPECT_EQ(world.created(), restarts.in_place == 1 ? kNodes : 2 * kNodes) << what;
        (restarts.in_place == 1 ? kept : replaced) += 1;
      });
  EXPECT_GT(kept, 10);
  EXPECT_GT(replaced, 2);
}

TEST(OrdersSimulation, OfAJobThatIsDeletedNothingIsLeft) {
  order_at_any_point(
      "deleted",
      [](World& world) {
        const control::Observed truth = world.cluster.truth();
        EXPECT_TRUE(world.cluster.delete_job(truth.key, truth.metadata.uid).has_value());
      },
      watch_nothing,
      [](World& world, const std::string& what) {
        EXPECT_FALSE(world.cluster.job_exists()) << what;
        world.run_on(100);
        EXPECT_TRUE(world.cluster.truth().pods.empty()) << what;
        EXPECT_LE(world.created(), kNodes) << what;
        for (const std::string& violation : world.judge.violations)
          ADD_FAILURE() << what << ": " << violation;
      });
}

TEST(OrdersSimulation, ADrainCostsOneRestartMoreAtMost) {
  for (const Duration grace : {Duration::zero(), Duration(seconds(5))}) {
    order_at_any_point(
        "drained", [&](World& world) { world.drain(0, grace); }, watch_nothing,
        [](World& world, const std::string& what) {
          EXPECT_TRUE(is_complete(world)) << what;
          EXPECT_GE(world.cluster.truth().status.restarts.total, 1) << what;
          EXPECT_LE(world.cluster.truth().status.restarts.total, 2) << what;
          EXPECT_LE(world.created(), 3 * kNodes) << what;
        });
  }
}

}  // namespace
}  // namespace trainyard::sim
