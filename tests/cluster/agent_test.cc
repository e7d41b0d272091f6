// Programs of their own under the agent, on real nodes: in an image that holds one static program
// and no libc, so that whatever the agent needs has come with it.
#include <iostream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/cluster_test.h"

namespace trainyard::cluster {
namespace {

using testing::HasSubstr;

class AgentTest : public testing_support::ClusterTest {
 protected:
  /// Two pods on two nodes, in each two processes of tests/cluster/ranks.
  static Json ranks_job(const std::string& name, const std::vector<std::string>& arguments) {
    Json job = trainer_job(name, 2, arguments);
    job["spec"]["agent"] = "Auto";
    job["spec"]["numProcPerNode"] = 2;
    Json& container = job["spec"]["template"]["spec"]["containers"][0];
    container["image"] = "localhost/trainyard-ranks:test";
    container["command"] = Json::array({"/usr/local/bin/ranks"});
    spread(job, Apart::kAlways);
    return job;
  }
  /// What the pod's ranks have printed.
  std::string words_of(const std::string& job, int index) const {
    return kubectl({"logs", member(job, index)}).output;
  }
};

TEST_F(AgentTest, FourProcessesOnTwoNodesMeet) {
  apply(ranks_job("four", {"meet"}));
  ASSERT_TRUE(runs("four", 2, 0)) << operator_log();
  const auto nodes = nodes_of_pods("four");
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_NE(nodes.begin()->second, nodes.rbegin()->second);
  EXPECT_TRUE(wait_until([&] {
    return words_of("four", 0).find("[rank-0] all 4 have met") != std::string::npos;
  })) << words_of("four", 0);
  EXPECT_THAT(words_of("four", 1), HasSubstr("rank 3 of 4, local rank 1 of 2, generation 1"));
  ASSERT_TRUE(reaches("four", "Complete")) << operator_log();
  EXPECT_EQ(job_status("four")["restarts"]["total"], 0);
}

TEST_F(AgentTest, AProcessThatFailsIsNamedAndAllStartAgain) {
  apply(ranks_job("four", {"fail", "3"}));
  ASSERT_TRUE(reaches("four", "Complete")) << operator_log();
  Json status = job_status("four");
  EXPECT_EQ(status["restarts"]["total"], 1);
  Json& attempt = status["attempts"][0];
  EXPECT_EQ(attempt["class"], "Application") << attempt.dump(2);
  EXPECT_EQ(attempt["exitCode"], 7) << attempt.dump(2);
  EXPECT_EQ(attempt["rank"], 3) << attempt.dump(2);
  EXPECT_THAT(attempt.value("podName", ""), HasSubstr("four-1-")) << attempt.dump(2);
  EXPECT_THAT(attempt.value("message", ""), HasSubstr("rank 3 finds no such layer"));
}

/// Under control groups v2 kubelets from 1.28 on have the kernel kill all processes of a container
/// that is out of memory, unless they are told otherwise: then no agent is left to start it again.
TEST_F(AgentTest, ARankThatTakesTooMuchMemoryTakesItsPodAlongWhereTheKernelKillsGroups) {
  Json job = ranks_job("four", {"eat", "3"});
  job["spec"]["failurePolicy"]["restartStrategy"] = "InPlace";
  job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {{"memory", "96Mi"}};
  apply(job);
  ASSERT_TRUE(runs("four", 2, 0)) << operator_log();
  const auto read = [&](const std::string& file) {
    return kubectl({"exec", member("four", 1), "--", "/bin/busybox", "cat", file}).output;
  };
  const std::string groups = read("/proc/self/cgroup");
  ASSERT_FALSE(groups.empty());
  const bool is_v2 = groups.starts_with("0::");
  const bool kills_groups = is_v2 && read("/sys/fs/cgroup/memory.oom.group").starts_with("1");
  std::cout << "control groups v" << (is_v2 ? 2 : 1) << ", of a container that is out of memory "
            << (kills_groups ? "all processes are" : "one process is") << " killed\n";
  ASSERT_TRUE(reaches("four", "Complete")) << operator_log();
  Json status = job_status("four");
  EXPECT_EQ(status["restarts"]["total"], 1) << status.dump(2);
  EXPECT_EQ(status["restarts"].value("inPlace", 0), kills_groups ? 0 : 1) << status.dump(2);
  EXPECT_EQ(status["restarts"].value("podReplacements", 0), kills_groups ? 1 : 0) << status.dump(2);
  Json& attempt = status["attempts"][0];
  EXPECT_EQ(attempt["class"], "Application") << attempt.dump(2);
  EXPECT_EQ(attempt["exitCode"], 137) << attempt.dump(2);
  EXPECT_THAT(attempt.value("podName", ""), HasSubstr("four-1-")) << attempt.dump(2);
}

/// Nothing else would end them for an hour.
TEST_F(AgentTest, ProcessesHearThatTheirPodIsToEnd) {
  Json job = ranks_job("four", {"fail", "none"});
  job["spec"]["checkpointPolicy"]["preemptionCheckpointSeconds"] = 3600;
  apply(job);
  ASSERT_TRUE(runs("four", 2, 0)) << operator_log();
  ASSERT_TRUE(wait_until([&] {
    return words_of("four", 0).find("rank 1 of 4") != std::string::npos &&
           words_of("four", 1).find("rank 3 of 4") != std::string::npos;
  })) << operator_log();
  patch("four", {{"suspend", true}});
  ASSERT_TRUE(reaches("four", "Suspended")) << operator_log();
  EXPECT_TRUE(wait_until([&] { return pods("four").empty(); }));
}

}  // namespace
}  // namespace trainyard::cluster
