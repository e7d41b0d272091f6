// A node is lost in the three ways in which nodes are: its power is cut, it hangs, its network is
// unplugged. The job goes on elsewhere although the node's pods can be neither seen nor ended, and
// nothing of them counts when the node comes back. Jobs with copies of their states in memory, and
// with a spare, lose hardly a step.
#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/cluster_test.h"
#include "tests/support/saving_job_test.h"

namespace trainyard::cluster {
namespace {

struct Fault {
  const char* name;
  const char* act;
  const char* undo;
};

class NodeLossTest : public testing_support::ClusterTest,
                     public testing::WithParamInterface<Fault> {
 protected:
  void TearDown() override {
    if (!lost_.empty()) {
      to_node(GetParam().undo, lost_);
      EXPECT_TRUE(comes_back(lost_));
    }
    ClusterTest::TearDown();
  }

  void lose(const std::string& node) {
    to_node(GetParam().act, node);
    lost_ = node;
  }
  void find_again() {
    to_node(GetParam().undo, lost_);
    ASSERT_TRUE(comes_back(lost_));
    lost_.clear();
  }

 private:
  std::string lost_;
};

TEST_P(NodeLossTest, TheGangGoesOnElsewhereAndTheNodeComesBackToNothing) {
  Json job = trainer_job("train", 2, {"meet-after", "2"});
  spread(job, Apart::kWherePossible);
  apply(job);
  ASSERT_TRUE(runs("train", 2, 0));
  const std::string pod = member("train", 1);
  const std::string node = nodes_of_pods("train")[pod];
  ASSERT_NE(node, nodes_of_pods("train")[member("train", 0)]);

  lose(node);
  ASSERT_TRUE(runs("train", 2, 1));
  for (int index = 0; index < 2; ++index) {
    EXPECT_NE(nodes_of_pods("train")[member("train", index)], node);
  }
  // The gang has met and is done; Complete says, as of batch/v1's jobs, that no pod is left.
  ASSERT_TRUE(reaches("train", "SuccessCriteriaMet")) << "the pod on the lost node still holds it";
  EXPECT_EQ(node_ready(node), "Unknown");
  const Json stuck = get({"pod", pod});
  ASSERT_TRUE(stuck.is_object()) << "a pod cannot be gone before its kubelet has said so";
  EXPECT_TRUE(stuck["metadata"].contains("deletionTimestamp"));
  Json status = job_status("train");
  EXPECT_EQ(status["restarts"]["total"], 1);
  ASSERT_FALSE(status["attempts"].empty());
  EXPECT_EQ(status["attempts"][0]["reason"], "NodeLost") << status["attempts"].dump(2);
  EXPECT_EQ(status["attempts"][0]["node"], node);
  EXPECT_EQ(status["attempts"][0]["podName"], pod);

  find_again();
  EXPECT_TRUE(wait_until([&] {
    return get({"pod", pod}).is_null();
  })) << must({"get", "pods", "-o", "wide"});
  EXPECT_TRUE(reaches("train", "Complete"));
  EXPECT_EQ(job_status("train")["restarts"]["total"], 1);
}

INSTANTIATE_TEST_SUITE_P(Ways, NodeLossTest,
                         testing::Values(Fault{"PowerCut", "kill", "start"},
                                         Fault{"Hang", "pause", "unpause"},
                                         Fault{"Unplugged", "disconnect", "connect"}),
                         [](const auto& way) { return way.param.name; });

/// A job whose ranks keep states in memory, with copies on the next node, and whose pods are on one
/// node each: members on the workers, a spare on the control plane.
class MemoryLossTest : public testing_support::SavingJobTest {
 protected:
  static constexpr int64_t kMemorySteps = 200;
  /// For what takes seconds where the machine is quiet.
  static constexpr std::chrono::seconds kPatience{240};

  void TearDown() override {
    find_again();
    SavingJobTest::TearDown();
  }

  Json memory_job(int64_t checkpoint_steps, int spares) const {
    Json job = saving_job(2);
    Json& spec = job["spec"];
    spec["failurePolicy"]["restartStrategy"] = "InPlace";
    spec["checkpointPolicy"]["everySteps"] = checkpoint_steps;
    spec["checkpointPolicy"]["memoryEverySteps"] = kMemorySteps;
    spec["checkpointPolicy"]["memoryReplicas"] = 1;
    if (spares > 0) spec["spares"] = {{"count", spares}};
    Json& pod = spec["template"]["spec"];
    pod.erase("topologySpreadConstraints");
    // The operator finds that nodes are lost: the control plane leaves pods there for five minutes.
    pod["tolerations"] =
        Json::array({{{"key", "node-role.kubernetes.io/control-plane"}, {"operator", "Exists"}}});
    const Json workers = {
        {"matchExpressions", Json::array({{{"key", "node-role.kubernetes.io/control-plane"},
                                           {"operator", "DoesNotExist"}}})}};
    const Json of_job = {{"labelSelector", {{"matchLabels", {{"trainyard.dev/job-name", kJob}}}}},
                         {"topologyKey", "kubernetes.io/hostname"}};
    pod["affinity"] = {
        {"nodeAffinity",
         {{"preferredDuringSchedulingIgnoredDuringExecution",
           Json::array({{{"weight", 100}, {"preference", workers}}})}}},
        {"podAntiAffinity",
         {{"requiredDuringSchedulingIgnoredDuringExecution", Json::array({of_job})}}}};
    return job;
  }

