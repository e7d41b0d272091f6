// Jobs that lose ranks, nodes' pods and time go on from their checkpoints on a volume that all
// nodes share, to the very state of a run that nothing happened to.
#include <csignal>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/exact.h"
#include "tests/support/saving_job_test.h"

namespace trainyard::cluster {
namespace {

using testing::HasSubstr;

class CheckpointTest : public testing_support::SavingJobTest {};

TEST_F(CheckpointTest, TrainingInPodsEndsInTheStateOfALocalRun) {
  constexpr int64_t kSteps = 120;
  Json job = saving_job(2, 2, kSteps);
  spread(job, Apart::kAlways);
  apply(job);
  ASSERT_TRUE(reaches(kJob, "Complete"));
  Json status = job_status(kJob);
  EXPECT_EQ(status["restarts"]["total"], 0);
  EXPECT_EQ(status["progress"]["step"], kSteps);
  EXPECT_EQ(status["checkpoint"]["lastStep"], kSteps);
  const std::string hash = trainyard_->state_hash(claim_ / kJob);
  job["spec"]["engine"]["data"]["tokens"] = Json::array({claim_ / "data" / "train"});
  EXPECT_TRUE(testing_support::same_hash(hash, trainyard_->state_hash_of_run(job)));
}

TEST_F(CheckpointTest, AnotherJobTrainsACompleteOneFurtherOnMoreRanks) {
  constexpr int64_t kSteps = 60;
  apply(saving_job(1, 1, kSteps));
  ASSERT_TRUE(reaches(kJob, "Complete"));
  Json job = saving_job(3, 1, 2 * kSteps);
  job["metadata"]["name"] = "longer";
  Json& engine = job["spec"]["engine"];
  engine["parallelism"] = {{"zeroStage", 3}};
  engine["startFrom"] = {{"checkpoint", "/first/g1-step-0000000060"}, {"what", "State"}};
  job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"].push_back(
      {{"name", "data"}, {"mountPath", "/first"}, {"subPath", kJob}, {"readOnly", true}});
  apply(job);
  ASSERT_TRUE(reaches("longer", "Complete"));
  EXPECT_EQ(job_status("longer")["progress"]["step"], 2 * kSteps);
  EXPECT_EQ(job_status("longer")["membership"]["layout"], "shard 3, ZeRO-3");
  const std::string hash = trainyard_->state_hash(claim_ / "longer");
  engine.erase("startFrom");
  engine["data"]["tokens"] = Json::array({claim_ / "data" / "train"});
  EXPECT_TRUE(testing_support::same_hash(hash, trainyard_->state_hash_of_run(job)));
}

TEST_F(CheckpointTest, AKilledRankCostsTheStepsSinceTheCheckpointAndNothingElse) {
  const Json job = saving_job(2);
  ASSERT_TRUE(trains(job));
  const std::string pod = member(kJob, 1);
  on_node(node_of(pod), {"kill", "-KILL", process_of(pod, 1)});
  ASSERT_TRUE(runs(kJob, 2, 1));
  ASSERT_TRUE(saves(2, newest_saved(1).step));
  Json attempt = settled_attempt(0);
  EXPECT_EQ(attempt["podName"], pod) << attempt.dump(2);
  EXPECT_EQ(attempt["rank"], 1) << attempt.dump(2);
  EXPECT_EQ(attempt["signal"], SIGKILL) << attempt.dump(2);
  EXPECT_GE(attempt["resumedFromStep"], kEverySteps) << attempt.dump(2);
  EXPECT_EQ(attempt["resumedFromStep"].get<int64_t>() + attempt["lostSteps"].get<int64_t>(),
            attempt["endStep"])
      << attempt.dump(2);
  expect_undisturbed(job);
}

TEST_F(CheckpointTest, AKilledRankStartsAgainInItsPod) {
  Json job = saving_job(2);
  job["spec"]["failurePolicy"]["restartStrategy"] = "InPlace";
  ASSERT_TRUE(trains(job));
  const auto pods = names_of_pods(kJob);
  const std::string pod = member(kJob, 1);
  on_node(node_of(pod), {"kill", "-KILL", process_of(pod, 1)});
  ASSERT_TRUE(saves(2, newest_saved(1).step));
  EXPECT_EQ(names_of_pods(kJob), pods);
  Json attempt = settled_attempt(0);
  EXPECT_EQ(attempt["podName"], pod) << attempt.dump(2);
  EXPECT_EQ(attempt["inPlace"], true) << attempt.dump(2);
  EXPECT_EQ(job_status(kJob)["restarts"]["inPlace"], 1);
  expect_undisturbed(job);
}

TEST_F(CheckpointTest, ASuspendedJobGoesOnWhereItStopped) {
  const Json job = saving_job(2);
  ASSERT_TRUE(trains(job));
  ASSERT_NO_FATAL_FAILURE(suspend());
  EXPECT_TRUE(names_of_pods(kJob).empty());
  const int64_t stopped_at = newest_saved().step;
  patch(kJob, {{"suspend", false}});
  ASSERT_TRUE(saves(2, stopped_at));
  Json status = job_status(kJob);
  EXPECT_EQ(status["restarts"]["total"], 0);
  Json attempt = settled_attempt(0);
  EXPECT_EQ(attempt["resumedFromStep"], stopped_at) << attempt.dump(2);
  EXPECT_EQ(attempt["lostSteps"], 0) << attempt.dump(2);
  expect_undisturbed(job);
}

TEST_F(CheckpointTest, ADrainedNodeCostsNoStep) {
  const Json job = saving_job(2);
  ASSERT_TRUE(trains(job));
  const std::string pod = member(kJob, 1);
  const std::string node = node_of(pod);
  ASSERT_NE(node, node_of(member(kJob, 0)));
  const auto drained =
      kubectl({"drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s"});
  EXPECT_EQ(drained.exit_code, 0) << drained.output << drained.errors;
  EXPECT_TRUE(runs(kJob, 2, 1));
  for (const auto& [name, there] : nodes_of_pods(kJob))
    EXPECT_NE(there, node) << name;
  EXPECT_TRUE(saves(2, newest_saved(1).step));
  Json attempt = settled_attempt(0);
  EXPECT_EQ(attempt["podName"], pod) << attempt.dump(2);
  EXPECT_EQ(attempt["class"], "Preemption") << attempt.dump(2);
  EXPECT_EQ(attempt["lostSteps"], 0) << attempt.dump(2);
  must({"uncordon", node});
  expect_undisturbed(job);
}

TEST_F(CheckpointTest, AStoppedRankIsNamedAndTheJobStartsAgain) {
  Json job = saving_job(2);
  job["spec"]["progressPolicy"] = {{"minStallSeconds", 10}, {"maxStallSeconds", 15}};
  ASSERT_TRUE(trains(job));
  const std::string pod = member(kJob, 1);
  on_node(node_of(pod), {"kill", "-STOP", process_of(pod, 1)});
  ASSERT_TRUE(runs(kJob, 2, 1));
  Json attempt = job_status(kJob)["attempts"][0];
  EXPECT_EQ(attempt["class"], "Hang") << attempt.dump(2);
  EXPECT_EQ(attempt["reason"], "Stalled") << attempt.dump(2);
  EXPECT_EQ(attempt["rank"], 1) << attempt.dump(2);
  EXPECT_THAT(attempt["message"], HasSubstr("its process stopped")) << attempt.dump(2);
  ASSERT_TRUE(saves(2, newest_saved(1).step));
  expect_undisturbed(job);
}

TEST_F(CheckpointTest, AVolumeOfOneNodeParksAJobOfTwoUntilItIsNamedAnother) {
  make_claim("own", "ReadWriteOnce");
  Json job = saving_job(2, 1, 20);
  job["spec"]["checkpointPolicy"]["storage"]["persistentVolumeClaim"]["claimName"] = "own";
  apply(job);
  ASSERT_TRUE(reaches(kJob, "Accepted", "False"));
  EXPECT_EQ(reason(kJob, "Accepted"), "StorageNotShared");
  EXPECT_THAT(message(kJob, "Accepted"), HasSubstr("claim own: access mode ReadWriteOnce"));
  EXPECT_TRUE(names_of_pods(kJob).empty());
  must({"delete", "tj", kJob});
  job["spec"]["numNodes"] = 1;
  apply(job);
  ASSERT_TRUE(reaches(kJob, "Complete")) << "one node may have it to itself";
}

/// A volume on one node with little room.
class FullVolumeTest : public testing_support::SavingJobTest {
 protected:
  static constexpr char kNode[] = "trainyard-worker";

