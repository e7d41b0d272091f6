// Brain, coordinator and agents together in one thread, each step of each of them by choice: a rank
// is killed at every point of a job's life, and then another thing goes wrong at every point of the
// recovery. Nothing may start twice, before it is written, or among ranks of another generation.
#include <algorithm>
#include <csignal>
#include <string>

#include <gtest/gtest.h>

#include "tests/sim/operator/in_place_world.h"

namespace trainyard::sim {
namespace {

/// What every play comes to: the job is complete in the pods that it began with, and was restarted
/// as often as ranks were killed while they ran.
void check(const World& world, int64_t kills, const std::string& what) {
  for (const std::string& violation : world.judge.violations)
    ADD_FAILURE() << what << ": " << violation;
  const auto status = world.cluster.truth().status;
  EXPECT_TRUE(control::is_true(status, api::ConditionType::kComplete)) << what;
  EXPECT_EQ(status.restarts.total, kills) << what;
  EXPECT_EQ(status.restarts.in_place, kills) << what;
  EXPECT_EQ(status.membership.pods_since, 1) << what;
  EXPECT_EQ(world.judge.processes, (1 + kills) * kNodes * kRanksPerNode) << what;
  EXPECT_EQ(world.created(), kNodes) << what;
}

TEST(InPlaceSimulation, HealthyJobsAreNotRestarted) {
  World world;
  world.run([](World&, int64_t) {});
  check(world, 0, "undisturbed");
  EXPECT_GT(world.actions, kKilledUntil);
}

TEST(InPlaceSimulation, ARankMayDieAtAnyPoint) {
  int64_t struck = 0;
  for (int64_t at = 0; at < kKilledUntil; ++at) {
    World world;
    int64_t kills = 0;
    world.run([&](World& now, int64_t action) {
      if (action == at && now.kill_rank(kRankThatDies)) ++kills;
    });
    struck += kills;
    check(world, kills, "killed at action " + std::to_string(at));
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(struck, kKilledUntil / 2);
}

/// A rank dies, and at each action of its recovery there is further trouble.
void disturb_recovery(const std::string& name, const Trouble& trouble) {
  for (int64_t after = 0; after < kRecovery; ++after) {
    World world;
    int64_t kills = 0;
    world.run([&](World& now, int64_t action) {
      if (action == kKilledAt && now.kill_rank(kRankThatDies)) ++kills;
      if (action == kKilledAt + after) trouble(now);
    });
    ASSERT_EQ(kills, 1);
    check(world, kills, name + " " + std::to_string(after) + " actions after the kill");
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(InPlaceSimulation, TheLeaderMayChangeAtAnyPointOfARecovery) {
  for (const int rounds : {0, kRoundsToComeBack})
    disturb_recovery("leader", [&](World& world) { world.lead(rounds); });
}

TEST(InPlaceSimulation, StreamsMayEndAtAnyPointOfARecovery) {
  disturb_recovery("streams", [](World& world) { world.cut_streams(); });
}

TEST(InPlaceSimulation, TheLeaderMayDieAroundAnyWriteOfARecovery) {
  for (const auto point : {MemoryCluster::CrashPoint::kBefore, MemoryCluster::CrashPoint::kAfter}) {
    for (int64_t write = 0; write < 6; ++write) {
      World world;
      int64_t kills = 0;
      world.run([&](World& now, int64_t action) {
        if (action != kKilledAt) return;
        if (now.kill_rank(kRankThatDies)) ++kills;
        now.cluster.crash_at(write, point);
      });
      check(world, kills, "dead around write " + std::to_string(write));
    }
  }
}

TEST(InPlaceSimulation, AnotherRankMayDieAtAnyPointOfARecovery) {
  for (int64_t after = 0; after < kRecovery; ++after) {
    World world;
    world.run([&](World& now, int64_t action) {
      if (action == kKilledAt) now.kill_rank(kRankThatDies);
      if (action == kKilledAt + after) now.kill_rank(0);
    });
    const std::string what = "second kill " + std::to_string(after) + " actions later";
    for (const std::string& violation : world.judge.violations)
      ADD_FAILURE() << what << ": " << violation;
    const auto status = world.cluster.truth().status;
    EXPECT_TRUE(control::is_true(status, api::ConditionType::kComplete)) << what;
    EXPECT_GE(status.restarts.total, 1) << what;
    EXPECT_LE(status.restarts.total, 2) << what;
    EXPECT_EQ(status.restarts.in_place, status.restarts.total) << what;
    if (::testing::Test::HasFailure()) return;
  }
}

/// Actions by which a spare has a stream, and ranks train.
constexpr int64_t kPodLostAt = 400;
/// Actions of a promotion, and more.
constexpr int64_t kPromotion = 120;

/// The pod of a rank was lost once: whoever took its index, it happened once, and nothing was made
/// beyond it. `promoted`: a spare must have taken it.
void check_promoted(const World& world, bool promoted, const std::string& what) {
  for (const std::string& violation : world.judge.violations)
    ADD_FAILURE() << what << ": " << violation;
  EXPECT_EQ(world.cluster.unannounced(), 0) << what;
  const auto status = world.cluster.truth().status;
  EXPECT_TRUE(control::is_true(status, api::ConditionType::kComplete)) << what;
  EXPECT_EQ(status.restarts.total, 1) << what;
  EXPECT_EQ(status.restarts.pod_replacements, 1) << what;
  EXPECT_EQ(world.judge.processes, 2 * kNodes * kRanksPerNode) << what;
  if (promoted) {
    EXPECT_EQ(status.restarts.promotions, 1) << what;
  }
  EXPECT_EQ(world.created(), kNodes + 1 + (1 - status.restarts.promotions)) << what;
}

/// A pod is lost, and at each action after that there is trouble.
void disturb_promotion(const std::string& name, const Trouble& trouble) {
  for (int64_t after = 0; after < kPromotion; ++after) {
    World world({.spares = 1});
    bool lost = false;
    world.run([&](World& now, int64_t action) {
      if (action == kPodLostAt) lost = now.kill_pod(kRankThatDies);
      if (action == kPodLostAt + after) trouble(now);
    });
    ASSERT_TRUE(lost);
    check_promoted(world, false, name + " " + std::to_string(after) + " actions after the loss");
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(PromotionSimulation, ASpareTakesTheIndexOfAPodThatIsLost) {
  World world({.spares = 1});
  bool lost = false;
  world.run([&](World& now, int64_t action) {
    if (action == kPodLostAt) lost = now.kill_pod(kRankThatDies);
  });
  ASSERT_TRUE(lost);
  check_promoted(world, true, "nothing else");
}

TEST(PromotionSimulation, TwoPodsThatAreLostTogetherAreOneGeneration) {
  World world({.spares = 1});
  int lost = 0;
  world.run([&](World& now, int64_t action) {
    if (action != kPodLostAt) return;
    for (const int rank : {0, kRankThatDies})
      lost += now.kill_pod(rank) ? 1 : 0;
  });
  ASSERT_EQ(lost, 2);
  for (const std::string& violation : world.judge.violations)
    ADD_FAILURE() << violation;
  const auto status = world.cluster.truth().status;
  EXPECT_TRUE(control::is_true(status, api::ConditionType::kComplete));
  EXPECT_EQ(status.restarts.total, 1) << "one is promoted, one is made anew";
  EXPECT_EQ(status.restarts.promotions, 1);
  EXPECT_EQ(status.restarts.pod_replacements, 2);
  EXPECT_EQ(world.judge.processes, 2 * kNodes * kRanksPerNode);
}

TEST(PromotionSimulation, AnotherPodMayBeLostAtAnyPoint) {
  int twice = 0;  // while rank 0 starts anew there is nothing of it to lose
  for (int64_t after = 0; after < kPromotion; after += 3) {
    World world({.spares = 1});
    int lost = 0;
    world.run([&](World& now, int64_t action) {
      if (action == kPodLostAt) lost += now.kill_pod(kRankThatDies) ? 1 : 0;
      if (action == kPodLostAt + after) lost += now.kill_pod(0) ? 1 : 0;
    });
    ASSERT_GE(lost, 1);
    twice += lost == 2 ? 1 : 0;
    const std::string what = "second loss " + std::to_string(after) + " actions later";
    for (const std::string& violation : world.judge.violations)
      ADD_FAILURE() << what << ": " << violation;
    const auto status = world.cluster.truth().status;
    EXPECT_TRUE(control::is_true(status, api::ConditionType::kComplete)) << what;
    EXPECT_GE(status.restarts.total, 1) << what;
    EXPECT_LE(status.restarts.total, 2) << what;
    EXPECT_LE(status.restarts.promotions, 1) << what;
    EXPECT_EQ(status.restarts.pod_replacements, lost) << what;
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GE(twice, 4);
}

TEST(PromotionSimulation, TheLeaderMayChangeAtAnyPoint) {
  // One that does not know yet that the spare waits makes a new pod.
  for (const int rounds : {0, kRoundsToComeBack})
    disturb_promotion("leader", [&](World& world) { world.lead(rounds); });
}

TEST(PromotionSimulation, StreamsMayEndAtAnyPoint) {
  disturb_promotion("streams", [](World& world) { world.cut_streams(); });
}

TEST(PromotionSimulation, TheLeaderMayDieAroundAnyWrite) {
  for (const auto point : {MemoryCluster::CrashPoint::kBefore, MemoryCluster::CrashPoint::kAfter}) {
    for (int64_t write = 0; write < 8; ++write) {
      World world({.spares = 1});
      world.run([&](World& now, int64_t action) {
        if (action != kPodLostAt) return;
        now.kill_pod(kRankThatDies);
        now.cluster.crash_at(write, point);
      });
      check_promoted(world, write > 0 || point == MemoryCluster::CrashPoint::kAfter,
                     "dead around write " + std::to_string(write));
    }
  }
}

}  // namespace
}  // namespace trainyard::sim
