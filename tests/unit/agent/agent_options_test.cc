#include "agent/agent_options.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/rank_environment.h"
#include "common/worker_contract.h"

namespace trainyard::agent {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::map<std::string, std::string> good_environment() {
  return {{"TRAINYARD_JOB", "tiny"},
          {"TRAINYARD_JOB_UID", "job-1"},
          {"TRAINYARD_POD_NAME", "tiny-0-abcde"},
          {"TRAINYARD_POD_UID", "pod-1"},
          {"TRAINYARD_NODE_INDEX", "2"},
          {"TRAINYARD_GENERATION", "3"},
          {"TRAINYARD_CONTROL_ADDRESS", "unix:/tmp/x/control.sock"}};
}

Result<AgentOptions> read(const std::map<std::string, std::string>& variables,
                          const std::vector<std::string>& arguments = {}) {
  return read_agent_options(
      arguments,
      [&](const char* name) {
        const auto it = variables.find(name);
        return it == variables.end() ? nullptr : it->second.c_str();
      },
      "/opt/trainyard/bin/trainyard-agent");
}

TEST(AgentOptionsTest, ReadsWhatThePodSays) {
  const auto options = read(good_environment());
  ASSERT_TRUE(options) << options.error().message;
  EXPECT_EQ(options->node_index, 2);
  EXPECT_EQ(options->generation, 3);
  EXPECT_EQ(options->job_namespace, "");
  EXPECT_TRUE(options->is_engine());
  EXPECT_EQ(options->worker, "/opt/trainyard/bin/trainyard-worker");
  EXPECT_FALSE(options->orphan_limit) << "in a cluster training goes on without a coordinator";
}

TEST(AgentOptionsTest, KnowsTheNamespaceOfItsJobWhereThereIsOne) {
  auto environment = good_environment();
  environment["TRAINYARD_NAMESPACE"] = "team";
  const auto options = read(environment);
  ASSERT_TRUE(options) << options.error().message;
  EXPECT_EQ(options->job_namespace, "team");
}

TEST(AgentOptionsTest, TakesAForeignCommandAfterDashes) {
  const auto options = read(good_environment(), {"--", "python3", "-c", "pass"});
  ASSERT_TRUE(options) << options.error().message;
  EXPECT_THAT(options->command, ElementsAre("python3", "-c", "pass"));
  EXPECT_FALSE(options->is_engine());
}

TEST(AgentOptionsTest, NamesTheVariableThatIsWrong) {
  for (const auto& [name, value] :
       std::multimap<std::string, std::string>{{"TRAINYARD_JOB_UID", ""},
                                               {"TRAINYARD_NODE_INDEX", "two"},
                                               {"TRAINYARD_NODE_INDEX", "-1"},
                                               {"TRAINYARD_GENERATION", "3x"},
                                               {"TRAINYARD_GENERATION", "99999999999999999999"},
                                               {"TRAINYARD_ORPHAN_SECONDS", "0"},
                                               {"TRAINYARD_STOP_GRACE_SECONDS", "1e3"}}) {
    auto variables = good_environment();
    variables[name] = value;
    const auto options = read(variables);
    ASSERT_FALSE(options) << name;
    EXPECT_EQ(options.error().code, ErrorCode::kInvalidConfig);
    EXPECT_THAT(options.error().message, HasSubstr(name));
  }
}

TEST(AgentOptionsTest, RefusesArgumentsItDoesNotKnow) {
  EXPECT_FALSE(read(good_environment(), {"--verbose"}));
  EXPECT_FALSE(read(good_environment(), {"--"}));
  EXPECT_FALSE(read(good_environment(), {"install"})) << "where to?";
}

RankLaunch third_of_four() {
  return {.rank = 2,
          .world_size = 4,
          .local_rank = 0,
          .local_world_size = 2,
          .node_rank = 1,
          .node_count = 2,
          .generation = 3};
}

TEST(RankEnvironmentTest, CountsProcessesAsTorchrunDoes) {
  AgentOptions options;
  options.job_uid = "job-1";
  options.command = {"train"};
  const auto environment =
      rank_environment(options, third_of_four(),
                       {"PATH=/bin", "RANK=99", "MASTER_ADDR=10.0.0.1", "PET_NNODES=2"}, 3, 4);
  for (const char* entry : {"PATH=/bin",
                            "RANK=2",
                            "WORLD_SIZE=4",
                            "LOCAL_RANK=0",
                            "LOCAL_WORLD_SIZE=2",
                            "NODE_RANK=1",
                            "GROUP_RANK=1",
                            "GROUP_WORLD_SIZE=2",
                            "MASTER_ADDR=10.0.0.1",
                            "MASTER_PORT=29500",
                            "TORCHELASTIC_RUN_ID=job-1",
                            "TORCHELASTIC_RESTART_COUNT=2",
                            "TORCHELASTIC_MAX_RESTARTS=0",
                            "JAX_COORDINATOR_ADDRESS=10.0.0.1:29500",
                            "JAX_PROCESS_ID=2",
                            "JAX_NUM_PROCESSES=4",
                            "PET_NNODES=2",
                            "TRAINYARD_PROGRESS_FD=3",
                            "TRAINYARD_AGENT_FD=4",
                            "TRAINYARD_GENERATION=3"}) {
    EXPECT_THAT(environment, Contains(entry));
  }
  EXPECT_THAT(environment, Not(Contains("RANK=99")));
}

TEST(RankEnvironmentTest, RanksOfTheEngineNeedNoJax) {
  EXPECT_THAT(rank_environment({}, third_of_four(), {}, 3, 4), Not(Contains(StartsWith("JAX_"))));
}

TEST(RankEnvironmentTest, GpusAreCountedAsTheDriverCountsThem) {
  EXPECT_THAT(rank_environment({}, third_of_four(), {}, 3, 4),
              Contains("CUDA_DEVICE_ORDER=PCI_BUS_ID"));
  EXPECT_THAT(rank_environment({}, third_of_four(), {"CUDA_DEVICE_ORDER=FASTEST_FIRST"}, 3, 4),
              Contains("CUDA_DEVICE_ORDER=FASTEST_FIRST"));
}

TEST(RankEnvironmentTest, AMemoryFileIsNamedOnlyWhereThereIsOne) {
  const std::vector<std::string> base = {"TRAINYARD_MEMORY_FD=9"};  // an agent's in a rank
  EXPECT_THAT(rank_environment({}, third_of_four(), base, 3, 4),
              Not(Contains(StartsWith("TRAINYARD_MEMORY_FD"))));
  EXPECT_THAT(rank_environment({}, third_of_four(), base, 3, 4, 5),
              Contains("TRAINYARD_MEMORY_FD=5"));
}

TEST(RankEnvironmentTest, WhatIsForRanksHasItsOwnNameThere) {
  const auto environment = rank_environment({}, third_of_four(),
                                            {"TRAINYARD_FOR_RANKS_LD_PRELOAD=a.so b.so",
                                             "LD_PRELOAD=", "TRAINYARD_FOR_RANKS_LD_AUDIT=c.so",
                                             "TRAINYARD_FOR_RANKS_=x", "TRAINYARD_JOB=j"},
                                            3, 4);
  EXPECT_THAT(environment, Contains("LD_PRELOAD=a.so b.so"));
  EXPECT_THAT(environment, Contains("LD_AUDIT=c.so"));
  EXPECT_THAT(environment, Contains("TRAINYARD_JOB=j"));
  EXPECT_THAT(environment, Not(Contains(StartsWith("TRAINYARD_FOR_RANKS_"))));
  EXPECT_THAT(environment, Not(Contains(StartsWith("="))));
}

}  // namespace
}  // namespace trainyard::agent
