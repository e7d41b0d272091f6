#include <csignal>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "control/pod_spec.h"
#include "tests/support/operator_process.h"

namespace trainyard::apiserver {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

class LifecycleTest : public testing_support::OperatorTest {
 protected:
  /// The budget follows the status.
  bool has_budget(int min_available) const {
    return wait_until([&] {
      const Json budget = get({"pdb", "train"});
      return budget.is_object() && budget["spec"]["minAvailable"] == min_available;
    });
  }
};

TEST_F(LifecycleTest, AppliedJobRunsAndSaysSo) {
  apply(job_manifest("train", 3));
  ASSERT_TRUE(reaches("train", "Running"));
  EXPECT_EQ(reason("train", "Running"), "AllNodesReady");
  EXPECT_EQ(reason("train", "Accepted"), "Accepted");
  EXPECT_THAT(must({"get", "tj", "train"}), ContainsRegex("train +Running +AllNodesReady +3 +3 "));
  const std::vector<Json> members = pods("train");
  ASSERT_EQ(members.size(), 3U);
  std::set<std::string> hosts;
  for (const Json& pod : members) {
    EXPECT_EQ(pod["status"]["phase"], "Running");
    EXPECT_EQ(pod["spec"]["subdomain"], "train");
    EXPECT_EQ(pod["spec"]["restartPolicy"], "Never");
    EXPECT_EQ(pod["metadata"]["labels"]["trainyard.dev/member"], "true");
    EXPECT_EQ(pod["metadata"]["ownerReferences"][0]["kind"], "TrainingJob");
    hosts.insert(pod["spec"]["hostname"]);
  }
  EXPECT_EQ(hosts, (std::set<std::string>{"train-0", "train-1", "train-2"}));
  EXPECT_EQ(get({"service", "train"})["spec"]["clusterIP"], "None");
  EXPECT_TRUE(has_budget(2)) << get({"pdb", "train"}).dump();
  const std::string selector = job_status("train")["selector"];
  EXPECT_EQ(get({"pods", "-l", selector})["items"].size(), 3U);
}

TEST_F(LifecycleTest, DescribeTellsItsEvents) {
  apply(job_manifest("train", 1));
  ASSERT_TRUE(reaches("train", "Running"));
  EXPECT_TRUE(wait_until([&] {
    return must({"describe", "tj", "train"}).find("trainyard-operator") != std::string::npos;
  })) << must({"describe", "tj", "train"});
}

TEST_F(LifecycleTest, DeletionTakesEverythingAlong) {
  for (const char* cascade : {"background", "foreground"}) {
    apply(job_manifest("train", 2));
    ASSERT_TRUE(reaches("train", "Running"));
    must({"delete", "tj", "train", std::string("--cascade=") + cascade});
    EXPECT_TRUE(wait_until([&] { return get({"pods,services,pdb"})["items"].empty(); }))
        << cascade << ": " << must({"get", "pods,services,pdb"});
  }
}

TEST_F(LifecycleTest, WhatSomebodyTakesAwayBesideThePodsComesBack) {
  apply(job_manifest("train", 2));
  ASSERT_TRUE(reaches("train", "Running"));
  ASSERT_TRUE(has_budget(1));
  const std::string slices = "endpointslices.discovery.k8s.io";
  const auto addresses = [&] {
    size_t count = 0;
    const Json found = get({slices});
    for (const Json& slice : found["items"])
      count += slice["endpoints"].is_array() ? slice["endpoints"].size() : 0;
    return count;
  };
  ASSERT_TRUE(wait_until([&] { return addresses() == 2; }));
  must({"delete", "service/train", "pdb/train"});
  must({"delete", slices, "--all"});
  EXPECT_TRUE(wait_until([&] { return get({"service", "train"}).is_object(); }));
  EXPECT_TRUE(has_budget(1));
  EXPECT_TRUE(wait_until([&] { return addresses() == 2; })) << must({"get", slices, "-o", "yaml"});
  EXPECT_EQ(job_status("train")["membership"]["generation"], 1) << "its pods did not notice";
}

TEST_F(LifecycleTest, AJobWhoseStatusSomebodyRemovedRunsOn) {
  apply(job_manifest("train", 2));
  ASSERT_TRUE(reaches("train", "Running"));
  must({"patch", "tj", "train", "--subresource=status", "--type=json", "-p",
        R"([{"op": "remove", "path": "/status"}])"});
  ASSERT_TRUE(reaches("train", "Running"));
  EXPECT_EQ(job_status("train")["membership"]["generation"], 2);
  EXPECT_TRUE(wait_until([&] {
    return must({"describe", "tj", "train"}).find("StatusLost") != std::string::npos;
  })) << must({"describe", "tj", "train"});
}

TEST_F(LifecycleTest, ARefusedJobIsMendedByAnotherApply) {
  Json job = job_manifest("train", 2);
  const Json good = job;
  job["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = "Sometimes";
  apply(job);
  ASSERT_TRUE(reaches("train", "Accepted", "False"));
  EXPECT_EQ(reason("train", "Accepted"), "InvalidPodTemplate");
  patch("train", {{"suspend", true}});
  ASSERT_TRUE(reaches("train", "Suspended"));
  EXPECT_EQ(reason("train", "Accepted"), "InvalidPodTemplate");
  patch("train", {{"suspend", false}});
  apply(good);
  ASSERT_TRUE(reaches("train", "Running"));
}

TEST_F(LifecycleTest, WhatIsOrphanedStaysAndBelongsToNobodyElse) {
  apply(job_manifest("train", 2));
  ASSERT_TRUE(reaches("train", "Running"));
  ASSERT_TRUE(has_budget(1));
  const std::set<std::string> before = names_of_pods("train");
  must({"delete", "tj", "train", "--cascade=orphan"});
  apply(job_manifest("train", 2));
  ASSERT_TRUE(reaches("train", "Accepted", "False"));
  EXPECT_EQ(reason("train", "Accepted"), "NameConflict");
  EXPECT_EQ(names_of_pods("train"), before);
  must({"delete", "service/train", "pdb/train"});
  ASSERT_TRUE(reaches("train", "Running"));
  EXPECT_EQ(names_of_pods("train").size(), 4U);
}

TEST_F(LifecycleTest, APodOfAnotherThatHasTheNameIsNotTaken) {
  Json job = job_manifest("train", 1);
  job["spec"]["suspend"] = true;
  apply(job);
  ASSERT_TRUE(reaches("train", "Suspended"));
  const std::string uid = get({"tj", "train"})["metadata"]["uid"];
  const std::string name = control::pod_name("train", uid, 0, 1);
  must({"run", name, "--image=registry.example/other:1"});
  patch("train", {{"suspend", false}});
  ASSERT_TRUE(reaches("train", "Accepted", "False"));
  EXPECT_EQ(reason("train", "Accepted"), "NameConflict");
  must({"delete", "pod", name, "--wait=false"});
  ASSERT_TRUE(reaches("train", "Running"));
}

TEST_F(LifecycleTest, SuspensionEndsThePodsAndResumptionBringsThemBack) {
  apply(job_manifest("train", 2));
  ASSERT_TRUE(reaches("train", "Running"));
  const int generation = job_status("train")["membership"]["generation"];
  patch("train", {{"suspend", true}});
  ASSERT_TRUE(reaches("train", "Suspended"));
  EXPECT_TRUE(get({"pods"})["items"].empty());
  EXPECT_EQ(job_status("train")["nodes"]["active"], 0);
  EXPECT_THAT(must({"get", "tj", "train"}), HasSubstr("Suspended"));
  patch("train", {{"suspend", false}});
  ASSERT_TRUE(reaches("train", "Suspended", "False"));
  ASSERT_TRUE(runs("train", 2, 0));
  EXPECT_GT(job_status("train")["membership"]["generation"], generation);
  // Once more: the same event counts up.
  patch("train", {{"suspend", true}});
  ASSERT_TRUE(reaches("train", "Suspended"));
  patch("train", {{"suspend", false}});
  ASSERT_TRUE(runs("train", 2, 0));
}

TEST_F(LifecycleTest, ADeletedPodIsOneRestart) {
  apply(job_manifest("train", 3));
  ASSERT_TRUE(reaches("train", "Running"));
  const std::set<std::string> before = names_of_pods("train");
  const std::string victim = *before.begin();
  must({"delete", "pod", victim, "--wait=false"});
  ASSERT_TRUE(runs("train", 3, 1));
  const std::set<std::string> after = names_of_pods("train");
  EXPECT_EQ(after.size(), 3U);
  EXPECT_FALSE(after.contains(victim));
  Json attempt = job_status("train")["attempts"][0];
  // Of one that was gone before the operator looked only the place is known: "train-0".
  EXPECT_THAT(victim, testing::StartsWith(attempt["podName"].get<std::string>()));
  EXPECT_EQ(attempt["class"], "Infrastructure") << attempt.dump(2);
  EXPECT_THAT(must({"get", "tj", "train"}),
              ContainsRegex("Running +AllNodesReady +3 +3 +([0-9]+ +)?1 "));
}

TEST_F(LifecycleTest, AFailedContainerRestartsTheJobWithItsCode) {
  apply(job_manifest("train", 2));
  ASSERT_TRUE(reaches("train", "Running"));
  const std::string victim = *names_of_pods("train").begin();
  end_container(victim, 7, "out of ideas");
  ASSERT_TRUE(runs("train", 2, 1));
  Json attempt = job_status("train")["attempts"][0];
  EXPECT_EQ(attempt["class"], "Application");
  EXPECT_EQ(attempt["exitCode"], 7);
  EXPECT_EQ(attempt["podName"], victim);
  EXPECT_THAT(attempt["message"], HasSubstr("out of ideas"));
}

TEST_F(LifecycleTest, AFatalCodeFailsTheJob) {
  apply(job_manifest("train", 2));
  ASSERT_TRUE(reaches("train", "Running"));
  end_container(*names_of_pods("train").begin(), 64);
  ASSERT_TRUE(reaches("train", "Failed"));
  EXPECT_EQ(reason("train", "Failed"), "FatalExitCode");
  EXPECT_EQ(job_status("train")["restarts"]["total"], 0);
}

TEST_F(LifecycleTest, SuccessOfAllCompletesAndTheTtlRemoves) {
  Json job = job_manifest("train", 2);
  job["spec"]["ttlSecondsAfterFinished"] = 15;
  apply(job);
  ASSERT_TRUE(reaches("train", "Running"));
  for (const std::string& pod : names_of_pods("train"))
    end_container(pod, 0);
  ASSERT_TRUE(reaches("train", "Complete"));
  EXPECT_TRUE(wait_until([&] { return kubectl({"get", "tj", "train"}).exit_code != 0; }));
}

TEST_F(LifecycleTest, AnUnservedPodTemplateIsParkedUntilItIsMended) {
  Json job = job_manifest("train", 1);
  job["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = "Sometimes";
  apply(job);
  ASSERT_TRUE(reaches("train", "Accepted", "False"));
  EXPECT_EQ(reason("train", "Accepted"), "InvalidPodTemplate");
  EXPECT_TRUE(pods("train").empty());
}

TEST_F(LifecycleTest, AnElasticJobFollowsScale) {
  Json job = job_manifest("train", 2);
  job["spec"]["elasticPolicy"] = {{"minNodes", 1}, {"scaleUpSnoozeSeconds", 0}};
  apply(job);
  ASSERT_TRUE(reaches("train", "Running"));
  must({"scale", "tj/train", "--replicas=4"});
  ASSERT_TRUE(runs("train", 4, 0));
  EXPECT_TRUE(has_budget(3)) << get({"pdb", "train"}).dump();
  must({"scale", "tj/train", "--replicas=2"});
  ASSERT_TRUE(runs("train", 2, 0));
  EXPECT_EQ(job_status("train")["restarts"]["resizes"], 2);
}

TEST_F(LifecycleTest, ARestartedOperatorLeavesARunningJobAlone) {
  apply(job_manifest("train", 3));
  ASSERT_TRUE(reaches("train", "Running"));
  const std::set<std::string> before = names_of_pods("train");
  running_operator().process().signal(SIGKILL);
  ASSERT_TRUE(running_operator().process().wait(kDeadline).has_value());
  restart_operator();
  apply(job_manifest("other", 1));
  ASSERT_TRUE(reaches("other", "Running"));
  EXPECT_EQ(names_of_pods("train"), before);
  EXPECT_TRUE(runs("train", 3, 0));
}

TEST_F(LifecycleTest, AnothersJobIsLeftAlone) {
  Json foreign = job_manifest("foreign", 1);
  foreign["spec"]["managedBy"] = "example.com/other";
  apply(foreign);
  apply(job_manifest("ours", 1));
  ASSERT_TRUE(reaches("ours", "Running"));
  EXPECT_TRUE(job_status("foreign").empty());
  EXPECT_TRUE(pods("foreign").empty());
}

}  // namespace
}  // namespace trainyard::apiserver
