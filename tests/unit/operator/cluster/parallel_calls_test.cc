#include "operator/cluster/parallel_calls.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/manual_clock.h"

namespace trainyard::cluster {
namespace {

/// For what comes in any case.
constexpr std::chrono::seconds kPatience{60};

TEST(SlowStartTest, CallsEachOnce) {
  for (const int64_t count : {0, 1, 2, 7, 500}) {
    std::mutex mutex;
    std::multiset<int64_t> seen;
    ASSERT_TRUE(slow_start(count, {}, [&](int64_t i) -> Status {
                  const std::lock_guard lock(mutex);
                  seen.insert(i);
                  return {};
                }).has_value());
    ASSERT_EQ(static_cast<int64_t>(seen.size()), count);
    for (int64_t i = 0; i < count; ++i)
      EXPECT_EQ(seen.count(i), 1u);
  }
}

TEST(SlowStartTest, WhatIsRefusedCostsOneCall) {
  std::atomic<int> calls = 0;
  const Status done = slow_start(1000, {}, [&](int64_t) -> Status {
    ++calls;
    return Error{ErrorCode::kUnavailable, "no"};
  });
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().message, "no");
  EXPECT_EQ(calls, 1);
}

TEST(SlowStartTest, BeginsNothingMoreAfterAnErrorWasReturned) {
  constexpr int64_t kWidth = 8;
  std::atomic<int64_t> begun = 0;
  const Status done = slow_start(100'000, {.most = kWidth}, [&](int64_t i) -> Status {
    ++begun;
    if (i < 100) return {};
    return Error{ErrorCode::kUnavailable, "no"};
  });
  ASSERT_FALSE(done.has_value());
  EXPECT_GE(begun, 101);
  EXPECT_LE(begun, 100 + kWidth) << "each thread may be in one call";
}

TEST(SlowStartTest, WhatACallThrowsIsItsError) {
  for (const int64_t width : {1, 8}) {
    const Status done = slow_start(100, {.first = width, .most = width}, [](int64_t i) -> Status {
      if (i == 99) throw std::runtime_error("the type must be text");
      return {};
    });
    ASSERT_FALSE(done.has_value()) << width;
    EXPECT_EQ(done.error().code, ErrorCode::kInternal);
    EXPECT_EQ(done.error().message, "the type must be text");
  }
}

TEST(SlowStartTest, KeepsToItsWidth) {
  std::atomic<int> now = 0;
  std::atomic<int> most = 0;
  ASSERT_TRUE(slow_start(200, {.most = 6}, [&](int64_t) -> Status {
                const int running = ++now;
                int seen = most;
                while (seen < running && !most.compare_exchange_weak(seen, running)) {
                }
                std::this_thread::yield();
                --now;
                return {};
              }).has_value());
  EXPECT_LE(most, 6);
}

/// How many of a run's calls have begun when its first one fails.
int64_t calls_of_a_failing_run(PacedCalls& calls) {
  std::atomic<int64_t> begun = 0;
  const Status done = calls.run(1000, [&](int64_t) -> Status {
    ++begun;
    return Error{ErrorCode::kUnavailable, "no"};
  });
  EXPECT_FALSE(done.has_value());
  return begun;
}

const auto kFine = [](int64_t) -> Status { return {}; };

TEST(PacedCallsTest, BeginsWithOne) {
  const testing_support::ManualClock clock;
  PacedCalls calls(50, clock);
  EXPECT_EQ(calls_of_a_failing_run(calls), 1);
}

TEST(PacedCallsTest, BeginsAsWideAsItHasEnded) {
  const testing_support::ManualClock clock;
  PacedCalls calls(50, clock);
  ASSERT_TRUE(calls.run(8, kFine).has_value());
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::atomic<int> together = 0;
  // Each waits until all eight are there: they would wait for ever were they not side by side.
  ASSERT_TRUE(calls
                  .run(8,
                       [&](int64_t) -> Status {
                         ++together;
                         while (together < 8)
                           std::this_thread::yield();
                         const std::lock_guard lock(mutex);
                         threads.insert(std::this_thread::get_id());
                         return {};
                       })
                  .has_value());
  EXPECT_EQ(threads.size(), 8u);
}

TEST(PacedCallsTest, RunsAtTheSameTimeShareTheCalls) {
  const testing_support::ManualClock clock;
  constexpr int64_t kMost = 8;
  constexpr int kRuns = 4;
  PacedCalls calls(kMost, clock);
  ASSERT_TRUE(calls.run(100, kFine).has_value());
  std::atomic<int> arrived = 0;
  std::atomic<int> now = 0;
  std::atomic<int> most = 0;
  const auto run = [&] {
    std::atomic<int> begun = 0;
    const auto call = [&](int64_t) -> Status {
      const int mine = ++begun;
      if (mine == 1) ++arrived;
      // Whoever began alone and wide has come down to its share soon after all are there.
      while (arrived < kRuns)
        std::this_thread::yield();
      if (mine < 100) return {};
      const int running = ++now;
      int seen = most;
      while (seen < running && !most.compare_exchange_weak(seen, running)) {
      }
      std::this_thread::yield();
      --now;
      return {};
    };
    EXPECT_TRUE(calls.run(400, call).has_value());
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kRuns; ++i)
      threads.emplace_back(run);
  }
  EXPECT_LE(most, 2 * kMost)
      << "unshared they are four times as many; a share is looked at before a call, not during it";
}

