// What training survives on real nodes: nodes that go and come back, with ranks on them that write
// on, and a while without the operator and without the API server.
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/saving_job_test.h"

namespace trainyard::cluster {
namespace {

namespace fs = std::filesystem;

constexpr char kSystem[] = "trainyard-system";
constexpr char kOperator[] = "deployment/trainyard-operator";
constexpr char kControlPlane[] = "control-plane";
/// Longer than any lease, back-off and heartbeat of those who have to do without.
constexpr std::chrono::seconds kAway{60};

class NodeOutageTest : public testing_support::SavingJobTest {
 protected:
  /// Of which two do not fit on one node.
  void make_large(Json& job) const {
    const Json node = get({"node", "trainyard-worker"});
    const int64_t kibibytes =
        std::stoll(node["status"]["allocatable"]["memory"].get<std::string>());
    const std::string most = std::to_string(kibibytes / 10 * 6) + "Ki";
    Json& resources = job["spec"]["template"]["spec"]["containers"][0]["resources"];
    resources["requests"]["memory"] = most;
    resources["limits"]["memory"] = most;
  }
  Json lineage(int64_t generation) const {
    std::ifstream file(claim_ / kJob / "lineage" / (std::to_string(generation) + ".json"));
    return Json::parse(file, nullptr, false);
  }
};

TEST_F(NodeOutageTest, AnElasticJobShrinksToTheNodesThatAreLeftAndGrowsBack) {
  Json job = saving_job(2);
  make_large(job);
  job["spec"]["elasticPolicy"] = {
      {"minNodes", 1}, {"pendingTimeoutSeconds", 3}, {"scaleUpSnoozeSeconds", 3}};
  ASSERT_TRUE(trains(job));
  const std::string pod = member(kJob, 1);
  const std::string node = node_of(pod);
  disturb("kill", "start", node);
  ASSERT_TRUE(wait_until([&] { return job_status(kJob)["nodes"].value("target", 0) == 1; }))
      << job_status(kJob).dump(2);
  const int64_t alone = generation();
  ASSERT_TRUE(saves(alone, newest_saved().step)) << "one node goes on";
  const Json stuck = get({"pod", pod});
  ASSERT_TRUE(stuck.is_object()) << "a pod cannot be gone before its kubelet has said so";
  EXPECT_TRUE(stuck["metadata"].contains("deletionTimestamp"));
  EXPECT_EQ(condition(kJob, "Degraded"), "True");
  EXPECT_EQ(job_status(kJob)["restarts"]["total"], 1);

  restore();
  ASSERT_TRUE(wait_until([&] { return job_status(kJob)["nodes"].value("target", 0) == 2; }))
      << job_status(kJob).dump(2);
  ASSERT_TRUE(saves(generation(), newest_saved().step)) << "both go on";
  Json status = job_status(kJob);
  EXPECT_EQ(status["restarts"]["total"], 1) << "changes of size are no restarts";
  EXPECT_TRUE(wait_until([&] { return last_attempt().value("lostSteps", -1) == 0; }))
      << "growing costs no step: " << last_attempt().dump(2);
  EXPECT_EQ(condition(kJob, "Degraded"), "False");
  expect_undisturbed(job);
}

struct Fault {
  const char* name;
  const char* act;
  const char* undo;
};

class ZombieTest : public NodeOutageTest, public testing::WithParamInterface<Fault> {};

/// A job of one node needs no other rank: where its node loses the network alone, it trains on, and
/// its storage is there still.
TEST_P(ZombieTest, RanksThatAreHeldForDeadChangeNothing) {
  const Json job = saving_job(1);
  ASSERT_TRUE(trains(job));
  const std::string pod = member(kJob, 0);
  const std::string node = node_of(pod);
  disturb(GetParam().act, GetParam().undo, node);
  ASSERT_TRUE(saves(2, kEverySteps));
  EXPECT_NE(node_of(member(kJob, 0)), node);
  const int64_t fork = lineage(2)["forkStep"];
  EXPECT_GE(fork, kEverySteps);
  if (std::string(GetParam().act) == "disconnect") {
    EXPECT_TRUE(saves(1, fork)) << "the ranks on that node write on";
  }
  restore();
  ASSERT_TRUE(wait_until([&] { return get({"pod", pod}).is_null(); }));
  const int64_t zombie = newest_saved(1).step;
  ASSERT_TRUE(saves(2, newest_saved(2).step));
  EXPECT_LE(newest_saved(1).step, zombie) << "it has ended";
  EXPECT_TRUE(fs::read_symlink(claim_ / kJob / "latest").string().starts_with("g2-"));
  EXPECT_EQ(lineage(2)["parentGeneration"], 1);
  EXPECT_EQ(lineage(2)["forkStep"], fork);
  EXPECT_EQ(job_status(kJob)["restarts"]["total"], 1);
  EXPECT_EQ(job_status(kJob)["attempts"][0]["node"], node);
  expect_undisturbed(job);
}

INSTANTIATE_TEST_SUITE_P(Ways, ZombieTest,
                         testing::Values(Fault{"Hang", "pause", "unpause"},
                                         Fault{"Unplugged", "disconnect", "connect"}),
                         [](const auto& way) { return way.param.name; });

class ControlOutageTest : public testing_support::SavingJobTest {
 protected:
  void TearDown() override {
    if (IsSkipped()) return;
    if (stopped_) resume_server();
    SavingJobTest::TearDown();
  }

