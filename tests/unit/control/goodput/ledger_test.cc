#include "control/goodput/ledger.h"

#include <random>

#include <gtest/gtest.h>

#include "common/api/decode.h"
#include "common/api/encode.h"

namespace trainyard::control::goodput {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr Time kStart{seconds(1'700'000'000)};

Time at(int64_t ms) { return kStart + milliseconds(ms); }

Ledger opened() {
  Ledger ledger{api::GoodputStatus()};
  ledger.open(kStart);
  return ledger;
}

TEST(LedgerTest, CountsNothingBeforeItIsOpened) {
  Ledger ledger{api::GoodputStatus()};
  ledger.spend(at(100), Category::kQueue);
  ledger.spend_training({at(200), 0, 4});
  EXPECT_EQ(ledger.goodput().wall, milliseconds(0));
  EXPECT_FALSE(ledger.is_open());
}

TEST(LedgerTest, OpensOnce) {
  Ledger ledger = opened();
  ledger.open(at(5000));
  EXPECT_EQ(ledger.counted_until(), kStart);
}

TEST(LedgerTest, EveryCategoryHasItsOwnPlace) {
  using enum Category;
  constexpr Category kAll[] = {kProductive, kQueue,     kStartup, kRendezvous, kRestore,
                               kCheckpoint, kRecompute, kStall,   kInfra,      kStopped};
  Ledger ledger = opened();
  int64_t ms = 0;
  int64_t amount = 1;
  for (const Category category : kAll)
    ledger.spend(at(ms += amount++), category);
  const api::GoodputStatus& now = ledger.goodput();
  EXPECT_EQ(now.productive, milliseconds(1));
  EXPECT_EQ(now.badput,
            (api::Badput{milliseconds(2), milliseconds(3), milliseconds(4), milliseconds(5),
                         milliseconds(6), milliseconds(7), milliseconds(8), milliseconds(9)}));
  EXPECT_EQ(now.stopped, milliseconds(10));
  EXPECT_EQ(now.wall, milliseconds(45));
}

TEST(LedgerTest, StepsBelowTheHighestAreRecompute) {
  Ledger ledger = opened();
  ledger.spend_training({at(1000), 0, 10});
  EXPECT_EQ(ledger.goodput().productive, milliseconds(1000));
  ledger.spend_training({at(1800), 6, 14});  // 4 of 8 steps again
  EXPECT_EQ(ledger.goodput().badput.recompute, milliseconds(400));
  EXPECT_EQ(ledger.goodput().productive, milliseconds(1400));
  EXPECT_EQ(ledger.goodput().counted.reached_step, 14);
  EXPECT_EQ(ledger.goodput().counted.step, 14);
  EXPECT_EQ(ledger.goodput().ratio, 0.7778);
}

TEST(LedgerTest, APartOfAStepIsWhatTheStepIs) {
  Ledger ledger = opened();
  ledger.reach_step(10);
  ledger.spend_training({at(100), 9, 9});
  EXPECT_EQ(ledger.goodput().badput.recompute, milliseconds(100));
  ledger.spend_training({at(200), 10, 10});
  EXPECT_EQ(ledger.goodput().productive, milliseconds(100));
}

TEST(LedgerTest, AClockSetBackCountsNothingTwice) {
  Ledger ledger = opened();
  ledger.spend(at(500), Category::kStartup);
  ledger.spend(at(200), Category::kStall);
  ledger.spend_training({at(400), 0, 3});
  EXPECT_EQ(ledger.goodput().wall, milliseconds(500));
  EXPECT_EQ(ledger.counted_until(), at(500));
}

TEST(LedgerTest, FractionsOfAMillisecondAreNotLost) {
  Ledger ledger{api::GoodputStatus()};
  ledger.open(kStart + nanoseconds(999'999));
  for (int i = 1; i <= 3000; ++i)
    ledger.spend(kStart + nanoseconds(333'333) * i, Category::kProductive);
  EXPECT_EQ(ledger.goodput().productive, milliseconds(999));
}

TEST(LedgerTest, ConservesUnderAnySequenceAlsoThroughItsText) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](int64_t below) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(below));
    };
    Ledger ledger = opened();
    Time now = kStart;
    for (int event = 0; event < 300; ++event) {
      now += nanoseconds(pick(3'000'000'000) - 200'000'000);
      if (pick(2) == 0) {
        const int64_t from = pick(100);
        ledger.spend_training({now, from, from + pick(9) - 1});
      } else {
        ledger.spend(now, static_cast<Category>(pick(10)));
      }
      if (pick(10) == 0) {  // a controller is replaced
        api::TrainingJobStatus status;
        status.goodput = ledger.goodput();
        const auto back = api::decode_status(api::encode_status(status));
        ASSERT_TRUE(back.has_value()) << back.error().message;
        ASSERT_EQ(back->goodput, ledger.goodput());
        ledger = Ledger(*back->goodput);
      }
      const api::GoodputStatus& sums = ledger.goodput();
      ASSERT_EQ(sums.productive + total(sums.badput), sums.wall) << "seed " << seed;
      ASSERT_EQ(kStart + sums.wall + sums.stopped, ledger.counted_until()) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace trainyard::control::goodput
