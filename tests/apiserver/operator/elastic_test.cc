// Jobs that run with the nodes that there are.
#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/text/rfc3339.h"
#include "tests/support/api_objects.h"
#include "tests/support/operator_process.h"

namespace trainyard::apiserver {
namespace {

using testing_support::at;
using testing_support::label;
using testing_support::text;

class ElasticTest : public testing_support::OperatorTest {
 protected:
  /// A job of up to four nodes, on those of the test.
  Json job(const Json& policy) const {
    Json made = job_manifest("train", 4);
    made["spec"]["elasticPolicy"] = policy;
    place(made, name_space());
    return made;
  }
  void add_nodes(int count) { make_nodes(name_space(), count, 1, /*kubelets=*/true); }
  /// A node whose kubelet does nothing by itself, and what it says of the job's pod that is there.
  void add_silent_node() { make_nodes(name_space(), 1, 1, /*kubelets=*/false); }
  std::string pod_on(const std::string& node) const {
    for (const Json& pod : pods("train")) {
      if (text(at(pod, "spec"), "nodeName") == node) return pod["metadata"]["name"];
    }
    return "";
  }
  void say_it_runs(const std::string& pod) const {
    const Json status = {{"phase", "Running"},
                         {"conditions", Json::array({{{"type", "Ready"}, {"status", "True"}}})}};
    must({"patch", "pod", pod, "--subresource=status", "-p", Json({{"status", status}}).dump()});
  }

  int64_t target() const { return job_status("train")["nodes"]["target"]; }
  int64_t resizes() const {
    return job_status("train").value("restarts", Json::object()).value("resizes", int64_t{0});
  }

  ::testing::AssertionResult resized(int64_t times) const {
    if (wait_until([&] { return resizes() == times; })) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << "waited for " << times << " resizes: " << job_status("train").dump(2);
  }

