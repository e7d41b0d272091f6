// What a view of a job is made of, what is told of changes, and the job's own object.
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "operator/cluster/ledgers.h"
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
  void there(const std::vector<json>& pods, int version = 9) {
    const json metadata = {{"resourceVersion", std::to_string(version)}};
    server_.script.answer(200, json{{"metadata", metadata}, {"items", pods}}.dump());
  }
  std::vector<std::string> observed_pods() {
    start();
    return names_of(look().pods);
  }
  static json pod_at(int index, const std::string& version, const char* phase = "Running") {
    json pod = pod_object(index);
    pod["metadata"]["resourceVersion"] = version;
    pod["status"]["phase"] = phase;
    return pod;
  }
  static json job_at(const std::string& scheduled, const std::string& version) {
    json job = job_object(scheduled);
    job["metadata"]["resourceVersion"] = version;
    return job;
  }
};

// ---- Pods as the server has them ---------------------------------------------------------------

TEST_F(KubeClusterTest, AViewIsMadeOfTheCacheAlone) {
  server_.pods = {pod_object(1)};
  EXPECT_THAT(observed_pods(), ElementsAre(pod_name(1))) << "though it shows a gang with a gap";
  EXPECT_THAT(server_.script.requests(), IsEmpty());
}

TEST_F(KubeClusterTest, TheServerIsAskedForAllPodsOfTheJob) {
  server_.pods = {pod_object(1)};
  start();
  there({pod_object(0), pod_object(1)});
  const auto listed = cluster_->list_pods(look());
  ASSERT_TRUE(listed.has_value());
  EXPECT_THAT(names_of(*listed), UnorderedElementsAre(pod_name(0), pod_name(1)));
  EXPECT_EQ((*listed)[0].node_state, control::NodeState::kGone) << "there is no node";
  EXPECT_THAT(server_.script.last_request().query, HasSubstr(std::string("job-uid%3D") + kUid));
}

TEST_F(KubeClusterTest, WhatAListHasShownIsNotUnseenByACacheThatIsBehind) {
  server_.pods = {pod_object(1)};
  start();
  there({pod_object(0), pod_object(1)}, 20);
  ASSERT_TRUE(cluster_->list_pods(look()).has_value());
  EXPECT_THAT(names_of(look().pods), UnorderedElementsAre(pod_name(0), pod_name(1)));
  server_.push("pods", "MODIFIED", pod_at(1, "15", "Failed"));
  (void)hear(1);
  EXPECT_THAT(names_of(look().pods), UnorderedElementsAre(pod_name(0), pod_name(1)));
  server_.push("pods", "DELETED", pod_at(1, "21"));
  (void)hear(1);
  EXPECT_THAT(look().pods, IsEmpty()) << "the cache, which never saw pod 0, is ahead now";
}

TEST_F(KubeClusterTest, AMemberThatWentIsShownAsItWasLastKnown) {
  server_.pods = {pod_object(0), pod_object(1)};
  start();
  json evicted = pod_at(1, "20");
  evicted["status"]["conditions"] = json::array({{{"type", "DisruptionTarget"},
                                                  {"status", "True"},
                                                  {"reason", "EvictionByEvictionAPI"},
                                                  {"message", "evicting"}}});
  server_.push("pods", "DELETED", evicted);
  (void)hear(1);
  const control::Observed observed = look();
  EXPECT_THAT(names_of(observed.pods), ElementsAre(pod_name(0)));
  ASSERT_THAT(names_of(observed.gone), ElementsAre(pod_name(1)));
  EXPECT_EQ(observed.gone[0].conditions.at(0).reason, "EvictionByEvictionAPI");
  EXPECT_EQ(observed.gone[0].node, "node");
  server_.push("pods", "ADDED", pod_at(1, "21"));
  (void)hear(1);
  EXPECT_THAT(look().gone, IsEmpty()) << "another is in its place";
}

TEST_F(KubeClusterTest, APodThatDidNotCountIsNotMissed) {
  server_.pods = {pod_object(0), pod_object(1)};
  start();
  json replaced = pod_at(1, "20");
  replaced["metadata"]["labels"]["trainyard.dev/member"] = "false";
  server_.push("pods", "DELETED", replaced);
  (void)hear(1);
  EXPECT_THAT(look().gone, IsEmpty());
}

