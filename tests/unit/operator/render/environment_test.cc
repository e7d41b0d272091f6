#include "operator/render/environment.h"

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "agent/agent_options.h"
#include "common/api/validate.h"
#include "operator/render/names.h"
#include "tests/unit/operator/render/jobs.h"

namespace trainyard::render {
namespace {

using nlohmann::json;

TEST(EnvironmentTest, NamesTorchrunsWorldOfAForeignImage) {
  const auto variables = environment(rendered(job_of(kForeign), 2));
  EXPECT_EQ(variables.at("PET_NNODES"), "3");
  EXPECT_EQ(variables.at("PET_NODE_RANK"), "2");
  EXPECT_EQ(variables.at("PET_NPROC_PER_NODE"), "1");
  EXPECT_EQ(variables.at("PET_MASTER_ADDR"), "bert-0.bert.team-a.svc");
  EXPECT_EQ(variables.at("PET_MASTER_PORT"), "1234");
  EXPECT_EQ(variables.at("MASTER_ADDR"), "bert-0.bert.team-a.svc");
  EXPECT_EQ(variables.at("MASTER_PORT"), "1234");
  EXPECT_EQ(variables.at("PET_RDZV_ENDPOINT"), "bert-0.bert.team-a.svc:1234");
  EXPECT_EQ(variables.at("PET_MAX_RESTARTS"), "0");
  EXPECT_EQ(variables.at("HF_HOME"), "/hf");
}

TEST(EnvironmentTest, CountsRanksOnlyWhereAPodIsOne) {
  const auto single = environment(rendered(job_of(kForeign), 2));
  EXPECT_EQ(single.at("RANK"), "2");
  EXPECT_EQ(single.at("WORLD_SIZE"), "3");
  EXPECT_EQ(single.at("LOCAL_RANK"), "0");
  EXPECT_EQ(single.at("LOCAL_WORLD_SIZE"), "1");
  EXPECT_EQ(single.at("TORCHELASTIC_RESTART_COUNT"), "1") << "generation 2";
  const auto many = environment(
      rendered(job_of(R"({"numNodes":3,"numProcPerNode":8,"agent":"None","template":{"spec":{
          "containers":[{"name":"trainer","image":"t","command":["torchrun","t.py"]}]}}})"),
               2));
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})
    EXPECT_FALSE(many.contains(name)) << name;
  EXPECT_EQ(many.at("PET_NPROC_PER_NODE"), "8");
}

TEST(EnvironmentTest, NamesJaxsProcesses) {
  const auto variables = environment(rendered(job_of(kForeign), 2));
  EXPECT_EQ(variables.at("JAX_COORDINATOR_ADDRESS"), "bert-0.bert.team-a.svc:1234");
  EXPECT_EQ(variables.at("JAX_NUM_PROCESSES"), "3");
  EXPECT_EQ(variables.at("JAX_PROCESS_ID"), "2");
}

TEST(EnvironmentTest, SetsNothingButReservedNames) {
  for (const char* spec : {kForeign, kEngine, kInjected}) {
    const api::TrainingJob job = job_of(spec);
    for (const json& entry :
         environment_of(job.metadata, job.spec, pod_of(job, 1), {"worker:9", "control:1"}))
      EXPECT_TRUE(api::is_reserved_env(entry["name"].get<std::string>())) << entry;
  }
}

TEST(EnvironmentTest, SetsEachNameOnce) {
  for (const char* spec : {kForeign, kEngine, kInjected}) {
    std::map<std::string, int> times;
    const json pod = rendered(job_of(spec), 1);
    for (const json& entry : trainer_of(pod)["env"])
      ++times[entry["name"]];
    for (const auto& [name, count] : times)
      EXPECT_EQ(count, 1) << name;
  }
}

/// The other side of the contract: what reads these variables in the pod.
TEST(EnvironmentTest, IsWhatThePodsSupervisorReads) {
  auto variables = environment(rendered(job_of(kEngine), 1, 3));
  variables["TRAINYARD_POD_UID"] = "pod-uid";               // of the downward API
  variables["TRAINYARD_CONTROL_ADDRESS"] = "control:7000";  // of whoever serves the stream
  const auto options = agent::read_agent_options(
      {},
      [&](const char* name) -> const char* {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      "/usr/bin/trainyard-agent");
  ASSERT_TRUE(options.has_value()) << options.error().message;
  EXPECT_EQ(options->job_name, "bert");
  EXPECT_EQ(options->job_uid, "uid-1");
  EXPECT_EQ(options->node_index, 1);
  EXPECT_EQ(options->generation, 3);
  EXPECT_EQ(options->pod_name, control::pod_name("bert", "uid-1", 1, 3));
  EXPECT_EQ(options->stop_grace, std::chrono::seconds(60));
}

// ---- The engine's pods -------------------------------------------------------------------------

}  // namespace
}  // namespace trainyard::render
