#include "worker/job/early_stop.h"

#include <limits>

#include <gtest/gtest.h>

namespace trainyard::engine {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

EarlyStop with(int64_t patience, double delta = 0) {
  return EarlyStop({.early_stop_patience = patience, .early_stop_delta = delta});
}

TEST(EarlyStopTest, EndsAfterThatManyEvaluationsInARowWithoutALowerLoss) {
  EarlyStop stop = with(2);
  EXPECT_TRUE(stop.judge(10, 3.0));
  EXPECT_FALSE(stop.judge(20, 3.0)) << "as low is not lower";
  EXPECT_TRUE(stop.judge(30, 2.0));
  EXPECT_FALSE(stop.judge(40, 2.5));
  EXPECT_FALSE(stop.is_over());
  EXPECT_FALSE(stop.judge(50, 2.1));
  EXPECT_TRUE(stop.is_over());
  EXPECT_EQ(stop.best_step(), 30);
  EXPECT_EQ(stop.best_loss(), 2.0);
}

TEST(EarlyStopTest, AnEvaluationCountsOnce) {
  EarlyStop stop = with(2);
  stop.judge(10, 3.0);
  stop.judge(20, 4.0);
  EXPECT_FALSE(stop.judge(20, 4.0));
  EXPECT_FALSE(stop.judge(10, 1.0)) << "older ones neither";
  EXPECT_FALSE(stop.is_over());
  EXPECT_EQ(stop.judged_step(), 20);
}

TEST(EarlyStopTest, ALossMustBeLowerByTheDelta) {
  EarlyStop stop = with(1, 0.5);
  stop.judge(10, 3.0);
  EXPECT_FALSE(stop.judge(20, 2.75));
  EXPECT_TRUE(stop.is_over());
  EXPECT_EQ(stop.best_step(), 10);
}

TEST(EarlyStopTest, ALossThatIsNotFiniteIsNeverTheLowest) {
  EarlyStop stop = with(2);
  EXPECT_FALSE(stop.judge(10, kNaN));
  EXPECT_EQ(stop.best_step(), -1);
  EXPECT_FALSE(stop.judge(20, kNaN));
  EXPECT_TRUE(stop.is_over());
}

TEST(EarlyStopTest, WithoutPatienceNothingIsCounted) {
  EarlyStop stop = with(0);
  EXPECT_FALSE(stop.judge(10, 3.0));
  EXPECT_FALSE(stop.judge(20, 4.0));
  EXPECT_FALSE(stop.is_over());
  checkpoint::Scalars scalars;
  stop.store(scalars);
  EXPECT_TRUE(scalars.empty());
}

TEST(EarlyStopTest, ARestoredOneDecidesAsTheOneBefore) {
  EarlyStop before = with(2);
  before.judge(10, 3.0);
  before.judge(20, 4.0);
  checkpoint::Scalars scalars;
  before.store(scalars);
  EarlyStop after = with(2);
  ASSERT_TRUE(after.restore(scalars));
  EXPECT_EQ(after.best_step(), 10);
  EXPECT_EQ(after.judged_step(), 20);
  after.judge(30, 3.5);
  EXPECT_TRUE(after.is_over());
  EarlyStop patient = with(4);
  ASSERT_TRUE(patient.restore(scalars));
  patient.judge(30, 3.5);
  EXPECT_FALSE(patient.is_over()) << "more patience is asked for since";
}

TEST(EarlyStopTest, ACheckpointOfARunWithoutItBeginsTheCount) {
  EarlyStop stop = with(1);
  stop.judge(10, 3.0);
  ASSERT_TRUE(stop.restore({}));
  EXPECT_EQ(stop.best_step(), -1);
  EXPECT_EQ(stop.judged_step(), -1);
}

TEST(EarlyStopTest, ADamagedCountIsRefused) {
  EarlyStop stop = with(1);
  EXPECT_FALSE(stop.restore({{"evaluatedStep", int64_t{10}}}));
  EXPECT_FALSE(stop.restore({{"evaluatedStep", 1.5}}));
}

TEST(EarlyStopTest, ARunThatBeginsWithAnothersStateHasCountedNothing) {
  EarlyStop stop = with(1);
  stop.judge(10, 3.0);
  stop.begin_at(10);
  EXPECT_FALSE(stop.judge(10, 2.0)) << "that evaluation was the other run's";
  EXPECT_TRUE(stop.judge(20, 9.0));
}

}  // namespace
}  // namespace trainyard::engine
