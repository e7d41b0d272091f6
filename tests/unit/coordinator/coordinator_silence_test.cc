// Which agents are silent, and when nobody was listened to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "control/coordinator/coordinator.h"
#include "tests/unit/coordinator/coordinator_world.h"

namespace trainyard::control {
namespace {

using ::testing::IsEmpty;

class CoordinatorSilenceTest : public CoordinatorTest {
 protected:
  /// Only the second agent is heard.
  void listen_to_b(Duration duration) {
    for (Duration passed{0}; passed < duration; passed += milliseconds(100)) {
      clock_.advance(milliseconds(100));
      b_.beat(2, 7);
      poll();
    }
  }
};

TEST_F(CoordinatorSilenceTest, AnAgentThatTellsNothingAnyMoreIsSilentUntilItSpeaks) {
  start_training();
  a_.beat(0, 7);
  b_.beat(2, 7);
  poll();
  const Time last_heard = clock_.now();
  const int before = changes_;
  for (int i = 0; i < 60; ++i) {  // 6 s
    clock_.advance(milliseconds(100));
    b_.beat(2, 7);
    poll();
  }
  EXPECT_FALSE(facts().members[0].connected);
  EXPECT_GE(facts().members[0].since, last_heard);
  EXPECT_LE(facts().members[0].since, last_heard + milliseconds(100));
  EXPECT_TRUE(facts().members[1].connected);
  EXPECT_EQ(changes_, before + 1) << "the brain looks at it once";

  a_.say({});  // a fact that this coordinator does not know
  poll();
  EXPECT_TRUE(facts().members[0].connected);
  EXPECT_EQ(changes_, before + 2) << "and at its return";
}

TEST_F(CoordinatorSilenceTest, ASilentAgentsClosedStreamChangesNotSinceWhenItIsSilent) {
  start_training();
  listen_to_b(seconds(6));
  ASSERT_FALSE(facts().members[0].connected);
  const Time since = facts().members[0].since;
  listen_to_b(seconds(30));
  a_.leave();  // as a port's keepalive closes it
  poll();
  EXPECT_FALSE(facts().members[0].connected);
  EXPECT_EQ(facts().members[0].since, since);
}

TEST_F(CoordinatorSilenceTest, AnAgentThatComesBackIsNotSilentForWhatItMissed) {
  start_training();
  listen_to_b(seconds(6));
  a_.leave();
  poll();
  a_.connect(true, true);
  poll();
  EXPECT_TRUE(facts().members[0].connected);
  EXPECT_LT(facts().members[0].silent, seconds(1));
  listen_to_b(seconds(4));
  EXPECT_TRUE(facts().members[0].connected);
  listen_to_b(seconds(2));
  EXPECT_FALSE(facts().members[0].connected) << "it is to tell of its ranks again";
}

TEST_F(CoordinatorSilenceTest, NobodyIsSilentForTheTimeInWhichWeDidNotListen) {
  start_training();
  a_.beat(0, 7);
  poll();
  for (int i = 0; i < 5; ++i) {  // stopped, or the machine slept
    clock_.advance(seconds(3600));
    poll();
  }
  EXPECT_TRUE(facts().members[0].connected);
}

TEST_F(CoordinatorSilenceTest, FactsTellInWhichTimeNobodyWasHeard) {
  start_training();
  listen_to_b(seconds(3));
  EXPECT_THAT(facts().deaf, IsEmpty());
  const Time stopped = clock_.now();
  clock_.advance(seconds(15));
  ASSERT_EQ(facts().deaf.size(), 1u) << "asked before what has come is looked at";
  poll();
  ASSERT_EQ(facts().deaf.size(), 1u);
  EXPECT_EQ(facts().deaf[0].from, stopped + milliseconds(400));
  EXPECT_EQ(facts().deaf[0].to, stopped + seconds(15));
  listen_to_b(seconds(3));
  EXPECT_EQ(facts().deaf.size(), 1u);
  for (int i = 0; i < 100; ++i) {
    clock_.advance(seconds(1));
    poll();
  }
  EXPECT_EQ(facts().deaf.size(), 64u);
  EXPECT_EQ(facts().deaf.back().to, clock_.now()) << "the newest are kept";
}

TEST_F(CoordinatorSilenceTest, AnAgentThatHasNothingToTellIsNotSilent) {
  coordinator_.publish(order_of_two_nodes());
  a_.connect();  // and waits for the other
  poll();
  for (int i = 0; i < 100; ++i) {
    clock_.advance(milliseconds(200));
    poll();
  }
  EXPECT_TRUE(facts().members[0].connected);
}

}  // namespace
}  // namespace trainyard::control
