#include "operator/render/companions.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "operator/render/endpoints.h"
#include "operator/render/names.h"
#include "tests/unit/operator/render/jobs.h"

namespace trainyard::render {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::ElementsAre;

TEST(RenderEngineTest, MakesAWorkerPodWhereThereIsNoTemplate) {
  const api::TrainingJob job = job_of(kEngine);
  const json pod = rendered(job, 0);
  EXPECT_EQ(trainer_of(pod)["name"], "trainer");
  EXPECT_EQ(trainer_of(pod)["image"], "worker:9");
  EXPECT_EQ(pod["spec"]["securityContext"]["runAsNonRoot"], true);
  EXPECT_EQ(trainer_of(pod)["securityContext"]["allowPrivilegeEscalation"], false);
  EXPECT_THAT(trainer_of(pod)["securityContext"]["capabilities"]["drop"], ElementsAre("ALL"));
  const auto variables = environment(pod);
  EXPECT_EQ(variables.at("TRAINYARD_ENGINE_CONFIG"), "/etc/trainyard/engine.json");
  EXPECT_EQ(variables.at("TRAINYARD_CHECKPOINT_POLICY"), "/etc/trainyard/checkpoint-policy.json");
  EXPECT_EQ(variables.at("TRAINYARD_CHECKPOINT_DIR"), "/var/lib/trainyard/checkpoints/runs/1");
  EXPECT_FALSE(variables.contains("RANK")) << "the agent starts the ranks";
  const std::string config = engine_config_name(job.metadata, job.spec);
  EXPECT_THAT(pod["spec"]["volumes"],
              Contains(json{{"name", "trainyard-engine"}, {"configMap", {{"name", config}}}}));
  EXPECT_THAT(pod["spec"]["volumes"],
              Contains(json{{"name", "trainyard-checkpoints"},
                            {"persistentVolumeClaim", {{"claimName", "ckpt"}}}}));
}

TEST(RenderEngineTest, AClaimWithDataAndCheckpointsIsOneVolume) {
  api::TrainingJob job = job_of(kEngine);
  job.spec.pod_template.emplace();
  job.spec.pod_template->json = R"({"spec":{
      "containers":[{"name":"trainer","volumeMounts":[
          {"name":"data","mountPath":"/data","subPath":"data","readOnly":true}]}],
      "volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"ckpt"}}]}})";
  const json pod = rendered(job, 0);
  int volumes = 0;
  for (const json& volume : pod["spec"]["volumes"])
    volumes += volume.contains("persistentVolumeClaim") ? 1 : 0;
  EXPECT_EQ(volumes, 1) << "a kubelet waits for the second one of a claim for ever";
  EXPECT_THAT(trainer_of(pod)["volumeMounts"],
              Contains(json{{"name", "data"}, {"mountPath", "/var/lib/trainyard/checkpoints"}}));
}

TEST(RenderEngineTest, TheConfigMapHoldsWhatTheWorkerReads) {
  const api::TrainingJob job = job_of(kEngine);
  const json config = render_engine_config(job.metadata, job.spec);
  EXPECT_EQ(config["immutable"], true);
  EXPECT_EQ(config["metadata"]["name"], engine_config_name(job.metadata, job.spec));
  const auto engine = api::decode_engine(config["data"]["engine.json"].get<std::string>());
  ASSERT_TRUE(engine.has_value()) << engine.error().message;
  EXPECT_EQ(*engine, *job.spec.engine);
  const auto policy =
      api::decode_checkpoint_policy(config["data"]["checkpoint-policy.json"].get<std::string>());
  ASSERT_TRUE(policy.has_value()) << policy.error().message;
  EXPECT_EQ(*policy, job.spec.checkpoint_policy);
}

TEST(RenderEngineTest, AChangedEngineIsAnotherConfigMap) {
  api::TrainingJob job = job_of(kEngine);
  const std::string before = engine_config_name(job.metadata, job.spec);
  EXPECT_EQ(before, engine_config_name(job.metadata, job.spec));
  EXPECT_TRUE(before.starts_with("bert-engine-")) << before;
  job.spec.engine->steps = 11;
  EXPECT_NE(engine_config_name(job.metadata, job.spec), before);
  job.spec.engine->steps = 10;
  job.spec.checkpoint_policy.keep_last = 9;
  EXPECT_NE(engine_config_name(job.metadata, job.spec), before);
}

// ---- Companions --------------------------------------------------------------------------------

TEST(CompanionsTest, TheServiceResolvesMembersBeforeTheyAreReady) {
  const api::TrainingJob job = job_of(kForeign);
  const json service = render_service(job.metadata, job.spec, Addresses::kSelected);
  EXPECT_EQ(service["metadata"]["name"], "bert");
  EXPECT_EQ(service["spec"]["clusterIP"], "None");
  EXPECT_EQ(service["spec"]["publishNotReadyAddresses"], true);
  const json selector = service["spec"]["selector"];
  EXPECT_EQ(selector, (json{{"trainyard.dev/job-uid", "uid-1"}, {"trainyard.dev/member", "true"}}));
  for (const auto& [key, value] : selector.items())
    EXPECT_EQ(rendered(job, 0)["metadata"]["labels"][key], value);
}

TEST(CompanionsTest, WhatTheServiceResolvesToIsSaidBySlices) {
  const api::TrainingJob job = job_of(kForeign);
  EXPECT_FALSE(render_service(job.metadata, job.spec)["spec"].contains("selector"));
  const std::vector<Endpoint> endpoints = {{0, "10.0.0.7", "node-a", "bert-0-abcde", "pod-7"},
                                           {12, "10.0.0.9", "", "bert-12-abcde", "pod-9"}};
  const json slice =
      render_endpoint_slice(job.metadata, job.spec, 0, AddressType::kIPv4, endpoints);
  EXPECT_EQ(slice["addressType"], "IPv4");
  EXPECT_EQ(slice["metadata"]["ownerReferences"][0]["uid"], "uid-1");
  EXPECT_EQ(slice["metadata"]["labels"]["kubernetes.io/service-name"], "bert");
  EXPECT_EQ(slice["ports"][0]["port"], job.spec.rendezvous.port);
  ASSERT_EQ(slice["endpoints"].size(), 2u);
  const json& first = slice["endpoints"][0];
  EXPECT_EQ(first["addresses"], json::array({"10.0.0.7"}));
  EXPECT_EQ(first["hostname"], rendered(job, 0)["spec"]["hostname"]);
  EXPECT_EQ(first["conditions"]["ready"], true) << "names resolve before pods are ready";
  EXPECT_EQ(first["nodeName"], "node-a");
  EXPECT_EQ(first["targetRef"]["uid"], "pod-7");
  EXPECT_EQ(slice["endpoints"][1]["hostname"], "bert-12");
}

TEST(CompanionsTest, ASliceIsOfTheFamilyOfItsAddressesAndStaysSoWhenItIsEmptied) {
  const api::TrainingJob job = job_of(kForeign);
  const std::vector<Endpoint> six = {{0, "fd00::7", "", "bert-0-abcde", "pod-7"}};
  const std::vector<Endpoint> four = {{0, "10.0.0.7", "", "bert-0-abcde", "pod-7"}};
  EXPECT_EQ(address_type_of(six, AddressType::kIPv4), AddressType::kIPv6);
  EXPECT_EQ(address_type_of(four, AddressType::kIPv6), AddressType::kIPv4);
  EXPECT_EQ(address_type_of({}, AddressType::kIPv6), AddressType::kIPv6);
  EXPECT_EQ(render_endpoint_slice(job.metadata, job.spec, 0, AddressType::kIPv6, {})["addressType"],
            "IPv6");
}

TEST(CompanionsTest, SlicesOfANamesakeHaveOtherNames) {
  api::ObjectMeta job = job_of(kForeign).metadata;
  for (const int64_t part : {0, 1, 9}) {
    EXPECT_EQ(part_of_slice(job, endpoint_slice_name(job, part)), part);
  }
  const std::string before = endpoint_slice_name(job, 0);
  for (const std::string& name : {before + "-0", before + "-01", before + "-x", before + "-9999999",
                                  before + "1", job.name, std::string()})
    EXPECT_EQ(part_of_slice(job, name), -1) << name;
  job.uid = "uid-2";
  EXPECT_NE(endpoint_slice_name(job, 0), before);
}

TEST(CompanionsTest, TheBudgetLetsOnePodBeEvicted) {
  const api::TrainingJob job = job_of(kForeign);
  const json budget = render_disruption_budget(job.metadata, 3);
  EXPECT_EQ(budget["spec"]["minAvailable"], 2);
  EXPECT_EQ(budget["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow");
  EXPECT_EQ(budget["metadata"]["ownerReferences"][0]["uid"], "uid-1");
}

}  // namespace
}  // namespace trainyard::render
