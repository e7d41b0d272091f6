#include "operator/runtime/leader_election.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/lease_server.h"
#include "tests/support/manual_clock.h"

namespace trainyard::operator_runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::LeaseServer;
using testing_support::ManualClock;

class LeaderElectionTest : public testing::Test {
 protected:
  LeaderElection::Options options(const std::string& identity, const Clock& clock) {
    LeaderElection::Options made;
    made.client = &client_;
    made.clock = &clock;
    made.logger = logger_.get();
    made.ns = "system";
    made.name = "trainyard-operator";
    made.identity = identity;
    made.random = [] { return 0.5; };
    return made;
  }

  ManualClock clock_;
  LeaseServer server_;
  kube::Client client_{server_, clock_, {}};
  std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
};

TEST_F(LeaderElectionTest, TheFirstTakesTheLeaseAndRenewsIt) {
  LeaderElection a(options("a", clock_));
  EXPECT_TRUE(a.try_acquire_or_renew());
  const auto taken = server_.spec();
  EXPECT_EQ(taken["holderIdentity"], "a");
  EXPECT_EQ(taken["leaseDurationSeconds"], 15);
  EXPECT_EQ(taken["leaseTransitions"], 0);
  clock_.advance(seconds(2));
  EXPECT_TRUE(a.try_acquire_or_renew());
  EXPECT_EQ(server_.spec()["acquireTime"], taken["acquireTime"]);
  EXPECT_NE(server_.spec()["renewTime"], taken["renewTime"]);
  EXPECT_EQ(server_.spec()["leaseTransitions"], 0);
}

TEST_F(LeaderElectionTest, AnotherTakesOverOnlyWhenNothingWasRenewedForTheWholeLease) {
  LeaderElection a(options("a", clock_));
  LeaderElection b(options("b", clock_));
  ASSERT_TRUE(a.try_acquire_or_renew());
  EXPECT_FALSE(b.try_acquire_or_renew());
  clock_.advance(seconds(14));
  ASSERT_TRUE(a.try_acquire_or_renew());
  clock_.advance(seconds(14));
  EXPECT_FALSE(b.try_acquire_or_renew()) << "renewed 14 s ago";
  clock_.advance(seconds(14));
  EXPECT_FALSE(b.try_acquire_or_renew()) << "seen to be renewed 14 s ago";
  const auto held_since = server_.spec()["acquireTime"];
  clock_.advance(seconds(1));
  EXPECT_TRUE(b.try_acquire_or_renew());
  EXPECT_EQ(server_.spec()["holderIdentity"], "b");
  EXPECT_EQ(server_.spec()["leaseTransitions"], 1);
  EXPECT_NE(server_.spec()["acquireTime"], held_since) << "a time of its own";
  EXPECT_EQ(b.transitions(), 1);
  EXPECT_FALSE(a.try_acquire_or_renew()) << "and the one before hears of it";
}

TEST_F(LeaderElectionTest, ALeaseThatWasDeletedIsNoNewBeginning) {
  LeaderElection a(options("a", clock_));
  LeaderElection b(options("b", clock_));
  ASSERT_TRUE(a.try_acquire_or_renew());
  clock_.advance(seconds(15));
  EXPECT_FALSE(b.try_acquire_or_renew());
  clock_.advance(seconds(15));
  ASSERT_TRUE(b.try_acquire_or_renew());
  ASSERT_EQ(b.transitions(), 1);
  EXPECT_FALSE(a.try_acquire_or_renew());
  server_.remove();
  ASSERT_TRUE(b.try_acquire_or_renew());
  EXPECT_EQ(b.transitions(), 2) << "counted on from what it held, and has not read since";
  server_.remove();
  ASSERT_TRUE(a.try_acquire_or_renew());
  EXPECT_EQ(a.transitions(), 2) << "agents of b's refuse what is lower than 1";
  EXPECT_EQ(server_.spec()["leaseTransitions"], 2);
  ASSERT_TRUE(a.try_acquire_or_renew());
  EXPECT_EQ(server_.spec()["leaseTransitions"], 2);
  // One that knows nothing of it begins anew, and is followed by one that does.
  server_.remove();
  LeaderElection fresh(options("fresh", clock_));
  ASSERT_TRUE(fresh.try_acquire_or_renew());
  EXPECT_EQ(fresh.transitions(), 0);
  EXPECT_FALSE(a.try_acquire_or_renew());
  clock_.advance(seconds(15));
  ASSERT_TRUE(a.try_acquire_or_renew());
  EXPECT_EQ(a.transitions(), 3);
}

