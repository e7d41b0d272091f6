#include "operator/cache/expectations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operator/cache/backoff.h"
#include "tests/support/manual_clock.h"

namespace trainyard::cache {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;

class ExpectationsTest : public testing::Test {
 protected:
  testing_support::ManualClock clock_;
  Expectations expectations_{clock_};
};

TEST_F(ExpectationsTest, RemembersACreationUntilTheCacheShowsIt) {
  expectations_.expect("j", "a");
  expectations_.expect("j", "b");
  expectations_.created("j", "a", "uid-a");
  EXPECT_THAT(
      expectations_.pending("j"),
      ElementsAre(testing::AllOf(Field(&Expected::name, "a"), Field(&Expected::uid, "uid-a")),
                  testing::AllOf(Field(&Expected::name, "b"), Field(&Expected::uid, ""))));
  expectations_.seen("j", "a");
  EXPECT_THAT(expectations_.pending("j"), ElementsAre(Field(&Expected::name, "b")));
  expectations_.failed("j", "b");
  EXPECT_EQ(expectations_.jobs(), 0u);
  EXPECT_THAT(expectations_.pending("j"), IsEmpty());
}

TEST_F(ExpectationsTest, AnEventMayComeBeforeTheAnswer) {
  expectations_.expect("j", "a");
  expectations_.seen("j", "a");
  expectations_.created("j", "a", "uid-a");
  EXPECT_THAT(expectations_.pending("j"), IsEmpty());
}

TEST_F(ExpectationsTest, ALostEventStopsNobodyForEver) {
  expectations_.expect("j", "a");
  clock_.advance(minutes(1));
  expectations_.expect("j", "b");
  EXPECT_EQ(*expectations_.first_end("j"), clock_.mono() + minutes(4));
  clock_.advance(minutes(4));
  EXPECT_THAT(expectations_.pending("j"), ElementsAre(Field(&Expected::name, "b")));
  clock_.advance(minutes(1));
  EXPECT_EQ(expectations_.first_end("j"), clock_.mono()) << "who has counted on it looks again";
  EXPECT_THAT(expectations_.pending("j"), IsEmpty());
  EXPECT_EQ(expectations_.first_end("j"), std::nullopt);
  EXPECT_EQ(expectations_.jobs(), 0u);
}

TEST_F(ExpectationsTest, AListThatBeganLaterSettlesWhatWasAnswered) {
  expectations_.expect("j", "before");
  expectations_.created("j", "before", "1");
  expectations_.expect("j", "unanswered");
  expectations_.expect("j", "during");
  clock_.advance(seconds(1));
  const MonoTime started = clock_.mono();
  clock_.advance(seconds(1));
  expectations_.created("j", "during", "2");
  expectations_.expect("other", "unanswered");
  EXPECT_THAT(expectations_.listed(started), ElementsAre("j")) << "what it counts on is not there";
  EXPECT_THAT(expectations_.listed(started), IsEmpty());
  EXPECT_THAT(expectations_.pending("j"),
              ElementsAre(Field(&Expected::name, "during"), Field(&Expected::name, "unanswered")));
}

TEST_F(ExpectationsTest, JobsDoNotShare) {
  expectations_.expect("j", "a");
  expectations_.expect("k", "a");
  expectations_.seen("j", "a");
  EXPECT_THAT(expectations_.pending("k"), testing::SizeIs(1));
  expectations_.forget("k");
  EXPECT_THAT(expectations_.pending("k"), IsEmpty());
}

TEST(BackoffTest, DoublesUpToItsLimitWithJitter) {
  double random = 0;
  Backoff backoff({}, [&] { return random; });
  MonoTime now{seconds(100)};
  EXPECT_EQ(backoff.next(now), milliseconds(800));
  EXPECT_EQ(backoff.next(now), milliseconds(1600));
  random = 0.5;
  EXPECT_EQ(backoff.next(now), milliseconds(3200 + 1600));
  random = 0;
  for (int i = 0; i < 10; ++i)
    now += backoff.next(now);
  EXPECT_EQ(backoff.next(now), seconds(30));
  random = 0.999999;
  EXPECT_LT(backoff.next(now), seconds(60));
}

TEST(BackoffTest, StartsAgainAfterTwoQuietMinutes) {
  Backoff backoff({}, [] { return 0.0; });
  MonoTime now{seconds(100)};
  (void)backoff.next(now);
  now += minutes(2);
  EXPECT_EQ(backoff.next(now), milliseconds(1600)) << "not longer than two minutes";
  now += minutes(2) + Duration(1);
  EXPECT_EQ(backoff.next(now), milliseconds(800));
}

}  // namespace
}  // namespace trainyard::cache