TEST(PacedCallsTest, ARunIsAsWideAsBeforeWhenTheOneBesideItHasEnded) {
  testing_support::ManualClock clock;
  constexpr int kMost = 8;
  PacedCalls calls(kMost, clock);
  ASSERT_TRUE(calls.run(100, kFine).has_value());
  std::atomic<bool> enough = false;
  std::atomic<bool> alone_again = false;
  std::atomic<int> now = 0;
  std::atomic<int> most_again = 0;
  const auto call = [&](int64_t) -> Status {
    const int running = ++now;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    int seen = most_again;
    while (alone_again && seen < running && !most_again.compare_exchange_weak(seen, running)) {
    }
    --now;
    if (enough) return Error{ErrorCode::kAborted, "enough was seen"};
    return {};
  };
  const std::jthread large([&] { (void)calls.run(1'000'000, call); });
  while (now == 0)
    std::this_thread::yield();
  const auto look = [&](int64_t) -> Status {
    // Those of the large run that had begun before end first.
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (now > kMost / 2 && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_LE(now, kMost / 2) << "each run has half";
    return {};
  };
  EXPECT_TRUE(calls.run(1, look).has_value());
  clock.advance(PacedCalls::kNextCall);
  alone_again = true;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (most_again < kMost && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(most_again, kMost);
  enough = true;
}

/// How many calls of a large run are under way when it has come to its share.
class LargeRun {
 public:
  static constexpr int64_t kMost = 16;

  explicit LargeRun(PacedCalls& calls) {
    EXPECT_TRUE(calls.run(100, kFine).has_value());
    thread_ = std::jthread([this, &calls](const std::stop_token& stop) {
      (void)calls.run(1'000'000, [&](int64_t) -> Status {
        ++now_;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        --now_;
        if (stop.stop_requested()) return Error{ErrorCode::kAborted, "enough was seen"};
        return {};
      });
    });
  }
  /// Whether it comes to between `least` and `most` calls at once, and stays for a while.
  bool settles(int64_t least, int64_t most) const {
    constexpr int kLooks = 10;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    int good = 0;
    while (good < kLooks && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      const int64_t now = now_;
      good = least <= now && now <= most ? good + 1 : 0;
    }
    return good == kLooks;
  }

 private:
  std::atomic<int64_t> now_ = 0;
  std::jthread thread_;
};

TEST(PacedCallsTest, ALargeRunStandsAsideForASmallJobsCallAndTheNextOne) {
  testing_support::ManualClock clock;
  PacedCalls calls(LargeRun::kMost, clock);
  const LargeRun large(calls);
  EXPECT_TRUE(large.settles(PacedCalls::kAside + 1, LargeRun::kMost));
  {
    const PacedCalls::Precedence first = calls.precede(PacedCalls::kLarge);
    EXPECT_TRUE(large.settles(1, PacedCalls::kAside));
  }
  EXPECT_TRUE(large.settles(1, PacedCalls::kAside)) << "another call is expected";
  clock.advance(PacedCalls::kNextCall);
  EXPECT_TRUE(large.settles(PacedCalls::kAside + 1, LargeRun::kMost));
}

TEST(PacedCallsTest, ALargeRunStandsAsideForASmallOne) {
  testing_support::ManualClock clock;
  PacedCalls calls(LargeRun::kMost, clock);
  const LargeRun large(calls);
  ASSERT_TRUE(calls
                  .run(1,
                       [&](int64_t) -> Status {
                         EXPECT_TRUE(large.settles(1, PacedCalls::kAside));
                         return {};
                       })
                  .has_value());
}

TEST(PacedCallsTest, ALargeJobsCallsHaveNoPrecedence) {
  testing_support::ManualClock clock;
  PacedCalls calls(LargeRun::kMost, clock);
  const LargeRun large(calls);
  const PacedCalls::Precedence none = calls.precede(PacedCalls::kLarge + 1);
  EXPECT_TRUE(large.settles(PacedCalls::kAside + 1, LargeRun::kMost));
}

TEST(PacedCallsTest, BeginsWithOneAfterAnErrorOrARefusal) {
  const testing_support::ManualClock clock;
  PacedCalls calls(50, clock);
  ASSERT_TRUE(calls.run(1000, kFine).has_value());
  EXPECT_GE(calls_of_a_failing_run(calls), 1);
  EXPECT_EQ(calls_of_a_failing_run(calls), 1);
  ASSERT_TRUE(calls.run(1000, kFine).has_value());
  ASSERT_TRUE(calls
                  .run(1000,
                       [&](int64_t i) -> Status {
                         if (i == 500) calls.refused();
                         return {};
                       })
                  .has_value());
  EXPECT_EQ(calls_of_a_failing_run(calls), 1);
}

}  // namespace
}  // namespace trainyard::cluster