  /// Ranks have kept several states, and the spare stands ready.
  ::testing::AssertionResult is_set(int spares) const {
    const auto well = [&] {
      const Json status = job_status(kJob);
      return step() > 3 * kMemorySteps &&
             status.value("nodes", Json::object()).value("spare", 0) == spares;
    };
    if (wait_until(well, kPatience)) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << job_status(kJob).dump(2);
  }
  /// Of a job without checkpoints: what it resumed from was in memory.
  static void expect_from_memory(const Json& attempt) {
    EXPECT_GT(attempt.value("resumedFromStep", int64_t{-1}), 0) << attempt.dump(2);
    EXPECT_LT(attempt.value("lostSteps", int64_t{-1}), attempt.value("endStep", int64_t{-1}))
        << attempt.dump(2);
  }

  void lose(const std::vector<std::string>& nodes) {
    lost_ = nodes;
    std::vector<std::jthread> cuts;  // at once
    cuts.reserve(nodes.size());
    for (const std::string& node : nodes)
      cuts.emplace_back([&node] { to_node("kill", node); });
  }
  void find_again() {
    for (const std::string& node : std::exchange(lost_, {})) {
      to_node("start", node);
      EXPECT_TRUE(comes_back(node));
    }
  }
  void expect_undisturbed_without_copies(Json job) {
    job["spec"].erase("spares");
    job["spec"]["checkpointPolicy"].erase("memoryEverySteps");
    job["spec"]["checkpointPolicy"].erase("memoryReplicas");
    expect_undisturbed(job);
  }
  static void report(const std::string& what, std::chrono::steady_clock::time_point since) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - since;
    std::cout << what << ": " << took.count() << " s" << std::endl;
  }
  /// Waits until ranks of the second generation have done a step; says how long that took.
  ::testing::AssertionResult goes_on(const std::string& what) const {
    const auto since = std::chrono::steady_clock::now();
    const auto resumed = [&] {
      const Json attempts = job_status(kJob).value("attempts", Json::array());
      return generation() == 2 && !attempts.empty() && attempts[0].contains("lostSteps");
    };
    const bool does = wait_until(resumed, kPatience);
    report(what, since);
    if (does) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << job_status(kJob).dump(2);
  }

 private:
  std::vector<std::string> lost_;
};

TEST_F(MemoryLossTest, ASpareTakesTheLostNodesIndexAndItsStateFromMemory) {
  // There is no checkpoint before the end.
  const Json job = memory_job(0, 1);
  apply(job);
  ASSERT_TRUE(is_set(1));
  const std::string kept = member(kJob, 0);
  const std::string node = node_of(member(kJob, 1));
  ASSERT_NE(node, node_of(kept));
  lose({node});
  ASSERT_TRUE(goes_on("from a power cut to new steps, a spare in place"));
  Json status = job_status(kJob);
  EXPECT_EQ(status["restarts"]["total"], 1) << status.dump(2);
  EXPECT_EQ(status["restarts"]["promotions"], 1) << status.dump(2);
  EXPECT_EQ(member(kJob, 0), kept);
  expect_from_memory(settled_attempt(0));
  find_again();
  expect_undisturbed_without_copies(job);
}

TEST_F(MemoryLossTest, TwoLostNodesAreOneGenerationThoughOneSpareIsThere) {
  const Json job = memory_job(kEverySteps, 1);
  ASSERT_TRUE(trains(job));
  ASSERT_TRUE(is_set(1));
  const std::vector<std::string> nodes = {node_of(member(kJob, 0)), node_of(member(kJob, 1))};
  ASSERT_NE(nodes[0], nodes[1]);
  const int64_t saved = newest_saved(1).step;
  const auto since = std::chrono::steady_clock::now();
  lose(nodes);
  // Where most agents fall silent at once, the operator waits a minute: it may be its own network.
  ASSERT_TRUE(wait_until([&] { return generation() == 2; }, kPatience)) << job_status(kJob).dump(2);
  report("from two power cuts to the decision", since);
  // The second one's pod has nowhere to go until a node is back.
  find_again();
  ASSERT_TRUE(saves(2, saved));
  Json status = job_status(kJob);
  EXPECT_EQ(generation(), 2);
  EXPECT_EQ(status["restarts"]["total"], 1) << status.dump(2);
  EXPECT_EQ(status["restarts"]["promotions"], 1) << status.dump(2);
  EXPECT_EQ(status["restarts"]["podReplacements"], 2) << status.dump(2);
  EXPECT_GE(settled_attempt(0)["resumedFromStep"], saved) << "its keeper was lost with it";
  expect_undisturbed_without_copies(job);
}

TEST_F(MemoryLossTest, ThePodOfThreeFailuresIsReplacedAndItsStateComesFromTheNextNode) {
  const Json job = memory_job(0, 0);
  apply(job);
  for (int64_t failures = 1; failures <= 3; ++failures) {
    const auto trains_again = [&] {
      return generation() == failures && step() > 3 * kMemorySteps * failures;
    };
    ASSERT_TRUE(wait_until(trains_again, kPatience)) << job_status(kJob).dump(2);
    const std::string pod = member(kJob, 1);
    on_node(node_of(pod), {"kill", "-KILL", process_of(pod, 1)});
    expect_from_memory(settled_attempt(static_cast<size_t>(failures - 1)));
  }
  Json status = job_status(kJob);
  EXPECT_EQ(status["restarts"]["inPlace"], 2) << status.dump(2);
  EXPECT_EQ(status["restarts"]["podReplacements"], 1) << status.dump(2);
  expect_undisturbed_without_copies(job);
}

}  // namespace
}  // namespace trainyard::cluster
