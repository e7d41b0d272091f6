// The controller dies before and after every write, and looks at stale views: what is at rest at
// the end is what it would have been without (invariants S1, S4, S5, L3).
#include <chrono>
#include <functional>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/job_driver.h"

namespace trainyard::control {
namespace {

using api::ConditionType;
using std::chrono::seconds;
using testing_support::JobDriver;
using testing_support::kBackoffOver;
using testing_support::make_job;
using testing_support::MemoryCluster;

/// One story: what happens to a job of three nodes that runs.
struct Story {
  std::string name;
  api::RestartStrategy strategy = api::RestartStrategy::kRecreateAll;
  std::function<void(JobDriver&)> event;
};

std::vector<Story> stories() {
  const auto fail_one = [](JobDriver& job) { job.fail(1, 1); };
  const auto fail_two = [](JobDriver& job) {
    job.fail(0, 1);
    job.fail(2, 70);
  };
  // Where single pods are replaced, a failure that shows later is a restart of its own.
  const auto fail_two_at_once = [](JobDriver& job) {
    ContainerExit exit;
    exit.exit_code = 1;
    job.cluster.finish_pods({job.member(0).name, job.member(2).name}, exit);
  };
  const auto vanish = [](JobDriver& job) { job.cluster.remove_pod(job.member(2).name); };
  const auto suspend = [](JobDriver& job) {
    job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  };
  const auto bounce = [suspend](JobDriver& job) {
    suspend(job);
    ASSERT_TRUE(job.settle());
    job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = false; });
  };
  const auto finish = [](JobDriver& job) { job.cluster.finish_all(); };
  const auto fatal = [](JobDriver& job) { job.fail(0, 64); };
  const auto resize = [](JobDriver& job) {
    job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.num_nodes = 4; });
  };
  const auto all = api::RestartStrategy::kRecreateAll;
  const auto one = api::RestartStrategy::kReplacePod;
  return {{"NothingHappens", all, [](JobDriver&) {}},
          {"OneFails", all, fail_one},
          {"TwoFail", all, fail_two},
          {"OneVanishes", all, vanish},
          {"OneFailsAndIsReplaced", one, fail_one},
          {"TwoFailAndAreReplaced", one, fail_two_at_once},
          {"OneVanishesAndIsReplaced", one, vanish},
          {"Suspended", all, suspend},
          {"SuspendedAndResumed", all, bounce},
          {"Completes", all, finish},
          {"FailsForGood", all, fatal},
          {"Resized", all, resize}};
}

/// What must be equal whatever crashed.
struct AtRest {
  int64_t generation = 0;
  int64_t restarts = 0;
  int64_t resizes = 0;
  api::JobPhase phase = api::JobPhase::kPending;
  std::map<int, int64_t> members;  ///< created generation of each live index
  size_t attempts = 0;
  int64_t creations = 0;

  bool operator==(const AtRest&) const = default;
};

std::ostream& operator<<(std::ostream& out, const AtRest& rest) {
  out << "generation " << rest.generation << ", restarts " << rest.restarts << ", resizes "
      << rest.resizes << ", phase " << static_cast<int>(rest.phase) << ", attempts "
      << rest.attempts << ", creations " << rest.creations << ", members";
  for (const auto& [index, generation] : rest.members)
    out << " " << index << "@" << generation;
  return out;
}

void check_one_live_pod_an_index(const Observed& truth) {
  std::map<int, int> live;
  for (const auto& pod : truth.pods) {
    if (!pod.member || pod.terminating) continue;
    EXPECT_EQ(++live[pod.node_index], 1) << "two members of index " << pod.node_index;
  }
}

void check_monotone(const std::vector<api::TrainingJobStatus>& history) {
  for (size_t i = 1; i < history.size(); ++i) {
    const auto& before = history[i - 1];
    const auto& after = history[i];
    EXPECT_GE(after.observed_generation, before.observed_generation);
    EXPECT_GE(after.membership.generation, before.membership.generation);
    EXPECT_LE(after.membership.generation, before.membership.generation + 1);
    EXPECT_GE(after.restarts.total, before.restarts.total);
    EXPECT_LE(after.restarts.total - before.restarts.total,
              after.membership.generation - before.membership.generation);
    for (const ConditionType type : {ConditionType::kComplete, ConditionType::kFailed}) {
      EXPECT_TRUE(!is_true(before, type) || is_true(after, type));
    }
  }
}

