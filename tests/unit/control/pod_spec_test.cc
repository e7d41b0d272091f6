#include "control/pod_spec.h"

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/worker_contract.h"

namespace trainyard::control {
namespace {

using std::chrono::seconds;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

TEST(PodSpecTest, SaysWhosePodItIsAndWhatItIsToKnow) {
  api::ObjectMeta metadata;
  metadata.name = "bert";
  metadata.namespace_name = "team";
  metadata.uid = "uid-7";
  api::TrainingJobSpec spec;
  spec.num_proc_per_node = 4;
  spec.checkpoint_policy.preemption_checkpoint = seconds(45);
  spec.pod_template.emplace();
  spec.pod_template->json = R"({"spec":{}})";
  const PodSpec pod = make_pod_spec(metadata, spec, 2, 5, 8);
  EXPECT_EQ(pod.name, pod_name("bert", "uid-7", 2, 5));
  EXPECT_EQ(pod.namespace_name, "team");
  EXPECT_EQ(pod.job_name, "bert");
  EXPECT_EQ(pod.job_uid, "uid-7");
  EXPECT_EQ(pod.node_index, 2);
  EXPECT_EQ(pod.created_generation, 5);
  EXPECT_TRUE(pod.member);
  EXPECT_EQ(pod.grace, seconds(75)) << "preemptionCheckpointSeconds and half a minute";
  EXPECT_EQ(pod.template_json, R"({"spec":{}})");
  EXPECT_THAT(
      pod.environment,
      UnorderedElementsAre(Pair("TRAINYARD_JOB", "bert"), Pair("TRAINYARD_JOB_UID", "uid-7"),
                           Pair("TRAINYARD_NAMESPACE", "team"), Pair("TRAINYARD_NODE_INDEX", "2"),
                           Pair("TRAINYARD_GENERATION", "5"), Pair(kEnvPodName, pod.name),
                           Pair("PET_NNODES", "8"), Pair("PET_NODE_RANK", "2"),
                           Pair("PET_NPROC_PER_NODE", "4")));
}

TEST(PodSpecTest, RanksOfAnEngineOutwaitTheLongestStall) {
  api::TrainingJobSpec spec;
  spec.engine.emplace();
  spec.progress_policy.max_stall = seconds(900);
  EXPECT_EQ(make_pod_spec({}, spec, 0, 1, 1).environment.at("TRAINYARD_PEER_TIMEOUT_SECONDS"),
            "1860")
      << "a start-up may take longer";
  spec.progress_policy.max_stall = seconds(9000);
  EXPECT_EQ(make_pod_spec({}, spec, 0, 1, 1).environment.at("TRAINYARD_PEER_TIMEOUT_SECONDS"),
            "9060");
}

TEST(PodSpecTest, WithoutATemplateTheClusterChoosesAndAutoIsOneRank) {
  api::TrainingJobSpec spec;
  spec.num_proc_per_node = api::kAutoProcPerNode;
  const PodSpec pod = make_pod_spec({}, spec, 0, 1, 1);
  EXPECT_THAT(pod.template_json, IsEmpty());
  EXPECT_EQ(pod.environment.at(kEnvNumProcPerNode), "1");
}

TEST(ConfigurationTest, WhatPodsAreMadeFromChangesIt) {
  api::TrainingJobSpec spec;
  spec.pod_template.emplace();
  spec.pod_template->json = R"({"spec":{}})";
  spec.engine.emplace();
  const std::string before = configuration_of(spec);
  EXPECT_EQ(before.size(), 16u);
  const std::vector<std::function<void(api::TrainingJobSpec&)>> edits = {
      [](auto& edited) { edited.pod_template->json = R"({"spec":{"a":1}})"; },
      [](auto& edited) { edited.rendezvous.port = 29501; },
      [](auto& edited) { edited.num_proc_per_node = 2; },
      [](auto& edited) { edited.engine->runtime.threads = 3; },
      [](auto& edited) { edited.checkpoint_policy.every_steps = 7; },
      [](auto& edited) { edited.progress_policy.max_stall = seconds(7); }};
  for (size_t i = 0; i < edits.size(); ++i) {
    api::TrainingJobSpec edited = spec;
    edits[i](edited);
    EXPECT_NE(configuration_of(edited), before) << i;
  }
}

TEST(ConfigurationTest, WhatPodsDoNotSeeDoesNot) {
  api::TrainingJobSpec spec;
  spec.pod_template.emplace();
  api::TrainingJobSpec edited = spec;
  edited.suspend = true;
  edited.managed_by = "another";
  edited.active_deadline = seconds(1);
  edited.ttl_after_finished = seconds(1);
  edited.num_nodes = 9;
  edited.elastic_policy.emplace();
  edited.failure_policy.budgets.push_back({});
  edited.success_policy.rules.push_back({});
  edited.progress_policy.max_stall = seconds(7);  // which pods of the engine alone are told
  edited.keep_failed_pods = 9;
  edited.scheduling.gang_timeout = seconds(1);
  EXPECT_EQ(configuration_of(edited), configuration_of(spec));
}

}  // namespace
}  // namespace trainyard::control
