// Two operators of which one leads. The leader is killed at its writes, the other takes over; it is
// cut off with a write under way that arrives when the other leads. A few, drawn by
// TRAINYARD_TEST_SEED; with TRAINYARD_LONG_TESTS=1 every one.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/audited_plane.h"
#include "tests/support/extent.h"
#include "tests/support/proxy_lanes.h"

namespace trainyard::apiserver {
namespace {

using std::chrono::milliseconds;
using testing_support::Fault;
using testing_support::FaultProxy;
using testing_support::FaultScript;
using testing_support::GangWorkload;
using testing_support::Greeting;
using testing_support::LateRequest;
using testing_support::OperatorPair;
using testing_support::ProxiedOperator;
using testing_support::ProxiedRequest;
using Kind = Fault::Kind;

/// Of all trials: one in each lane.
constexpr size_t kSample = 6;
bool is_of_lease(const ProxiedRequest& request) { return request.resource == "leases"; }
bool is_change(const ProxiedRequest& request) { return request.write > 0 && !is_of_lease(request); }

enum class Fate {
  kKilledBefore,
  kKilledAfter,
  kLateSoon,   ///< the write arrives as soon as the other has made up for it
  kLateAtEnd,  ///< it arrives when the job is gone
};

struct Trial {
  int64_t write = 0;  ///< of the job's; those of the Lease come by the clock
  Fate fate = Fate::kKilledBefore;

  std::string name() const {
    constexpr std::array<const char*, 4> kNames = {"before", "after", "soon", "end"};
    return fmt::format("{}-{}", kNames.at(static_cast<size_t>(fate)), write);
  }
};

/// Both fates at each write, or a few.
std::vector<Trial> choose(int64_t writes, Fate one, Fate other) {
  std::vector<Trial> trials;
  for (int64_t write = 1; write <= writes; ++write) {
    trials.push_back({write, one});
    trials.push_back({write, other});
  }
  const size_t all = trials.size();
  if (!testing_support::runs_everything()) {
    std::mt19937_64 random(testing_support::test_seed());
    std::shuffle(trials.begin(), trials.end(), random);
    trials.resize(std::min(trials.size(), kSample));
  }
  std::cout << fmt::format("{} writes; {} of {} trials\n", writes, trials.size(), all);
  return trials;
}

class ProxyLeaderTest : public testing_support::ProxyTest {
 protected:
  struct Lane {
    std::string name;
    std::unique_ptr<OperatorPair> pair;
  };

  /// A lane keeps its operators from trial to trial.
  void make_lanes() {
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::string name = make_lane(std::to_string(lane));
      lanes_.push_back({name, make_pair(name)});
    }
  }

  /// The writes of a job's life that nothing disturbs.
  int64_t count_writes() {
    Lane& lane = lanes_.front();
    const Status stands = lane.pair->stand();
    EXPECT_TRUE(stands.has_value()) << stands.error().message;
    FaultProxy& proxy = lane.pair->leader().proxy();
    proxy.script({});
    const Status lived = GangWorkload(admin(), lane.name, "undisturbed").run();
    EXPECT_TRUE(lived.has_value()) << lived.error().message << lane.pair->log();
    const std::vector<ProxiedRequest> requests = proxy.requests();
    return std::count_if(requests.begin(), requests.end(), is_change);
  }

  /// Tries each in a lane; how many have met their write.
  int64_t try_all(const std::vector<Trial>& trials,
                  const std::function<Status(Lane&, const Trial&)>& live) {
    std::atomic<int64_t> met = 0;
    in_lanes(std::ssize(trials), [&](int at, int64_t item) -> std::string {
      Lane& lane = lanes_[static_cast<size_t>(at)];
      const Trial& trial = trials[static_cast<size_t>(item)];
      if (const Status stands = lane.pair->stand(); !stands)
        return trial.name() + ": " + stands.error().message;
      const Status lived = live(lane, trial);
      if (lane.pair->leader().proxy().faults() > 0) ++met;
      return lived ? "" : trial.name() + ": " + lived.error().message + "\n" + lane.pair->log();
    });
    for (const Lane& lane : lanes_)
      EXPECT_EQ(lane.pair->stop(), "") << lane.pair->log();
    return met;
  }

  Status live_with_a_kill(Lane& lane, const Trial& trial) {
    OperatorPair& pair = *lane.pair;
    ProxiedOperator& leader = pair.leader();
    const auto what = std::make_shared<std::string>("nothing");
    const Kind kind = trial.fate == Fate::kKilledBefore ? Kind::kCrashBefore : Kind::kCrashAfter;
    leader.proxy().script([=, seen = int64_t{0}](const ProxiedRequest& request) mutable {
      if (!is_change(request) || ++seen != trial.write) return Fault::none();
      *what = request.method + " " + request.resource;
      return Fault::of(kind);
    });
    const auto began = std::chrono::steady_clock::now();
    TRAINYARD_TRY(GangWorkload(admin(), lane.name, trial.name()).run());
    if (leader.proxy().faults() == 0) return {};
    TRAINYARD_TRY(pair.await_leader(pair.standby()));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    std::cout << fmt::format("{:<10} {:<28} {:4.1f} s\n", trial.name(), *what, took.count());
    return {};
  }

