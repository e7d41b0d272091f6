#include "control/queue/work_queue.h"

#include <atomic>
#include <chrono>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/manual_clock.h"

namespace trainyard::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::ManualClock;

const JobKey kA{"default", "a"};
const JobKey kB{"default", "b"};

TEST(RateLimiterTest, DoublesPerFailureOfAKeyUpToTheLongest) {
  RateLimiter limiter({.all_per_second = 1e9, .burst = 1'000'000});
  EXPECT_EQ(limiter.next_wait(kA, MonoTime()), milliseconds(5));
  EXPECT_EQ(limiter.next_wait(kA, MonoTime()), milliseconds(10));
  EXPECT_EQ(limiter.next_wait(kA, MonoTime()), milliseconds(20));
  EXPECT_EQ(limiter.next_wait(kB, MonoTime()), milliseconds(5)) << "each key has its own";
  Duration wait{};
  for (int i = 0; i < 40; ++i)
    wait = limiter.next_wait(kA, MonoTime());
  EXPECT_EQ(wait, seconds(30));
  EXPECT_EQ(limiter.failures(kA), 43);
  limiter.forget(kA);
  EXPECT_EQ(limiter.next_wait(kA, MonoTime()), milliseconds(5));
}

TEST(RateLimiterTest, AllKeysShareTenASecondAfterAHundred) {
  RateLimiter limiter({});
  const MonoTime now{seconds(100)};
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(limiter.next_wait({"ns", std::to_string(i)}, now), milliseconds(5)) << i;
  EXPECT_EQ(limiter.next_wait({"ns", "x"}, now), milliseconds(100));
  EXPECT_EQ(limiter.next_wait({"ns", "y"}, now), milliseconds(200));
  EXPECT_EQ(limiter.next_wait({"ns", "z"}, now + seconds(1)), milliseconds(5))
      << "ten came back, two were owed";
}

class WorkQueueTest : public testing::Test {
 protected:
  ManualClock clock_;
  WorkQueue queue_{clock_};
};

TEST_F(WorkQueueTest, GivesKeysInTheOrderTheyCame) {
  queue_.add(kB);
  queue_.add(kA);
  EXPECT_EQ(queue_.try_get(), kB);
  EXPECT_EQ(queue_.try_get(), kA);
  EXPECT_EQ(queue_.try_get(), std::nullopt);
}

TEST_F(WorkQueueTest, AKeyAddedTwiceIsTakenOnce) {
  queue_.add(kA);
  queue_.add(kA);
  EXPECT_EQ(queue_.try_get(), kA);
  EXPECT_EQ(queue_.try_get(), std::nullopt);
  EXPECT_EQ(queue_.stats().adds, 1);
}

TEST_F(WorkQueueTest, AKeyAddedWhileItIsWorkedOnComesOnceMoreAfterwards) {
  queue_.add(kA);
  ASSERT_EQ(queue_.try_get(), kA);
  queue_.add(kA);
  queue_.add(kA);
  EXPECT_EQ(queue_.try_get(), std::nullopt) << "never with two workers at once";
  queue_.done(kA);
  EXPECT_EQ(queue_.try_get(), kA);
  queue_.done(kA);
  EXPECT_EQ(queue_.try_get(), std::nullopt);
}

TEST_F(WorkQueueTest, DoneWithoutAnAddLeavesNothing) {
  queue_.add(kA);
  ASSERT_EQ(queue_.try_get(), kA);
  queue_.done(kA);
  queue_.done(kA);
  EXPECT_EQ(queue_.try_get(), std::nullopt);
}

TEST_F(WorkQueueTest, ADelayedKeyComesWhenItsTimeHasCome) {
  queue_.add_after(kA, seconds(5));
  clock_.advance(milliseconds(4999));
  EXPECT_EQ(queue_.try_get(), std::nullopt);
  EXPECT_EQ(queue_.stats().waiting, 1);
  clock_.advance(milliseconds(1));
  EXPECT_EQ(queue_.try_get(), kA);
  EXPECT_EQ(queue_.stats().waiting, 0);
}

TEST_F(WorkQueueTest, OfTwoWaitsTheShorterCounts) {
  queue_.add_after(kA, seconds(5));
  queue_.add_after(kA, seconds(1));
  queue_.add_after(kA, seconds(9));
  clock_.advance(seconds(1));
  EXPECT_EQ(queue_.try_get(), kA);
  queue_.done(kA);
  clock_.advance(seconds(20));
  EXPECT_EQ(queue_.try_get(), std::nullopt) << "the longer waits were replaced";
}

