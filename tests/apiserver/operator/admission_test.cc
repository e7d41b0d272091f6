// Jobs whose pods admission changes, or does not take.
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/operator_process.h"

namespace trainyard::apiserver {
namespace {

using testing::HasSubstr;

class AdmissionTest : public testing_support::OperatorTest {
 protected:
  static Json limit_range(const std::string& cpu_max) {
    const Json limit = {{"type", "Container"},
                        {"default", {{"cpu", "500m"}, {"memory", "64Mi"}}},
                        {"defaultRequest", {{"cpu", "250m"}, {"memory", "32Mi"}}},
                        {"max", {{"cpu", cpu_max}}}};
    return {{"apiVersion", "v1"},
            {"kind", "LimitRange"},
            {"metadata", {{"name", "limits"}}},
            {"spec", {{"limits", Json::array({limit})}}}};
  }
  static Json over(int code) { return {{"terminated", {{"exitCode", code}, {"reason", "Error"}}}}; }
  static Json running() { return {{"running", {{"startedAt", "2026-01-02T03:04:05Z"}}}}; }
  /// As a kubelet does: says how the containers of a pod are that still has one that runs.
  void tell(const std::string& pod, const std::map<std::string, Json>& states,
            const Json& conditions = nullptr) const {
    Json list = Json::array();
    for (const auto& [name, state] : states) {
      list.push_back({{"name", name},
                      {"image", "registry.example/image:1"},
                      {"imageID", ""},
                      {"ready", state.contains("running")},
                      {"restartCount", 0},
                      {"state", state}});
    }
    Json status = {{"phase", "Running"}, {"containerStatuses", list}};
    if (!conditions.is_null()) status["conditions"] = conditions;
    must({"patch", "pod", pod, "--subresource=status", "--type=merge", "-p",
          Json({{"status", status}}).dump()});
  }
};

TEST_F(AdmissionTest, DefaultsOfALimitRangeReachThePodsAndAreNoChange) {
  apply(limit_range("2"));
  apply(job_manifest("train", 2));
  Json large = job_manifest("large", 1);
  large["spec"]["template"]["spec"]["containers"][0]["resources"] = {{"limits", {{"cpu", "4"}}}};
  apply(large);
  ASSERT_TRUE(reaches("train", "Running"));
  for (const Json& pod : pods("train")) {
    const Json& resources = pod["spec"]["containers"][0]["resources"];
    EXPECT_EQ(resources["limits"]["cpu"], "500m");
    EXPECT_EQ(resources["requests"]["memory"], "32Mi");
  }
  ASSERT_TRUE(reaches("large", "Accepted", "False"));
  EXPECT_EQ(reason("large", "Accepted"), "AdmissionRefused");
  EXPECT_THAT(job_status("large").dump(), HasSubstr("maximum cpu usage per Container is 2"));
  EXPECT_EQ(job_status("large").value("membership", Json::object()).value("generation", 0), 0);
  EXPECT_EQ(condition("large", "Failed"), "");
  const Json none = {{"nvidia.com/gpu", "0"}};
  Json of_gpus = limit_range("");
  of_gpus["metadata"]["name"] = "gpus";
  of_gpus["spec"]["limits"][0] = {{"type", "Container"},
                                  {"default", none},
                                  {"defaultRequest", none},
                                  {"max", {{"nvidia.com/gpu", "1"}}}};
  apply(of_gpus);
  Json gpus = job_manifest("gpus", 1);
  gpus["spec"]["template"]["spec"]["containers"][0]["resources"] = {
      {"limits", {{"nvidia.com/gpu", 2}}}};
  apply(gpus);
  ASSERT_TRUE(reaches("gpus", "Accepted", "False"));
  EXPECT_EQ(reason("gpus", "Accepted"), "AdmissionRefused");
  EXPECT_THAT(job_status("gpus").dump(),
              HasSubstr("maximum nvidia.com/gpu usage per Container is 1"));
  apply(limit_range("8"));
  ASSERT_TRUE(reaches("large", "Running"));
  EXPECT_TRUE(runs("train", 2, 0));
}

TEST_F(AdmissionTest, AQuotaHoldsAGangUntilThereIsRoomForAllOfIt) {
  must({"create", "quota", "few", "--hard=pods=1,requests.nvidia.com/gpu=2"});
  apply(job_manifest("train", 3));
  ASSERT_TRUE(reaches("train", "Accepted", "False"));
  EXPECT_EQ(reason("train", "Accepted"), "AdmissionRefused");
  EXPECT_THAT(job_status("train").dump(), HasSubstr("exceeded quota: few"));
  must({"patch", "quota", "few", "--type=merge", "-p", R"({"spec":{"hard":{"pods":"8"}}})"});
  ASSERT_TRUE(reaches("train", "Running"));
  EXPECT_EQ(condition("train", "Accepted"), "True");
  EXPECT_TRUE(runs("train", 3, 0));

  Json gpus = job_manifest("gpus", 3);
  gpus["spec"]["template"]["spec"]["containers"][0]["resources"] = {
      {"limits", {{"nvidia.com/gpu", 1}}}};
  apply(gpus);
  ASSERT_TRUE(reaches("gpus", "Accepted", "False"));
  EXPECT_EQ(reason("gpus", "Accepted"), "AdmissionRefused");
  EXPECT_THAT(job_status("gpus").dump(), HasSubstr("requests.nvidia.com/gpu"));
  must({"patch", "quota", "few", "--type=merge", "-p",
        R"({"spec":{"hard":{"requests.nvidia.com/gpu":"3"}}})"});
  ASSERT_TRUE(reaches("gpus", "Accepted"));
  EXPECT_TRUE(wait_until([&] {
    return job_status("gpus").dump().find("Insufficient nvidia.com/gpu") != std::string::npos;
  })) << job_status("gpus").dump(1);
}

TEST_F(AdmissionTest, WhyContainersDoNotStartIsToldAtOnce) {
  make_nodes("still-" + name_space(), 2, 2, /*kubelets=*/false);
  Json job = job_manifest("train", 2);
  place(job, "still-" + name_space());
  job["spec"]["failurePolicy"] = {
      {"budgets", Json::array({{{"class", "Application"}, {"maxRestarts", 0}}})}};
  apply(job);
  ASSERT_TRUE(reaches("train", "Scheduled"));
  const auto wait_for = [&](const std::string& reason, const std::string& started) {
    const Json status = {
        {"phase", "Pending"},
        {"startTime", started},
        {"containerStatuses",
         Json::array({{{"name", "trainer"},
                       {"image", "i"},
                       {"imageID", ""},
                       {"ready", false},
                       {"restartCount", 0},
                       {"state", {{"waiting", {{"reason", reason}, {"message", "why"}}}}}}})}};
    must({"patch", "pod", member("train", 1), "--subresource=status", "--type=merge", "-p",
          Json({{"status", status}}).dump()});
  };
  wait_for("ErrImagePull", "2026-01-02T03:04:05Z");
  ASSERT_TRUE(wait_until([&] { return reason("train", "Running") == "ImagePull"; }));
  EXPECT_EQ(message("train", "Running"),
            "1 of 2 pods: pod " + member("train", 1) + " container trainer: ErrImagePull: why");
  const std::string line = must({"get", "tj", "train", "--no-headers"});
  EXPECT_THAT(line, testing::ContainsRegex("train +Starting +ImagePull +0 +2"));
  EXPECT_THAT(must({"get", "tj", "train", "-o", "wide"}), HasSubstr("ErrImagePull: why"));
  EXPECT_TRUE(wait_until([&] {
    return must({"get", "events"}).find("ImagePull") != std::string::npos;
  }));
  wait_for("InvalidImageName", "2026-01-02T03:04:05Z");  // longer ago than a minute
  ASSERT_TRUE(reaches("train", "FailureTarget"));
  EXPECT_EQ(job_status("train")["attempts"][0]["reason"], "ImagePull");
  must({"delete", "pods", "--all", "--force", "--grace-period=0"});
  EXPECT_TRUE(reaches("train", "Failed"));
}

/// The definition leaves most of a template to the server's judgement of pods, but the operator
/// reads it before.
TEST_F(AdmissionTest, WhateverATemplateHoldsItIsTheTroubleOfItsJobAlone) {
  Json numbered = job_manifest("numbered", 1);
  const Json claim = {{"claimName", "ckpt"}};
  numbered["spec"]["checkpointPolicy"] = {{"storage", {{"persistentVolumeClaim", claim}}}};
  numbered["spec"]["template"]["spec"]["volumes"] =
      Json::array({{{"name", 7}, {"persistentVolumeClaim", claim}}});
  apply(numbered);
  ASSERT_TRUE(reaches("numbered", "Accepted", "False"));
  EXPECT_EQ(reason("numbered", "Accepted"), "InvalidPodTemplate");
  Json affinity = Json::object();
  for (int i = 0; i < 300; ++i)
    affinity = {{"nodeAffinity", affinity}};
  Json deep = job_manifest("deep", 1);
  deep["spec"]["template"]["spec"]["affinity"] = affinity;
  apply(deep);
  ASSERT_TRUE(reaches("deep", "Accepted", "False"));
  EXPECT_EQ(reason("deep", "Accepted"), "InvalidSpec");
  const auto version = [this] {
    return must({"get", "tj", "deep", "-o", "jsonpath={.metadata.resourceVersion}"});
  };
  const std::string before = version();
  apply(job_manifest("train", 2));
  ASSERT_TRUE(reaches("train", "Running"));
  restart_operator();
  end_container(member("train", 1), 1);
  EXPECT_TRUE(runs("train", 2, 1)) << "after a list that the deep one is in";
  EXPECT_EQ(version(), before) << "its status says what it said";
}

TEST_F(AdmissionTest, ASidecarThatRunsOnHoldsNoJob) {
  Json job = job_manifest("train", 2);
  job["spec"]["template"]["spec"]["initContainers"] = Json::array(
      {{{"name", "logs"}, {"image", "registry.example/logs:1"}, {"restartPolicy", "Always"}}});
  apply(job);
  ASSERT_TRUE(reaches("train", "Running"));
  end_container(member("train", 0), 0);
  tell(member("train", 1), {{"trainer", over(0)}});
  ASSERT_TRUE(reaches("train", "Complete"));
  EXPECT_EQ(job_status("train")["restarts"]["total"], 0);
}

TEST_F(AdmissionTest, ASidecarThatHasEndedLeavesThePodReadyAndIsNamedByARule) {
  const Json rule = {{"name", "no-proxy"},
                     {"action", "FailJob"},
                     {"onExitCodes", {{"containerName", "proxy"}, {"values", Json::array({3})}}}};
  Json job = job_manifest("train", 1);
  job["spec"]["failurePolicy"]["rules"] = Json::array({rule});
  job["spec"]["template"]["spec"]["containers"].push_back(
      {{"name", "proxy"}, {"image", "registry.example/proxy:1"}});
  apply(job);
  ASSERT_TRUE(reaches("train", "Running"));
  Json conditions = Json::array();
  for (const char* type : {"Ready", "ContainersReady"})
    conditions.push_back({{"type", type}, {"status", "False"}, {"reason", "ContainersNotReady"}});
  tell(member("train", 0), {{"proxy", over(3)}, {"trainer", running()}}, conditions);
  restart_operator();  // which lists the pod as it is now
  patch("train", {{"keepFailedPods", 2}});
  ASSERT_TRUE(wait_until([&] {
    return job_status("train")["observedGeneration"] ==
           get({"tj", "train"})["metadata"]["generation"];
  }));
  EXPECT_TRUE(runs("train", 1, 0));
  EXPECT_EQ(condition("train", "Running"), "True");
  tell(member("train", 0), {{"proxy", over(3)}, {"trainer", over(1)}});
  ASSERT_TRUE(reaches("train", "Failed"));
  EXPECT_EQ(reason("train", "Failed"), "Rule_no-proxy");
  EXPECT_EQ(job_status("train")["attempts"][0]["container"], "proxy");
}

/// What a mesh does: a container of its own, before those of the template.
TEST_F(AdmissionTest, AContainerThatAPolicyPutsFirstDecidesNothing) {
  const std::string name = name_space();
  const std::string proxy =
      R"([JSONPatch{op: "add", path: "/spec/containers/0", value: Object.spec.containers{)"
      R"(name: "proxy", image: "registry.example/proxy:1"}}])";
  const Json pods_made = {{"apiGroups", Json::array({""})},
                          {"apiVersions", Json::array({"v1"})},
                          {"operations", Json::array({"CREATE"})},
                          {"resources", Json::array({"pods"})}};
  const Json here = {{"matchLabels", {{"kubernetes.io/metadata.name", name}}}};
  const Json policy = {
      {"apiVersion", "admissionregistration.k8s.io/v1beta1"},
      {"kind", "MutatingAdmissionPolicy"},
      {"metadata", {{"name", name}}},
      {"spec",
       {{"matchConstraints", {{"resourceRules", Json::array({pods_made})}}},
        {"failurePolicy", "Fail"},
        {"reinvocationPolicy", "Never"},
        {"mutations",
         Json::array({{{"patchType", "JSONPatch"}, {"jsonPatch", {{"expression", proxy}}}}})}}}};
  const Json binding = {
      {"apiVersion", "admissionregistration.k8s.io/v1beta1"},
      {"kind", "MutatingAdmissionPolicyBinding"},
      {"metadata", {{"name", name}}},
      {"spec", {{"policyName", name}, {"matchResources", {{"namespaceSelector", here}}}}}};
  apply(policy);
  apply(binding);
  ASSERT_TRUE(wait_until([&] {
    return must({"run", "tried", "--image=i", "--dry-run=server", "-o", "json"}).find("proxy:1") !=
           std::string::npos;
  })) << "the policy does not act";
  Json job = job_manifest("train", 1);
  job["spec"]["template"]["spec"]["containers"][0]["name"] = "main";
  apply(job);
  ASSERT_TRUE(reaches("train", "Running"));
  EXPECT_EQ(pods("train")[0]["spec"]["containers"][0]["name"], "proxy");
  tell(member("train", 0), {{"proxy", over(1)}, {"main", running()}});
  EXPECT_TRUE(runs("train", 1, 0)) << "not the job's own container";
  tell(member("train", 0), {{"proxy", over(1)}, {"main", over(7)}});
  ASSERT_TRUE(runs("train", 1, 1));
  Json attempt = job_status("train")["attempts"][0];
  EXPECT_EQ(attempt["container"], "main");
  EXPECT_EQ(attempt["exitCode"], 7);
  must({"delete", "mutatingadmissionpolicybinding", name});
  must({"delete", "mutatingadmissionpolicy", name});
}

}  // namespace
}  // namespace trainyard::apiserver
