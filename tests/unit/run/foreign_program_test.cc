#include "cli/run/foreign_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/api/decode.h"

namespace trainyard::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using control::local::ProgramVariable;

std::optional<std::string> nothing_is_set(const std::string& /*name*/) { return std::nullopt; }

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
  EXPECT_THAT(*foreign_environment(spec, nothing_is_set, {}),
              ElementsAre(ProgramVariable{"LOG", "old"}, ProgramVariable{"LOG", "mine"}));
  spec.engine.emplace();
  EXPECT_THAT(*foreign_environment(spec, nothing_is_set, {}), IsEmpty())
      << "its ranks are the engine's";
  EXPECT_THAT(*foreign_environment(
                  spec_with("{name: any, image: i, command: [c], env: [{name: A, value: b}]}"),
                  nothing_is_set, {}),
              ElementsAre(ProgramVariable{"A", "b"}));
}

TEST(ForeignProgramTest, WhatOnlyAClusterKnowsComesFromTheEnvironmentOrIsAskedFor) {
  const auto spec = spec_with(
      "{name: sidecar, image: i, env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: "
      "spec.nodeName}}}]}, "
      "{name: trainer, image: i, command: [c], env: [{name: A, value: b}, "
      "{name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: t}}}]}");
  const auto refused = foreign_environment(spec, nothing_is_set, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(refused.error().message,
              HasSubstr("spec.template.spec.containers[1].env[1] (TOKEN): found valueFrom"));
  EXPECT_THAT(refused.error().message, HasSubstr("set TOKEN in the environment of trainyard run"));
  const auto is_token = [](const std::string& name) {
    return name == "TOKEN" ? std::optional<std::string>("$(A)") : std::nullopt;
  };
  EXPECT_THAT(*foreign_environment(spec, is_token, {}),
              ElementsAre(ProgramVariable{"A", "b"}, ProgramVariable{"TOKEN", "$(A)", false}))
      << "the run's own goes on to the program";
}

TEST(ForeignProgramTest, WhatMayBeMissingInAClusterMayBeMissingHere) {
  for (const char* reference : {"secretKeyRef", "configMapKeyRef"}) {
    const auto spec =
        spec_with("{name: trainer, image: i, command: [c], env: [{name: TOKEN, valueFrom: {" +
                  std::string(reference) + ": {name: s, key: t, optional: true}}}]}");
    EXPECT_THAT(*foreign_environment(spec, nothing_is_set, {}), IsEmpty());
  }
}

TEST(ForeignProgramTest, EnvFromNeedsAFileInPlaceOfTheClusters) {
  const auto spec = spec_with(
      "{name: trainer, image: i, command: [c], envFrom: [{prefix: P_, configMapRef: {name: m}}, "
      "{secretRef: {name: s, optional: true}}], env: [{name: B, value: c}]}");
  const auto refused = foreign_environment(spec, nothing_is_set, {});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              HasSubstr("spec.template.spec.containers[0].envFrom[0]: found \"m\""));
  EXPECT_THAT(refused.error().message, HasSubstr("--env-from m=FILE"));
  EXPECT_THAT(*foreign_environment(spec, nothing_is_set, {{"m", "# one\n\n A=$(B) c=d\r\nE=\n"}}),
              ElementsAre(ProgramVariable{"P_A", "$(B) c=d", false},
                          ProgramVariable{"P_E", "", false}, ProgramVariable{"B", "c"}));
  const auto broken = foreign_environment(spec, nothing_is_set, {{"m", "A=b\nC\n"}});
  ASSERT_FALSE(broken);
  EXPECT_THAT(broken.error().message, HasSubstr("line 2 of the file for m: found \"C\""));
}

TEST(ForeignProgramTest, FoldersThatThisMachineLacksAreNamed) {
  const auto message = [](const std::string& fields) {
    const Status fit =
        check_foreign_folders(spec_with("{name: trainer, image: i, command: [c], " + fields + "}"));
    return fit ? std::string() : fit.error().message;
  };
  EXPECT_EQ(message("workingDir: /tmp"), "");
  EXPECT_THAT(message("workingDir: /no/such"),
              HasSubstr("containers[0].workingDir: found \"/no/such\""));
  EXPECT_EQ(message("volumeMounts: [{name: trainyard-shm, mountPath: /tmp}]"), "");
  EXPECT_THAT(message("volumeMounts: [{name: trainyard-shm, mountPath: /no/such}]"),
              HasSubstr("containers[0].volumeMounts[0].mountPath: found \"/no/such\""));
}

TEST(ForeignProgramTest, WhatIsLeftOutIsNamed) {
  EXPECT_THAT(unapplied_fields(spec_with(
                  "{name: side, image: i}, {name: trainer, image: i, command: [c], resources: "
                  "{limits: {cpu: 1}}, lifecycle: {preStop: {sleep: {seconds: 1}}}}")),
              ElementsAre("spec.template.spec.containers[0] (side)",
                          "spec.template.spec.containers[1].lifecycle"));
  EXPECT_THAT(unapplied_fields(spec_with("{name: trainer, image: i, command: [c]}")), IsEmpty());
}

}  // namespace
}  // namespace trainyard::cli