TEST_F(KubeClusterTest, APodOfAnotherOwnerIsNoneOfTheJobsWhateverItsLabels) {
  start();
  there({pod_object(0, "another-job"), pod_object(1)});
  const auto listed = cluster_->list_pods(look());
  ASSERT_TRUE(listed.has_value());
  EXPECT_THAT(names_of(*listed), ElementsAre(pod_name(1)));
}

TEST_F(KubeClusterTest, APodOfAnotherNamespaceIsNoneOfTheJobsWhateverItsOwner) {
  namespaces_ = {};
  json elsewhere = pod_object(1);
  elsewhere["metadata"]["namespace"] = "other";
  server_.pods = {pod_object(0), elsewhere};
  EXPECT_THAT(observed_pods(), ElementsAre(pod_name(0)));
  EXPECT_EQ(cluster_->job_of({"n", pod_name(0), "uid-of-" + pod_name(0)}), kUid);
  EXPECT_EQ(cluster_->job_of({"other", pod_name(1), "uid-of-" + pod_name(1)}), "");
}

TEST_F(KubeClusterTest, APodOfAJobThatIsNotThereIsNobodys) {
  server_.pods = {pod_object(0), pod_object(1, "uid-of-another")};
  start();
  EXPECT_EQ(cluster_->job_of({"n", pod_name(0), "uid-of-" + pod_name(0)}), kUid);
  EXPECT_EQ(cluster_->job_of({"n", pod_name(0), "uid-of-another-pod"}), "");
  EXPECT_EQ(cluster_->job_of({"n", pod_name(1), "uid-of-" + pod_name(1)}), "");
}

TEST_F(KubeClusterTest, ShowsTheJobsAsTheyWereSeenLast) {
  start();
  const auto jobs = cluster_->cached_jobs();
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_EQ(jobs[0]->metadata.namespace_name, "n");
  EXPECT_EQ(jobs[0]->metadata.name, "train");
  EXPECT_FALSE(jobs[0]->status.conditions.empty());
}