  void SetUp() override {
    SavingJobTest::SetUp();
    if (IsSkipped()) return;
    make_claim("small", "ReadWriteOnce");
    on_node(kNode, {"mount", "-t", "tmpfs", "-o", "size=4m,mode=0777", "tmpfs", place()});
  }
  void TearDown() override {
    SavingJobTest::TearDown();
    if (!IsSkipped()) on_node(kNode, {"umount", "--lazy", place()});
  }
  /// On the node.
  std::string place() const { return "/shared/" + name_space() + "/small"; }

  /// Of the agent's metrics, the number of checkpoints that ended so.
  double checkpoints(const std::string& result) const {
    const std::string page = kubectl({"get", "--raw",
                                      "/api/v1/namespaces/" + name_space() + "/pods/" +
                                          member(kJob, 0) + ":9400/proxy/metrics"})
                                 .output;
    const size_t label = page.find("result=\"" + result + "\"");
    if (label == std::string::npos) return -1;
    return std::strtod(page.c_str() + page.find('}', label) + 1, nullptr);
  }
};

TEST_F(FullVolumeTest, CostsCheckpointsAndNothingElse) {
  Json job = saving_job(1);
  job["spec"]["checkpointPolicy"]["storage"]["persistentVolumeClaim"]["claimName"] = "small";
  job["spec"]["checkpointPolicy"]["maxAgeSeconds"] = 5;
  job["spec"]["template"]["spec"]["nodeSelector"] = {{"kubernetes.io/hostname", kNode}};
  apply(job);
  ASSERT_TRUE(runs(kJob, 1, 0));
  ASSERT_TRUE(wait_until([&] { return checkpoints("committed") >= 1; }));
  EXPECT_EQ(checkpoints("failed"), 0);
  // Again and again: what goes with an old checkpoint would be room for a new one, and so on.
  const std::string fill =
      "dd if=/dev/zero of=" + place() + "/rest bs=4k oflag=append conv=notrunc 2>/dev/null; true";
  ASSERT_TRUE(wait_until([&] {
    on_node(kNode, {"sh", "-c", fill});
    return condition(kJob, "CheckpointStale") == "True";
  })) << job_status(kJob).dump(2);
  EXPECT_GE(checkpoints("failed"), 1);
  const int64_t before = step();
  EXPECT_TRUE(wait_until([&] { return step() > before; })) << job_status(kJob).dump(2);
  on_node(kNode, {"rm", place() + "/rest"});
  ASSERT_TRUE(reaches(kJob, "CheckpointStale", "False"));
  EXPECT_EQ(job_status(kJob)["restarts"]["total"], 0);
  ASSERT_NO_FATAL_FAILURE(suspend());
  // Nothing but the node sees what is on it.
  const std::string copy = "/shared/" + name_space() + "/ckpt/copy";
  on_node(kNode, {"cp", "-r", place() + "/" + kJob, copy});
  expect_undisturbed(job, claim_ / "copy");
}

}  // namespace
}  // namespace trainyard::cluster