TEST_F(LeaderElectionTest, TheHoldersClockDoesNotCount) {
  LeaderElection a(options("a", clock_));
  ASSERT_TRUE(a.try_acquire_or_renew());
  ManualClock late;
  late.advance(seconds(100'000));
  LeaderElection b(options("b", late));
  EXPECT_FALSE(b.try_acquire_or_renew()) << "by b's wall clock the lease is long over";
  late.advance(seconds(15));
  EXPECT_TRUE(b.try_acquire_or_renew());
}

TEST_F(LeaderElectionTest, ALeaseThatCannotBeReadIsNotTakenForNone) {
  LeaderElection a(options("a", clock_));
  server_.cut_off(true);
  EXPECT_FALSE(a.try_acquire_or_renew());
  EXPECT_EQ(server_.requests(), 1) << "a question, and no attempt to make one";
  server_.cut_off(false);
  EXPECT_TRUE(a.try_acquire_or_renew());
}

TEST_F(LeaderElectionTest, WhoWasReplacedGivesUpNothing) {
  LeaderElection::Options slow = options("a", clock_);
  slow.retry = std::chrono::hours(1);  // the thread that renews stands, as in a stopped process
  LeaderElection a(slow);
  std::stop_source stop;
  std::promise<void> leading;
  auto ended = std::async(std::launch::async,
                          [&] { return a.run(stop.get_token(), [&] { leading.set_value(); }); });
  ASSERT_EQ(leading.get_future().wait_for(seconds(60)), std::future_status::ready);
  LeaderElection b(options("b", clock_));
  EXPECT_FALSE(b.try_acquire_or_renew());
  clock_.advance(seconds(15));
  ASSERT_TRUE(b.try_acquire_or_renew());
  stop.request_stop();
  EXPECT_EQ(ended.get(), LeaderElection::End::kStopped);
  a.release();
  EXPECT_EQ(server_.spec()["holderIdentity"], "b");
  EXPECT_EQ(server_.spec()["leaseDurationSeconds"], 15);
}

/// run() in real time.
class LeaderElectionRunTest : public LeaderElectionTest {
 protected:
  LeaderElection::Options quick(const std::string& identity) {
    LeaderElection::Options made = options(identity, system_clock_);
    made.retry = milliseconds(2);
    made.renew_deadline = seconds(60);
    return made;
  }
  SystemClock system_clock_;
};

TEST_F(LeaderElectionRunTest, LeadsUntilStoppedAndThenGivesTheLeaseUp) {
  LeaderElection a(quick("a"));
  std::stop_source stop;
  std::promise<void> leading;
  auto ended = std::async(std::launch::async,
                          [&] { return a.run(stop.get_token(), [&] { leading.set_value(); }); });
  ASSERT_EQ(leading.get_future().wait_for(seconds(60)), std::future_status::ready);
  EXPECT_TRUE(a.is_leader());
  stop.request_stop();
  EXPECT_EQ(ended.get(), LeaderElection::End::kStopped);
  EXPECT_TRUE(a.is_leader()) << "until what is begun has ended";
  a.release();
  EXPECT_FALSE(a.is_leader());
  EXPECT_EQ(server_.spec()["holderIdentity"], "");
  LeaderElection b(options("b", clock_));
  EXPECT_TRUE(b.try_acquire_or_renew()) << "at once";
  EXPECT_EQ(b.transitions(), 1);
}

TEST_F(LeaderElectionRunTest, WhoCannotRenewHasLost) {
  LeaderElection::Options hasty = quick("a");
  hasty.renew_deadline = milliseconds(100);
  LeaderElection a(hasty);
  std::stop_source stop;
  std::promise<void> leading;
  auto ended = std::async(std::launch::async,
                          [&] { return a.run(stop.get_token(), [&] { leading.set_value(); }); });
  ASSERT_EQ(leading.get_future().wait_for(seconds(60)), std::future_status::ready);
  server_.cut_off(true);
  ASSERT_EQ(ended.wait_for(seconds(60)), std::future_status::ready);
  EXPECT_EQ(ended.get(), LeaderElection::End::kLost);
  EXPECT_FALSE(a.is_leader());
  server_.cut_off(false);
  a.release();
  EXPECT_EQ(server_.spec()["holderIdentity"], "a") << "it is not ours to give up any more";
}

TEST_F(LeaderElectionTest, WhoHasNotRenewedForTooLongHoldsNothing) {
  LeaderElection::Options slow = options("a", clock_);
  slow.retry = std::chrono::hours(1);  // the thread that renews stands, as in a stopped process
  LeaderElection a(slow);
  EXPECT_FALSE(a.holds());
  std::stop_source stop;
  std::promise<void> leading;
  auto ended = std::async(std::launch::async,
                          [&] { return a.run(stop.get_token(), [&] { leading.set_value(); }); });
  ASSERT_EQ(leading.get_future().wait_for(seconds(60)), std::future_status::ready);
  EXPECT_TRUE(a.holds());
  clock_.advance(seconds(9));
  EXPECT_TRUE(a.holds());
  clock_.advance(seconds(1));
  EXPECT_FALSE(a.holds());
  EXPECT_TRUE(a.is_leader()) << "it does not know yet";
  ASSERT_TRUE(a.try_acquire_or_renew());
  EXPECT_TRUE(a.holds());
  stop.request_stop();
  EXPECT_EQ(ended.get(), LeaderElection::End::kStopped);
}

TEST_F(LeaderElectionRunTest, AStopEndsTheWaitForLeadership) {
  LeaderElection holder(options("holder", clock_));
  ASSERT_TRUE(holder.try_acquire_or_renew());
  LeaderElection a(quick("a"));
  std::stop_source stop;
  std::atomic<bool> led = false;
  auto ended =
      std::async(std::launch::async, [&] { return a.run(stop.get_token(), [&] { led = true; }); });
  const auto deadline = std::chrono::steady_clock::now() + seconds(60);
  while (server_.requests() < 6 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  stop.request_stop();
  EXPECT_EQ(ended.get(), LeaderElection::End::kStopped);
  EXPECT_FALSE(led);
}

}  // namespace
}  // namespace trainyard::operator_runtime