  void scale_operator(int replicas) const {
    must({"scale", "--namespace", kSystem, kOperator, "--replicas", std::to_string(replicas)});
    must({"rollout", "status", "--namespace", kSystem, kOperator, "--timeout=60s"});
  }
  void stop_server() {
    on_node(kControlPlane, {"pkill", "-STOP", "-x", "kube-apiserver"});
    stopped_ = true;
  }
  void resume_server() {
    on_node(kControlPlane, {"pkill", "-CONT", "-x", "kube-apiserver"});
    stopped_ = false;
    EXPECT_TRUE(wait_until([&] { return kubectl({"get", "--raw", "/readyz"}).exit_code == 0; }));
  }
  /// For as long as that nobody answers; steps are saved meanwhile, to the end.
  void expect_training() const {
    const auto end = std::chrono::steady_clock::now() + kAway;
    while (std::chrono::steady_clock::now() < end)
      ASSERT_TRUE(saves(1, newest_saved().step));
  }
  void expect_nothing_happened(const Json& job, const std::set<std::string>& pods) {
    const int64_t reached = newest_saved().step;
    EXPECT_TRUE(wait_until([&] { return step() > reached; })) << job_status(kJob).dump(2);
    EXPECT_EQ(names_of_pods(kJob), pods);
    Json status = job_status(kJob);
    EXPECT_EQ(status["restarts"]["total"], 0) << status.dump(2);
    EXPECT_EQ(generation(), 1);
    expect_undisturbed(job);
  }

 private:
  bool stopped_ = false;
};

TEST_F(ControlOutageTest, TrainingGoesOnWithoutTheOperator) {
  const Json job = saving_job(2);
  ASSERT_TRUE(trains(job));
  const std::set<std::string> pods = names_of_pods(kJob);
  scale_operator(0);
  EXPECT_TRUE(wait_until([&] {
    return must({"get", "pods", "--namespace", kSystem, "--output=name"}).empty();
  }));
  expect_training();
  scale_operator(1);
  expect_nothing_happened(job, pods);
}

TEST_F(ControlOutageTest, TrainingGoesOnWithoutTheApiServer) {
  const Json job = saving_job(2);
  ASSERT_TRUE(trains(job));
  const std::set<std::string> pods = names_of_pods(kJob);
  stop_server();
  expect_training();
  resume_server();
  expect_nothing_happened(job, pods);
}

}  // namespace
}  // namespace trainyard::cluster
