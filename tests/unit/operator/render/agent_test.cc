#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "agent/agent_options.h"
#include "agent/bundle.h"
#include "operator/cluster/views.h"
#include "operator/render/names.h"
#include "tests/unit/operator/render/jobs.h"

namespace trainyard::render {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::ElementsAre;

TEST(AgentTest, APodOfAnEngineKnowsItsCoordinatorAndIsKnownByIt) {
  const api::TrainingJob job = job_of(kEngine);
  const json pod = rendered(job, 1);
  const auto variables = environment(pod);
  EXPECT_EQ(variables.at("TRAINYARD_CONTROL_ADDRESS"), "control:9443");
  EXPECT_EQ(variables.at("TRAINYARD_CONTROL_TOKEN"), "/var/run/trainyard/control/token");
  EXPECT_EQ(variables.at("TRAINYARD_CONTROL_AUTHORITIES"), "/var/run/trainyard/control/ca.crt");
  EXPECT_EQ(variables.at("TRAINYARD_TERMINATION_LOG"), trainer_of(pod)["terminationMessagePath"]);
  json sources;
  for (const json& volume : pod["spec"]["volumes"]) {
    if (volume["name"] == "trainyard-control") sources = volume["projected"]["sources"];
  }
  ASSERT_EQ(sources.size(), 2U);
  EXPECT_EQ(sources[0]["serviceAccountToken"]["audience"], kControlAudience);
  EXPECT_EQ(sources[1]["configMap"]["name"], control_config_name(job.metadata));
  EXPECT_EQ(pod["spec"]["automountServiceAccountToken"], false);
}

TEST(AgentTest, OurImageIsPulledAsTheOperatorSays) {
  const auto policies = [](const std::string& spec, const std::string& policy) {
    const api::TrainingJob job = job_of(spec);
    const json pod =
        render_pod(job.metadata, job.spec, pod_of(job, 0), {"worker:9", "control:9443", policy});
    return json::array(
        {trainer_of(pod).value("imagePullPolicy", ""),
         pod["spec"].value(json::json_pointer("/initContainers/0/imagePullPolicy"), "")});
  };
  EXPECT_EQ(policies(kEngine, "Never"), json({"Never", ""}));
  EXPECT_EQ(policies(kInjected, "Never"), json({"", "Never"})) << "the trainer's image is another";
  EXPECT_EQ(policies(kInjected, ""), json({"", ""}));
}

TEST(AgentTest, APodHasTheImageOfItsGang) {
  const auto image_of = [](const std::string& spec, const json::json_pointer& place) {
    const api::TrainingJob job = job_of(spec);
    control::PodSpec pod = pod_of(job, 0);
    pod.worker_image = "worker:of-the-gang";
    const json made = render_pod(job.metadata, job.spec, pod, {"worker:9", "control:9443"});
    return made["spec"].value(place, "");
  };
  const json::json_pointer trainer("/containers/0/image");
  EXPECT_EQ(image_of(kEngine, trainer), "worker:of-the-gang");
  EXPECT_EQ(image_of(kInjected, json::json_pointer("/initContainers/0/image")),
            "worker:of-the-gang");
  EXPECT_EQ(image_of(kInjected, trainer), "train:1") << "its own";
}

/// Pods of several jobs share a node's ports.
TEST(AgentTest, APodOfItsNodesNetworkDeclaresNoPort) {
  const auto pod_with = [](const std::string& ports) {
    return rendered(job_of(R"({"numProcPerNode":2,"template":{"spec":{"hostNetwork":true,
        "containers":[{"name":"trainer","image":"t","command":["x"],"ports":)" +
                           ports + "}]}}}"),
                    0);
  };
  const json pod = pod_with("[]");
  EXPECT_EQ(trainer_of(pod)["ports"], json::array());
  EXPECT_EQ(environment(pod).at("TRAINYARD_METRICS_ADDRESS"), ":0") << "any that is free";
  const json asked = pod_with(R"([{"name":"agent","containerPort":9400}])");
  EXPECT_EQ(trainer_of(asked)["ports"].size(), 1U);
  EXPECT_EQ(environment(asked).at("TRAINYARD_METRICS_ADDRESS"), ":9400");
  const json of_its_own = rendered(job_of(kInjected), 0);
  EXPECT_THAT(trainer_of(of_its_own)["ports"],
              Contains(json{{"name", "metrics"}, {"containerPort", 9400}}));
  EXPECT_EQ(environment(of_its_own).at("TRAINYARD_METRICS_ADDRESS"), ":9400");
}

TEST(AgentTest, AProgramOfItsOwnGetsNeitherTokenNorAddress) {
  const json pod = rendered(job_of(kForeign), 1);
  EXPECT_FALSE(environment(pod).contains("TRAINYARD_CONTROL_ADDRESS"));
  for (const json& volume : pod["spec"]["volumes"])
    EXPECT_NE(volume["name"], "trainyard-control");
}

TEST(InjectedAgentTest, StartsTheContainersCommand) {
  const json pod = rendered(job_of(kInjected), 0);
  EXPECT_EQ(trainer_of(pod)["image"], "train:1");
  EXPECT_EQ(trainer_of(pod)["command"],
            json({std::string(kAgentFolder) + "/" + agent::kBundleStarter, "--", "python", "-u",
                  "t.py"}));
  EXPECT_EQ(trainer_of(pod)["args"], json({"--fast"})) << "they follow the command";
}

TEST(InjectedAgentTest, IsBroughtByTheWorkersImageBeforeAllElse) {
  const json pod = rendered(job_of(kInjected), 0);
  const json& spec = pod["spec"];
  ASSERT_EQ(spec["initContainers"].size(), 2U);
  EXPECT_EQ(spec["initContainers"][1]["name"], "fetch");
  const json& bringer = spec["initContainers"][0];
  EXPECT_EQ(bringer["image"], "worker:9");
  EXPECT_EQ(bringer["args"], json({"install", kAgentFolder}));
  EXPECT_THAT(spec["volumes"],
              Contains(json{{"name", "trainyard-agent"}, {"emptyDir", json::object()}}));
  EXPECT_THAT(bringer["volumeMounts"],
              ElementsAre(json{{"name", "trainyard-agent"}, {"mountPath", kAgentFolder}}));
  EXPECT_THAT(
      trainer_of(pod)["volumeMounts"],
      Contains(json{{"name", "trainyard-agent"}, {"mountPath", kAgentFolder}, {"readOnly", true}}));
}

/// Whatever namespace the job is in, its own containers are what may be refused.
TEST(InjectedAgentTest, ItsBringerMeetsTheRestrictedStandardAndEveryQuota) {
  const json pod = rendered(job_of(kInjected), 0);
  const json& bringer = pod["spec"]["initContainers"][0];
  const json& security = bringer["securityContext"];
  EXPECT_EQ(security["runAsNonRoot"], true);
  EXPECT_EQ(security["allowPrivilegeEscalation"], false);
  EXPECT_EQ(security["capabilities"]["drop"], json({"ALL"}));
  EXPECT_EQ(security["seccompProfile"]["type"], "RuntimeDefault");
  EXPECT_TRUE(bringer["resources"]["requests"].contains("memory"));
  EXPECT_EQ(bringer["resources"]["requests"], bringer["resources"]["limits"])
      << "a pod that is Guaranteed stays so";
  EXPECT_FALSE(pod["spec"].contains("securityContext")) << "nothing is known of the other image";
}

TEST(InjectedAgentTest, KnowsItsCoordinatorAndLeavesRanksToTheAgent) {
  const json pod = rendered(job_of(kInjected), 1);
  const auto variables = environment(pod);
  EXPECT_EQ(variables.at("TRAINYARD_CONTROL_ADDRESS"), "control:9443");
  EXPECT_EQ(variables.at("TRAINYARD_TERMINATION_LOG"), trainer_of(pod)["terminationMessagePath"]);
  EXPECT_EQ(variables.at("TRAINYARD_STOP_GRACE_SECONDS"), "45");
  EXPECT_EQ(variables.at("MASTER_ADDR"), "bert-0.bert.team-a.svc");
  EXPECT_EQ(variables.at("PET_NPROC_PER_NODE"), "2");
  // A pod's number in place of a rank's would be wrong.
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "JAX_NUM_PROCESSES",
                           "JAX_PROCESS_ID", "TRAINYARD_ENGINE_CONFIG"})
    EXPECT_FALSE(variables.contains(name)) << name;
}