  Status live_with_a_late_write(Lane& lane, const Trial& trial);
  Status arrive_late(Lane& lane, const Trial& trial);

  std::vector<Lane> lanes_;
};

/// What was under way reaches the server, whose leader is another by now.
Status ProxyLeaderTest::arrive_late(Lane& lane, const Trial& trial) {
  OperatorPair& pair = *lane.pair;
  TRAINYARD_TRY(pair.await_leader(pair.standby()));
  for (const LateRequest& late : pair.leader().proxy().release()) {
    const std::string what = late.request.method + " " + late.request.resource;
    std::cout << fmt::format("{:<10} {:<28} answered by {}\n", trial.name(), what, late.status);
    // Of a job that is gone nothing is as it was read; and a budget is by now as the other wants
    // it.
    const bool must_be_refused =
        late.request.method != "POST" &&
        (trial.fate == Fate::kLateAtEnd || late.request.resource == "poddisruptionbudgets");
    const bool refused = late.status == 404 || late.status == 409;
    if (late.status == 0 || (must_be_refused && !refused)) {
      return Error{ErrorCode::kInternal,
                   fmt::format("the late {} was answered by {}", what, late.status)};
    }
  }
  return {};
}

/// The leader is cut off from a write on; that write arrives later than the other has taken over.
Status ProxyLeaderTest::live_with_a_late_write(Lane& lane, const Trial& trial) {
  OperatorPair& pair = *lane.pair;
  ProxiedOperator& leader = pair.leader();
  FaultProxy& proxy = leader.proxy();
  proxy.script([=, seen = int64_t{0}](const ProxiedRequest& request) mutable {
    if (seen >= trial.write) return Fault::of(Kind::kLoseRequest);
    if (!is_change(request) || ++seen != trial.write) return Fault::none();
    return Fault::of(Kind::kHold);
  });
  const std::jthread cut([&proxy](const std::stop_token& over) {
    while (proxy.held() == 0) {
      if (over.stop_requested()) return;
      std::this_thread::sleep_for(milliseconds(5));
    }
    proxy.go_down(Greeting::kReset);
  });
  const GangWorkload job(admin(), lane.name, trial.name());
  const auto then = [&](const Status& done, const std::function<Status()>& rests) -> Status {
    if (!done || proxy.held() == 0 || trial.fate != Fate::kLateSoon) return done;
    TRAINYARD_TRY(arrive_late(lane, trial));
    return rests();
  };
  TRAINYARD_TRY(then(job.create(), [&] { return job.await_running(4, 0, 0); }));
  TRAINYARD_TRY(then(job.kill_a_pod(), [&] { return job.await_running(4, 1, 0); }));
  TRAINYARD_TRY(then(job.scale(), [&] { return job.await_running(2, 1, 1); }));
  TRAINYARD_TRY(job.remove());
  if (proxy.faults() == 0) return {};
  if (proxy.held() > 0) {
    TRAINYARD_TRY(arrive_late(lane, trial));
    TRAINYARD_TRY(job.await_gone());
  }
  // Without a lease it ends by itself; stand() looks at its exit code and starts it again.
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (!leader.end()) {
    if (std::chrono::steady_clock::now() >= deadline)
      return Error{ErrorCode::kDeadline, "a leader without a lease goes on"};
    std::this_thread::sleep_for(milliseconds(50));
  }
  proxy.come_up();
  return {};
}

TEST_F(ProxyLeaderTest, AnotherTakesOverWhereverTheLeaderDies) {
  make_lanes();
  const int64_t writes = count_writes();
  ASSERT_GE(writes, 15);
  const std::vector<Trial> trials = choose(writes, Fate::kKilledBefore, Fate::kKilledAfter);
  const int64_t met = try_all(
      trials, [this](Lane& lane, const Trial& trial) { return live_with_a_kill(lane, trial); });
  // The last writes of a life vary by one or two.
  EXPECT_GE(met, std::ssize(trials) * 3 / 4);
}

TEST_F(ProxyLeaderTest, WhatALeaderHadUnderWayDoesNoHarmWhenItArrivesLate) {
  make_lanes();
  for (const Lane& lane : lanes_)
    testing_support::expect_late_writers(plane(), lane.name);
  const int64_t writes = count_writes();
  ASSERT_GE(writes, 15);
  const std::vector<Trial> trials = choose(writes, Fate::kLateSoon, Fate::kLateAtEnd);
  const int64_t met = try_all(trials, [this](Lane& lane, const Trial& trial) {
    return live_with_a_late_write(lane, trial);
  });
  EXPECT_GE(met, std::ssize(trials) * 3 / 4);
}

}  // namespace
}  // namespace trainyard::apiserver