struct Fault {
  int64_t crash_index = -1;  ///< -1: none
  MemoryCluster::CrashPoint point = MemoryCluster::CrashPoint::kBefore;
  int64_t lag = 0;
  bool after_event = false;  ///< the crash is counted from the event, not from the start
};

/// Plays the story; nullopt when the fault was never reached.
std::optional<AtRest> play(const Story& story, const Fault& fault) {
  auto manifest = make_job(3);
  manifest.spec.failure_policy.restart_strategy = story.strategy;
  JobDriver job(std::move(manifest));
  job.cluster.set_lag(fault.lag);
  int64_t cut_at = fault.crash_index;
  const auto arm = [&] {
    if (cut_at >= 0) job.cluster.crash_at(cut_at, fault.point);
  };
  if (!fault.after_event) arm();
  EXPECT_TRUE(job.settle());
  const int64_t start_writes = job.cluster.writes_count();
  if (fault.after_event) arm();
  story.event(job);
  EXPECT_TRUE(job.pass(kBackoffOver));
  EXPECT_TRUE(job.pass(seconds(1)));
  const int64_t writes = job.cluster.writes_count();
  const int64_t reachable = fault.after_event ? writes - start_writes : start_writes;
  if (fault.crash_index >= reachable) return std::nullopt;

  const Observed truth = job.cluster.truth();
  check_one_live_pod_an_index(truth);
  check_monotone(job.cluster.status_history());
  AtRest rest;
  rest.generation = truth.status.membership.generation;
  rest.restarts = truth.status.restarts.total;
  rest.resizes = truth.status.restarts.resizes;
  rest.phase = truth.status.phase;
  rest.attempts = truth.status.attempts.size();
  for (const auto& pod : truth.pods) {
    if (is_alive(pod) && !pod.terminating) rest.members[pod.node_index] = pod.created_generation;
  }
  for (const auto& write : job.cluster.writes()) {
    if (write.kind == MemoryCluster::Write::Kind::kCreate) ++rest.creations;
  }
  // At rest nothing is written, whatever time passes.
  const size_t before = job.cluster.writes().size();
  EXPECT_TRUE(job.pass(seconds(3600)));
  EXPECT_EQ(job.cluster.writes().size(), before);
  return rest;
}

class CrashTest : public testing::TestWithParam<Story> {};

TEST_P(CrashTest, EveryWriteMayBeTheLast) {
  const Story& story = GetParam();
  const std::optional<AtRest> undisturbed = play(story, {});
  ASSERT_TRUE(undisturbed.has_value());
  int faults = 0;
  for (const bool after_event : {false, true}) {
    for (const auto point :
         {MemoryCluster::CrashPoint::kBefore, MemoryCluster::CrashPoint::kAfter}) {
      for (int64_t index = 0; index < 100; ++index) {
        const auto rest = play(story, {index, point, 0, after_event});
        if (!rest) break;
        ++faults;
        EXPECT_EQ(*rest, *undisturbed)
            << "crash " << (point == MemoryCluster::CrashPoint::kBefore ? "before" : "after")
            << " write " << index << (after_event ? " of the event" : " of the start");
      }
    }
  }
  EXPECT_GT(faults, 8) << "the story must have writes to crash at";
}

TEST_P(CrashTest, StaleViewsChangeNothing) {
  const Story& story = GetParam();
  const std::optional<AtRest> undisturbed = play(story, {});
  ASSERT_TRUE(undisturbed.has_value());
  for (const int64_t lag : {1, 2, 3, 5, 8}) {
    const auto rest = play(story, {-1, MemoryCluster::CrashPoint::kBefore, lag, false});
    ASSERT_TRUE(rest.has_value());
    EXPECT_EQ(*rest, *undisturbed) << "views lag by " << lag << " changes";
  }
}

TEST_P(CrashTest, CrashesUnderStaleViewsChangeNothing) {
  const Story& story = GetParam();
  const std::optional<AtRest> undisturbed = play(story, {});
  ASSERT_TRUE(undisturbed.has_value());
  for (int64_t index = 0; index < 60; ++index) {
    const auto rest = play(story, {index, MemoryCluster::CrashPoint::kAfter, 2, true});
    if (!rest) break;
    EXPECT_EQ(*rest, *undisturbed) << "crash after write " << index << " of the event";
  }
}

INSTANTIATE_TEST_SUITE_P(Stories, CrashTest, testing::ValuesIn(stories()),
                         [](const auto& story) { return story.param.name; });

}  // namespace
}  // namespace trainyard::control