TEST_F(WorkQueueTest, AWaitThatIsOverAlreadyIsAnAdd) {
  queue_.add_after(kA, milliseconds(-1));
  EXPECT_EQ(queue_.try_get(), kA);
}

TEST_F(WorkQueueTest, FailuresWaitLongerEachTimeUntilForgotten) {
  EXPECT_EQ(queue_.add_rate_limited(kA), milliseconds(5));
  EXPECT_EQ(queue_.add_rate_limited(kA), milliseconds(10));
  EXPECT_EQ(queue_.failures(kA), 2);
  EXPECT_EQ(queue_.stats().retries, 2);
  queue_.forget(kA);
  EXPECT_EQ(queue_.add_rate_limited(kA), milliseconds(5));
}

TEST_F(WorkQueueTest, TellsHowLongThingsTake) {
  queue_.add(kA);
  clock_.advance(seconds(2));
  ASSERT_EQ(queue_.try_get(), kA);
  clock_.advance(seconds(3));
  EXPECT_EQ(queue_.stats().unfinished_work, seconds(3));
  EXPECT_EQ(queue_.stats().longest_running, seconds(3));
  EXPECT_EQ(queue_.stats().active, 1);
  queue_.done(kA);
  const WorkQueueStats stats = queue_.stats();
  EXPECT_EQ(stats.unfinished_work, seconds(0));
  EXPECT_DOUBLE_EQ(stats.queue_duration.value().sum, 2);
  EXPECT_DOUBLE_EQ(stats.work_duration.value().sum, 3);
  EXPECT_EQ(stats.work_duration.count(), 1);
}

/// Real threads and time: every add is followed by a taking, and no key is with two at once.
TEST(WorkQueueThreadsTest, NoAddIsLostAndNoKeyIsSharedByTwoWorkers) {
  const SystemClock clock;
  WorkQueue queue(clock);
  constexpr int kKeys = 5;
  constexpr int kAdds = 2000;
  std::array<std::atomic<int>, kKeys> wanted{};
  std::array<std::atomic<int>, kKeys> reached{};
  std::array<std::atomic<int>, kKeys> holders{};
  std::atomic<bool> shared = false;
  std::stop_source stop;
  std::vector<std::jthread> workers;
  for (int i = 0; i < 4; ++i) {
    workers.emplace_back([&] {
      while (const auto key = queue.get(stop.get_token())) {
        const auto k = static_cast<size_t>(std::stoi(key->name));
        if (holders[k]++ != 0) shared = true;
        reached[k] = wanted[k].load();
        --holders[k];
        queue.done(*key);
      }
    });
  }
  for (int i = 0; i < kAdds; ++i) {
    const int k = i % kKeys;
    ++wanted[static_cast<size_t>(k)];
    if (i % 3 == 0) {
      queue.add_after({"ns", std::to_string(k)}, std::chrono::microseconds(i % 700));
    } else {
      queue.add({"ns", std::to_string(k)});
    }
  }
  const auto deadline = std::chrono::steady_clock::now() + seconds(60);
  const auto all_reached = [&] {
    for (size_t k = 0; k < kKeys; ++k) {
      if (reached[k] != wanted[k]) return false;
    }
    return true;
  };
  while (!all_reached() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_TRUE(all_reached());
  EXPECT_FALSE(shared);
  stop.request_stop();
}

TEST(WorkQueueThreadsTest, AStopEndsTheWaitForAKey) {
  const SystemClock clock;
  WorkQueue queue(clock);
  std::stop_source stop;
  auto taken = std::async(std::launch::async, [&] { return queue.get(stop.get_token()); });
  stop.request_stop();
  EXPECT_EQ(taken.get(), std::nullopt);
}

TEST(WorkQueueDueTest, TellsWhenItsNextKeyIsDue) {
  ManualClock clock;
  WorkQueue queue(clock);
  EXPECT_FALSE(queue.next_due().has_value());
  queue.add_after(kA, seconds(3));
  queue.add_after(kB, seconds(2));
  EXPECT_EQ(queue.next_due(), clock.mono() + seconds(2));
  queue.add(kA);
  EXPECT_EQ(queue.next_due(), clock.mono()) << "one is ready";
}

}  // namespace
}  // namespace trainyard::control
