// What a view of a job is made of, what is told of changes, and the job's own object.
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/unit/operator/cluster/kube_cluster_world.h"

namespace trainyard::cluster {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;
using testing_support::status_body;

class KubeClusterTest : public KubeClusterWorld {
 protected:
  KubeClusterTest() { server_.jobs = {job_object("True")}; }

  /// What the server has of the job's pods when it is asked for them.
  void there(const std::vector<json>& pods) {
    server_.script.answer(200,
                          json{{"metadata", {{"resourceVersion", "9"}}}, {"items", pods}}.dump());
  }
  std::vector<std::string> observed_pods() {
    start();
    return names_of(look().pods);
  }
};

// ---- Pods as the server has them ---------------------------------------------------------------

TEST_F(KubeClusterTest, AViewIsMadeOfTheCacheAlone) {
  server_.pods = {pod_object(1)};
  EXPECT_THAT(observed_pods(), ElementsAre("train-1-aaaaa")) << "though it shows a gang with a gap";
  EXPECT_THAT(server_.script.requests(), IsEmpty());
}

TEST_F(KubeClusterTest, TheServerIsAskedForAllPodsOfTheJob) {
  server_.pods = {pod_object(1)};
  start();
  there({pod_object(0), pod_object(1)});
  const auto listed = cluster_->list_pods(look());
  ASSERT_TRUE(listed.has_value());
  EXPECT_THAT(names_of(*listed), UnorderedElementsAre("train-0-aaaaa", "train-1-aaaaa"));
  EXPECT_EQ((*listed)[0].node_state, control::NodeState::kGone) << "there is no node";
  EXPECT_THAT(server_.script.last_request().query, HasSubstr(std::string("job-uid%3D") + kUid));
}

TEST_F(KubeClusterTest, APodOfAnotherOwnerIsNoneOfTheJobsWhateverItsLabels) {
  start();
  there({pod_object(0, "another-job"), pod_object(1)});
  const auto listed = cluster_->list_pods(look());
  ASSERT_TRUE(listed.has_value());
  EXPECT_THAT(names_of(*listed), ElementsAre("train-1-aaaaa"));
}

TEST_F(KubeClusterTest, APodOfAnotherNamespaceIsNoneOfTheJobsWhateverItsOwner) {
  namespaces_ = {};
  json elsewhere = pod_object(1);
  elsewhere["metadata"]["namespace"] = "other";
  server_.pods = {pod_object(0), elsewhere};
  EXPECT_THAT(observed_pods(), ElementsAre("train-0-aaaaa"));
  EXPECT_EQ(cluster_->job_of({"n", "train-0-aaaaa", "uid-of-train-0-aaaaa"}), kUid);
  EXPECT_EQ(cluster_->job_of({"other", "train-1-aaaaa", "uid-of-train-1-aaaaa"}), "");
}

TEST_F(KubeClusterTest, APodOfAJobThatIsNotThereIsNobodys) {
  server_.pods = {pod_object(0), pod_object(1, "uid-of-another")};
  start();
  EXPECT_EQ(cluster_->job_of({"n", "train-0-aaaaa", "uid-of-train-0-aaaaa"}), kUid);
  EXPECT_EQ(cluster_->job_of({"n", "train-0-aaaaa", "uid-of-another-pod"}), "");
  EXPECT_EQ(cluster_->job_of({"n", "train-1-aaaaa", "uid-of-train-1-aaaaa"}), "");
}

TEST_F(KubeClusterTest, ShowsTheJobsAsTheyWereSeenLast) {
  start();
  const auto jobs = cluster_->cached_jobs();
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_EQ(jobs[0]->metadata.namespace_name, "n");
  EXPECT_EQ(jobs[0]->metadata.name, "train");
  EXPECT_FALSE(jobs[0]->status.conditions.empty());
}

// ---- Nodes -------------------------------------------------------------------------------------

TEST_F(KubeClusterTest, WhoseNodeComesTurnsOrGoesIsLookedAt) {
  server_.pods = {pod_object(0), pod_object(1)};
  start();
  server_.push("nodes", "ADDED", node_object("node", 10));
  EXPECT_THAT(hear(2), ElementsAre("train", "train")) << "a pod each";
  server_.push("nodes", "MODIFIED", node_object("node", 11, false));
  EXPECT_THAT(hear(2), ElementsAre("train", "train"));
  EXPECT_EQ(look().pods[0].node_state, control::NodeState::kNotReady);
  server_.push("nodes", "MODIFIED", node_object("node", 12, false));  // a heartbeat
  server_.push("nodes", "DELETED", node_object("node", 13, false));
  EXPECT_THAT(hear(2), ElementsAre("train", "train"));
  EXPECT_EQ(look().pods[0].node_state, control::NodeState::kGone);
}

TEST_F(KubeClusterTest, NodesOfOthersConcernNobody) {
  server_.pods = {pod_object(0), pod_object(1)};
  start();
  server_.push("nodes", "ADDED", node_object("elsewhere", 10));
  server_.push("nodes", "MODIFIED", node_object("elsewhere", 11, false));
  server_.push("nodes", "ADDED", node_object("node", 12));
  EXPECT_EQ(hear(2).size(), 2U);
}

TEST_F(KubeClusterTest, RoomIsNewsForWhoRunsWithFewerNodesThanItWants) {
  json degraded = job_object("True");
  degraded["spec"]["numNodes"] = 3;
  degraded["spec"]["elasticPolicy"] = {{"minNodes", 1}};
  server_.jobs = {degraded};
  start();
  server_.push("nodes", "ADDED", node_object("more", 10));
  EXPECT_THAT(hear(1), ElementsAre("train"));
  json larger = node_object("more", 11);
  larger["status"]["allocatable"]["pods"] = "20";
  server_.push("nodes", "MODIFIED", larger);
  EXPECT_THAT(hear(1), ElementsAre("train"));
}

TEST_F(KubeClusterTest, WithoutTheRightToSeeNodesEveryNodeIsGood) {
  server_.nodes_status = 403;
  server_.pods = {pod_object(0), pod_object(1)};
  start();
  EXPECT_EQ(look().pods[0].node_state, control::NodeState::kReady);
}

TEST_F(KubeClusterTest, AServerThatIsInTroubleMayStillShowItsNodes) {
  server_.nodes_status = 500;
  begin();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (cluster_->counts().watches < 2 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_FALSE(cluster_->synced()) << "jobs and pods are there, nodes are waited for";
}

// ---- Namespaces --------------------------------------------------------------------------------

bool is_of(const std::string& path, const std::string& ns) {
  return path.find("/namespaces/" + ns + "/") != std::string::npos;
}

TEST_F(KubeClusterTest, ANamespaceThatIsGoneKeepsNoOthersJobsWaiting) {
  namespaces_ = {"gone", "n"};
  server_.forbids = [](const std::string& path) { return is_of(path, "gone"); };
  server_.pods = {pod_object(0)};
  start();
  EXPECT_TRUE(cluster_->synced());
  EXPECT_EQ(look().pods.size(), 1U);
}

TEST_F(KubeClusterTest, WhereNoNamespaceMayBeReadOneIsWaitedFor) {
  namespaces_ = {"gone", "n"};
  server_.forbids = [](const std::string& path) { return is_of(path, "gone") || is_of(path, "n"); };
  begin();
  EXPECT_FALSE(cluster_->synced());
}

TEST_F(KubeClusterTest, AJobWhosePodsMayNotBeReadIsLeftAlone) {
  namespaces_ = {"n", "other"};
  server_.forbids = [](const std::string& path) {
    return is_of(path, "n") && path.ends_with("/pods");
  };
  start();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (cluster_->jobs().size() < 2 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  const auto seen = cluster_->observe({"n", "train"});
  ASSERT_FALSE(seen.has_value()) << "it would look as if all of its pods were gone";
  EXPECT_EQ(seen.error().code, ErrorCode::kUnavailable);
}

// ---- The job's own object ----------------------------------------------------------------------

TEST_F(KubeClusterTest, AnAgentIsPutIntoPodsOnlyWhereItHasAnImageAndACoordinator) {
  json job = job_object("False");
  job["spec"]["agent"] = "Auto";
  job["spec"]["numProcPerNode"] = 2;
  server_.jobs = {job};
  const auto faults_with = [&](const render::PodDefaults& defaults) {
    pod_defaults_ = defaults;
    start();
    return look().spec_faults;
  };
  EXPECT_THAT(faults_with({"worker:1", "control:9443"}), testing::IsEmpty());
  for (const render::PodDefaults& lacking :
       {render::PodDefaults{"", "control:9443"}, render::PodDefaults{"worker:1", ""}}) {
    const auto faults = faults_with(lacking);
    ASSERT_EQ(faults.size(), 1U);
    EXPECT_THAT(faults[0], testing::StartsWith("spec.numProcPerNode: "));
    EXPECT_THAT(faults[0], testing::HasSubstr("--control-bind-address and --worker-image"));
  }
  server_.jobs[0]["spec"]["numProcPerNode"] = 1;
  EXPECT_THAT(faults_with({}), testing::IsEmpty()) << "a pod of one process needs none";
}

TEST_F(KubeClusterTest, AStatusIsWrittenOfTheVersionThatWasSeenAndSeenAtOnce) {
  server_.jobs = {job_object("False")};
  start();
  const control::Observed before = look();
  api::TrainingJobStatus status = before.status;
  status.membership.generation = 3;
  json written = job_object("False");
  written["metadata"]["resourceVersion"] = "12";
  written["status"]["membership"]["generation"] = 3;
  server_.script.answer(200, written.dump());
  const auto version =
      cluster_->put_status(before.key, kUid, status, before.metadata.resource_version);
  ASSERT_TRUE(version.has_value()) << version.error().message;
  EXPECT_EQ(*version, "12");
  const kube::Request sent = server_.script.last_request();
  EXPECT_EQ(sent.method, kube::Method::kPut);
  EXPECT_THAT(sent.path, testing::EndsWith("/trainingjobs/train/status"));
  const json body = json::parse(sent.body);
  EXPECT_EQ(body["metadata"]["uid"], kUid);
  EXPECT_EQ(body["metadata"]["resourceVersion"], "9");
  EXPECT_EQ(body["status"]["membership"]["generation"], 3);
  EXPECT_EQ(look().status.membership.generation, 3) << "before the cache shows it";
  EXPECT_EQ(look().metadata.resource_version, "12");
}

TEST_F(KubeClusterTest, AStatusThatIsRefusedIsNotSeen) {
  server_.pods = {pod_object(0), pod_object(1)};
  start();
  server_.script.answer(409, status_body(409, "Conflict", "changed"));
  const auto refused = cluster_->put_status({"n", "train"}, kUid, {}, "8");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_EQ(look().status.membership.generation, 2);
}

/// A job goes while it is worked on: what is noted of it then nothing would ever take away.
TEST_F(KubeClusterTest, OfAJobThatWentMeanwhileNothingIsRemembered) {
  server_.pods = {pod_object(0), pod_object(1)};
  start();
  const control::Observed before = look();
  json gone = job_object("True");
  gone["metadata"]["resourceVersion"] = "20";
  server_.push("trainingjobs", "DELETED", gone);
  hear(1);
  json written = job_object("True");
  written["metadata"]["resourceVersion"] = "19";
  server_.script.answer(200, written.dump());
  ASSERT_TRUE(cluster_->put_status(before.key, kUid, before.status, "9").has_value());
  json again = job_object("True");
  again["metadata"]["resourceVersion"] = "12";
  server_.push("trainingjobs", "ADDED", again);
  hear(1);
  EXPECT_EQ(look().metadata.resource_version, "12") << "not what was written of it as it went";
}

TEST_F(KubeClusterTest, ADeletedJobIsGoneAtOnceAndOnlyIfItWasThisOne) {
  server_.pods = {pod_object(0), pod_object(1)};
  start();
  server_.script.answer(409, status_body(409, "Conflict", "another UID"));
  EXPECT_EQ(cluster_->delete_job({"n", "train"}, kUid).error().code, ErrorCode::kConflict);
  EXPECT_EQ(look().pods.size(), 2U);
  server_.script.answer(200, "{}");
  ASSERT_TRUE(cluster_->delete_job({"n", "train"}, kUid).has_value());
  const json sent = json::parse(server_.script.last_request().body);
  EXPECT_EQ(sent["preconditions"]["uid"], kUid);
  EXPECT_EQ(sent["propagationPolicy"], "Background");
  EXPECT_EQ(cluster_->observe({"n", "train"}).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace trainyard::cluster