  static Time time_of(const Json& object, const char* key) {
    const auto time = text::parse_time(text(object, key));
    EXPECT_TRUE(time.has_value()) << object;
    return time.value_or(Time());
  }
  static std::chrono::duration<double> length_of(const Json& attempt) {
    return time_of(attempt, "endTime") - time_of(attempt, "startTime");
  }
};

TEST_F(ElasticTest, AJobGoesOnWithoutALostNodeAndGrowsIntoANewOne) {
  const std::string lost = name_space() + "-0";
  add_silent_node();
  add_nodes(3);
  apply(job({{"minNodes", 2},
             {"allowedNumNodes", {2, 4}},
             {"pendingTimeoutSeconds", 10},
             {"scaleUpSnoozeSeconds", 2}}));
  ASSERT_TRUE(runs("train", 3, 0));
  std::string victim;
  ASSERT_TRUE(wait_until([&] { return !(victim = pod_on(lost)).empty(); }));
  say_it_runs(victim);
  ASSERT_TRUE(runs("train", 4, 0));
  lose_node(lost);
  // Three of four find a node, and three is no size that the job may have. On the way to three,
  // two are ready.
  ASSERT_TRUE(resized(1));
  ASSERT_TRUE(runs("train", 2, 1));
  EXPECT_EQ(target(), 2);
  EXPECT_EQ(resizes(), 1);
  EXPECT_EQ(condition("train", "Degraded"), "True");
  Json attempts = job_status("train")["attempts"];
  EXPECT_EQ(attempts[0]["reason"], "NodeLost");
  EXPECT_EQ(attempts[0]["podName"], victim);
  EXPECT_EQ(attempts[1]["reason"], "ScaleDown");
  const auto is_stuck = [&] {
    const Json pod = get({"pod", victim});
    return !text(at(pod, "metadata"), "deletionTimestamp").empty() &&
           label(pod, testing_support::kLabelMember).empty();
  };
  EXPECT_TRUE(is_stuck()) << "its kubelet is gone";
  add_nodes(1);
  ASSERT_TRUE(runs("train", 4, 1));
  EXPECT_EQ(resizes(), 2);
  EXPECT_EQ(condition("train", "Degraded"), "False");
  EXPECT_TRUE(is_stuck()) << "it has held nothing up";
}

TEST_F(ElasticTest, PodsThatFindNoNodeAreWaitedForAndThenDoneWithout) {
  constexpr std::chrono::seconds kPending{30};
  constexpr std::chrono::seconds kSnooze{4};
  // Pods are made at whole seconds.
  constexpr std::chrono::seconds kGrain{1};
  add_nodes(1);
  apply(job({{"minNodes", 3},
             {"pendingTimeoutSeconds", kPending.count()},
             {"scaleUpSnoozeSeconds", kSnooze.count()}}));
  ASSERT_TRUE(reaches("train", "Scheduled", "False"));
  const Time began = time_of(job_status("train")["attempts"][0], "startTime");
  ASSERT_TRUE(wait_until([&] {
    return SystemClock().now() - began > kPending + 2 * kGrain &&
           reason("train", "Scheduled") == "Unschedulable";
  })) << job_status("train").dump(2);
  EXPECT_EQ(target(), 4) << "one node is fewer than minNodes";
  add_nodes(2);
  ASSERT_TRUE(resized(1));
  ASSERT_TRUE(runs("train", 3, 0));
  EXPECT_EQ(target(), 3);
  add_nodes(1);
  ASSERT_TRUE(runs("train", 4, 0));
  EXPECT_EQ(resizes(), 2);
  Json attempts = job_status("train")["attempts"];
  EXPECT_EQ(attempts[0]["reason"], "ScaleDown");
  EXPECT_GE(length_of(attempts[0]), kPending - kGrain);
  EXPECT_EQ(attempts[1]["reason"], "ScaleUp");
  EXPECT_GE(length_of(attempts[1]), kSnooze - kGrain);
}

/// Each has six of twelve nodes and needs eight: one lets go, and the other runs first.
TEST_F(ElasticTest, TwoGangsThatHoldEachOtherUpBothComplete) {
  const std::string more = name_space() + "-more";
  const std::string shared = name_space() + "-shared";
  const auto placed = [&](const char* name) {
    const std::vector<Json> all = pods(name);
    return std::count_if(all.begin(), all.end(), [](const Json& pod) {
      return !text(at(pod, "spec"), "nodeName").empty();
    });
  };
  const auto apply_gang = [&](const char* name, const std::string& site, int64_t timeout) {
    Json gang = job_manifest(name, 8);
    gang["spec"]["scheduling"] = {{"gangTimeoutSeconds", timeout}};
    place(gang, name_space());
    Json& pod = gang["spec"]["template"]["spec"];
    pod.erase("nodeSelector");
    const Json sites = {{"key", "site"}, {"operator", "In"}, {"values", {site, shared}}};
    pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
       ["nodeSelectorTerms"] = Json::array({{{"matchExpressions", Json::array({sites})}}});
    apply(gang);
    EXPECT_TRUE(wait_until([&] { return placed(name) == 6; })) << name;
  };
  add_nodes(6);
  make_nodes(more, 6, 1, /*kubelets=*/true);
  apply_gang("two", more, 0);
  apply_gang("one", name_space(), 6);
  for (const std::string& site : {name_space(), more})
    must({"label", "node", "--overwrite", "-l", "site=" + site, "site=" + shared});
  std::set<std::string> complete;
  EXPECT_TRUE(wait_until(
      [&] {
        for (const char* name : {"one", "two"}) {
          if (condition(name, "Running") == "True") {
            for (const std::string& running : names_of_pods(name))
              end_container(running, 0);
          }
          if (condition(name, "Complete") == "True") complete.insert(name);
        }
        return complete.size() == 2;
      },
      std::chrono::seconds(180)))
      << job_status("one").dump(1) << job_status("two").dump(1);
  for (const char* name : {"one", "two"})
    EXPECT_EQ(job_status(name)["restarts"].value("total", 0), 0) << name;
  EXPECT_THAT(job_status("one").dump(), testing::HasSubstr("GangTimeout"));
}

}  // namespace
}  // namespace trainyard::apiserver
