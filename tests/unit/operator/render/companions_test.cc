#include "operator/render/companions.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

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
  const json service = render_service(job.metadata, job.spec);
  EXPECT_EQ(service["metadata"]["name"], "bert");
  EXPECT_EQ(service["spec"]["clusterIP"], "None");
  EXPECT_EQ(service["spec"]["publishNotReadyAddresses"], true);
  const json selector = service["spec"]["selector"];
  EXPECT_EQ(selector, (json{{"trainyard.dev/job-uid", "uid-1"}, {"trainyard.dev/member", "true"}}));
  for (const auto& [key, value] : selector.items())
    EXPECT_EQ(rendered(job, 0)["metadata"]["labels"][key], value);
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