TEST_F(KubeClusterTest, WhoseServiceIsTakenAwayIsLookedAt) {
  const auto companion = [](const char* version, const std::string& owner) {
    json object = pod_object(0, owner);
    object["metadata"]["name"] = "train";
    object["metadata"]["resourceVersion"] = version;
    return object;
  };
  server_.companions["services"] = {companion("7", kUid)};
  server_.companions["poddisruptionbudgets"] = {companion("7", kUid)};
  start();
  server_.script.answer(200, companion("7", kUid).dump());  // the Service
  server_.script.answer(200, companion("7", kUid).dump());  // the budget
  server_.script.answer(200, companion("8", kUid).dump());
  const control::Observed observed = look();
  EXPECT_TRUE(cluster_->keep_companions(observed, observed.status).has_value());
  server_.push("services", "DELETED", companion("12", kUid));
  EXPECT_THAT(hear(1), ElementsAre("train"));
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
  ASSERT_TRUE(
      server_.await_watches({"/namespaces/n/trainingjobs", "/namespaces/n/pods"}, kPatience));
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

TEST_F(KubeClusterTest, ANamespaceOfAServerInTroubleIsWaitedFor) {
  namespaces_ = {"troubled", "n"};
  server_.forbids = [](const std::string& path) { return is_of(path, "troubled"); };
  server_.refusal_status = 500;
  begin();
  ASSERT_TRUE(server_.await_watches({"/namespaces/n/trainingjobs", "/namespaces/n/pods", "/nodes"},
                                    kPatience));
  EXPECT_FALSE(cluster_->synced()) << "jobs and pods of n are there, and nodes";
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

TEST_F(KubeClusterTest, AJobOfTheSameNameDoesNotWaitForTheLedgerOfTheOneBefore) {
  json job = job_object("True");
  job["status"]["goodput"] = {{"wallSeconds", "7.5"}};
  server_.jobs = {job};
  start();
  job["metadata"]["resourceVersion"] = "10";
  server_.push("trainingjobs", "DELETED", job);
  EXPECT_THAT(hear(2), ElementsAre("", "train"));
  const control::JobKey gone_jobs = Ledgers::gone_jobs();
  EXPECT_THAT(cluster_->jobs(), ElementsAre(gone_jobs)) << "whoever takes over looks at it";
  EXPECT_EQ(cluster_->observe({"n", "train"}).error().code, ErrorCode::kNotFound);
  server_.script.answer(500, testing_support::status_body(500, "InternalError", "no"));
  EXPECT_EQ(cluster_->observe(gone_jobs).error().code, ErrorCode::kUnavailable)
      << "to be tried again";
  job["metadata"]["uid"] = "another";
  job["metadata"]["resourceVersion"] = "11";
  server_.push("trainingjobs", "ADDED", job);
  EXPECT_THAT(hear(1), ElementsAre("train"));
  EXPECT_EQ(look().metadata.uid, "another") << "nothing is asked of the server";
  server_.script.answer(404, testing_support::status_body(404, "NotFound", "no"));
  server_.script.answer(201, "{}");
  EXPECT_EQ(cluster_->observe(gone_jobs).error().code, ErrorCode::kNotFound) << "all are kept";
  EXPECT_THAT(cluster_->jobs(), ElementsAre(control::JobKey{"n", "train"}));
}

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

TEST_F(KubeClusterTest, TellsTheImageThatNewPodsWouldHave) {
  json job = job_object("False");
  job["spec"]["agent"] = "Auto";
  job["spec"]["numProcPerNode"] = 2;
  server_.jobs = {job};
  pod_defaults_ = {"worker:1", "control:9443"};
  for (const bool renews : {true, false}) {
    restarts_renew_image_ = renews;
    start();
    EXPECT_EQ(look().worker_image, "worker:1");
    EXPECT_EQ(look().restarts_renew_image, renews);
  }
  server_.jobs[0]["spec"]["agent"] = "None";
  server_.jobs[0]["spec"]["numProcPerNode"] = 1;
  start();
  EXPECT_EQ(look().worker_image, "") << "a program without an agent";
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
  server_.push("trainingjobs", "DELETED", job_at("True", "20"));
  hear(1);
  server_.script.answer(200, job_at("True", "19").dump());
  ASSERT_TRUE(cluster_->put_status(before.key, kUid, before.status, "9").has_value());
  server_.push("trainingjobs", "ADDED", job_at("True", "12"));
  hear(1);
  EXPECT_EQ(look().metadata.resource_version, "12") << "not what was written of it as it went";
}

TEST_F(KubeClusterTest, OfAJobWhoseNamesakeIsThereNothingIsRemembered) {
  start();
  const control::Observed before = look();
  json namesake = job_at("True", "21");
  namesake["metadata"]["uid"] = "uid-of-namesake";
  server_.push("trainingjobs", "DELETED", job_at("True", "20"));
  server_.push("trainingjobs", "ADDED", namesake);
  hear(2);
  server_.script.answer(200, job_at("True", "19").dump());
  ASSERT_TRUE(cluster_->put_status(before.key, kUid, before.status, "9").has_value());
  server_.push("trainingjobs", "DELETED", namesake);
  server_.push("trainingjobs", "ADDED", job_at("True", "12"));
  hear(2);
  EXPECT_EQ(look().metadata.resource_version, "12") << "not what was written of it as it went";
}

TEST_F(KubeClusterTest, TheServiceOfAJobThatWentMeanwhileIsLookedForAgain) {
  start();
  const control::Observed seen = look();
  const json service = {
      {"metadata",
       {{"name", "train"},
        {"uid", "uid-of-service"},
        {"resourceVersion", "3"},
        {"ownerReferences", json::array({{{"apiVersion", "trainyard.dev/v1alpha1"},
                                          {"kind", "TrainingJob"},
                                          {"uid", kUid},
                                          {"controller", true}}})}}}};
  enum class Service { kAnswers, kIsNotAsked };
  const auto asked_after_keeping = [&](Service is) {
    if (is == Service::kAnswers) server_.script.answer(200, service.dump());
    // What comes after the Service has no answer.
    EXPECT_FALSE(cluster_->keep_companions(seen, seen.status).has_value());
    const std::vector<kube::Request> all = server_.script.requests();
    return std::count_if(all.begin(), all.end(), [](const kube::Request& one) {
      return one.path.ends_with("/services/train");
    });
  };
  EXPECT_EQ(asked_after_keeping(Service::kAnswers), 1);
  EXPECT_EQ(asked_after_keeping(Service::kIsNotAsked), 1) << "it is known to stand";
  server_.push("trainingjobs", "DELETED", job_at("True", "20"));
  hear(1);
  EXPECT_EQ(asked_after_keeping(Service::kAnswers), 2) << "the job's end has been shown";
  EXPECT_EQ(asked_after_keeping(Service::kAnswers), 3) << "nothing tells of its end again";
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