/// The starter keeps them from the agent; here they may be referred to by others.
TEST(InjectedAgentTest, LeavesVariablesOfTheLoaderAsTheyAre) {
  const auto variables = environment(rendered(job_of(R"({"numProcPerNode":2,"template":{"spec":{
      "containers":[{"name":"trainer","image":"t","command":["python"],
        "env":[{"name":"LD_PRELOAD","value":"libtcmalloc.so.4"}]}]}}})"),
                                              0));
  EXPECT_EQ(variables.at("LD_PRELOAD"), "libtcmalloc.so.4");
}

TEST(InjectedAgentTest, AutoMeansAnAgentOnlyWhereAPodIsMoreThanOneRank) {
  const auto injected = [](const std::string& sizes) {
    const json pod = rendered(job_of("{" + sizes + R"("template":{"spec":{"containers":[
        {"name":"trainer","image":"t","command":["x"]}]}}})"),
                              0);
    EXPECT_EQ(pod["spec"].contains("initContainers"), trainer_of(pod)["command"].size() > 1);
    return pod["spec"].contains("initContainers");
  };
  EXPECT_TRUE(injected(R"("numProcPerNode":2,)"));
  EXPECT_TRUE(injected(R"("numProcPerNode":"auto",)"));
  EXPECT_FALSE(injected(R"("numProcPerNode":1,)"));
  EXPECT_FALSE(injected(R"("numProcPerNode":2,"agent":"None",)"));
}

}  // namespace
}  // namespace trainyard::render
