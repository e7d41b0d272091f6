#include "cli/run/foreign_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/api/decode.h"

namespace trainyard::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

bool nothing_is_set(const std::string& /*name*/) { return false; }

api::TrainingJobSpec spec_with(const std::string& containers) {
  const auto job = api::decode_training_job(
      "{apiVersion: trainyard.dev/v1alpha1, kind: TrainingJob, metadata: {name: a}, "
      "spec: {template: {spec: {containers: [" +
          containers + "]}}}}",
      {.file = "job.yaml"});
  EXPECT_TRUE(job) << job.error().message;
  return job->spec;
}

TEST(ForeignProgramTest, TheCommandComesFromTheTrainerContainer) {
  api::TrainingJobSpec spec;
  EXPECT_FALSE(foreign_command(spec)) << "neither engine nor command";
  spec.pod_template.emplace();
  spec.pod_template->containers.resize(2);
  spec.pod_template->containers[0].name = "sidecar";
  spec.pod_template->containers[0].command = {"log"};
  spec.pod_template->containers[1].name = "trainer";
  spec.pod_template->containers[1].command = {"python3"};
  spec.pod_template->containers[1].args = {"train.py"};
  EXPECT_THAT(*foreign_command(spec), ElementsAre("python3", "train.py"));
  spec.engine.emplace();
  EXPECT_THAT(*foreign_command(spec), IsEmpty());
}

TEST(ForeignProgramTest, TheVariablesAreThoseOfTheContainerThatRuns) {
  api::TrainingJobSpec spec = spec_with(
      "{name: trainer, image: i, command: [c], env: [{name: LOG, value: old}, {name: LOG, value: "
      "mine}]}, "
      "{name: sidecar, image: i, env: [{name: LOG, value: its}, {name: PORT, value: '80'}]}");
  EXPECT_THAT(*foreign_environment(spec, nothing_is_set), ElementsAre(Pair("LOG", "mine")));
  spec.engine.emplace();
  EXPECT_THAT(*foreign_environment(spec, nothing_is_set), IsEmpty())
      << "its ranks are the engine's";
  EXPECT_THAT(*foreign_environment(
                  spec_with("{name: any, image: i, command: [c], env: [{name: A, value: b}]}"),
                  nothing_is_set),
              ElementsAre(Pair("A", "b")));
}

TEST(ForeignProgramTest, WhatOnlyAClusterKnowsComesFromTheEnvironmentOrIsAskedFor) {
  const auto spec = spec_with(
      "{name: sidecar, image: i, env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: "
      "spec.nodeName}}}]}, "
      "{name: trainer, image: i, command: [c], env: [{name: A, value: b}, "
      "{name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: t}}}]}");
  const auto refused = foreign_environment(spec, nothing_is_set);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(refused.error().message,
              HasSubstr("spec.template.spec.containers[1].env[1] (TOKEN): found valueFrom"));
  EXPECT_THAT(refused.error().message, HasSubstr("set TOKEN in the environment of trainyard run"));
  const auto is_token = [](const std::string& name) { return name == "TOKEN"; };
  EXPECT_THAT(*foreign_environment(spec, is_token), ElementsAre(Pair("A", "b")))
      << "the run's own goes on to the program";
}

TEST(ForeignProgramTest, WhatMayBeMissingInAClusterMayBeMissingHere) {
  for (const char* reference : {"secretKeyRef", "configMapKeyRef"}) {
    const auto spec =
        spec_with("{name: trainer, image: i, command: [c], env: [{name: TOKEN, valueFrom: {" +
                  std::string(reference) + ": {name: s, key: t, optional: true}}}]}");
    EXPECT_THAT(*foreign_environment(spec, nothing_is_set), IsEmpty());
  }
}

}  // namespace
}  // namespace trainyard::cli
