// What is done to pods: what is sent, what the server's answers mean, and what is believed until
// the cache shows it.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "control/pod_spec.h"
#include "operator/cache/expectations.h"
#include "tests/unit/operator/cluster/kube_cluster_world.h"

namespace trainyard::cluster {
namespace {

using control::CreateReply;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::status_body;

class KubePodsTest : public KubeClusterWorld {
 protected:
  KubePodsTest() { server_.jobs = {job_object("False")}; }

  control::PodSpec spec() {
    const control::Observed observed = look();
    return control::make_pod_spec(observed.metadata, observed.spec, 0, 2, 2);
  }
  void answer(int code, const char* reason) {
    server_.script.answer(code, status_body(code, reason, "as it is said"));
  }
  /// The pod of this name, as the server has it.
  static json holder(const control::PodSpec& spec, const std::string& uid,
                     const std::string& job_uid = kUid) {
    json pod = pod_object(0, job_uid);
    pod["metadata"]["name"] = spec.name;
    pod["metadata"]["uid"] = uid;
    return pod;
  }
  void show(const json& object) { server_.script.answer(200, object.dump()); }
  size_t calls() const { return server_.script.requests().size(); }
  json sent() const { return json::parse(server_.script.last_request().body); }
  std::vector<std::string> uids() {
    std::vector<std::string> found;
    for (const control::ObservedPod& pod : look().pods)
      found.push_back(pod.uid);
    return found;
  }
  /// A pod that the cache shows, of the job's name and index.
  control::PodRef there() {
    server_.pods = {pod_object(0)};
    start();
    return {"n", pod_name(0), "uid-of-" + pod_name(0)};
  }
};

// ---- Creating ----------------------------------------------------------------------------------

TEST_F(KubePodsTest, ACreatedPodIsSeenBeforeTheCacheShowsIt) {
  start();
  const control::PodSpec pod = spec();
  show(holder(pod, "made"));
  const auto reply = cluster_->create_pod(pod);
  ASSERT_TRUE(reply.has_value()) << reply.error().message;
  EXPECT_EQ(reply->outcome, CreateReply::Outcome::kCreated);
  EXPECT_EQ(reply->uid, "made");
  EXPECT_EQ(server_.script.last_request().method, kube::Method::kPost);
  EXPECT_EQ(sent()["metadata"]["name"], pod.name);
  EXPECT_THAT(uids(), ElementsAre("made"));
}

TEST_F(KubePodsTest, APodIsNotMadeFromASpecThatWasEditedMeanwhile) {
  start();
  control::PodSpec pod = spec();
  pod.configuration = control::configuration_of(look().spec);
  json edited = job_object("False");
  edited["metadata"]["resourceVersion"] = "30";
  edited["metadata"]["generation"] = 2;
  edited["spec"]["keepFailedPods"] = 4;
  server_.push("trainingjobs", "MODIFIED", edited);
  hear(1);
  show(holder(pod, "made"));
  EXPECT_TRUE(cluster_->create_pod(pod).has_value()) << "pods do not see that";
  const size_t before = calls();
  edited["metadata"]["resourceVersion"] = "31";
  edited["metadata"]["generation"] = 3;
  edited["spec"]["rendezvous"] = {{"port", 29501}};
  server_.push("trainingjobs", "MODIFIED", edited);
  hear(1);
  const auto refused = cluster_->create_pod(pod);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_EQ(calls(), before) << "nothing is sent";
}

/// Its event may be lost: then nothing else wakes the job.
TEST_F(KubePodsTest, APodThatNobodyShowsIsLookedForWhenItsWordIsOver) {
  start();
  EXPECT_EQ(cluster_->look_again_in(kUid), std::nullopt);
  const control::PodSpec pod = spec();
  show(holder(pod, "made"));
  ASSERT_TRUE(cluster_->create_pod(pod).has_value());
  EXPECT_EQ(cluster_->look_again_in(kUid), cache::Expectations::kTimeLimit);
  clock_.advance(cache::Expectations::kTimeLimit - std::chrono::seconds(1));
  EXPECT_THAT(uids(), ElementsAre("made"));
  EXPECT_EQ(cluster_->look_again_in(kUid), std::chrono::seconds(1));
  clock_.advance(std::chrono::seconds(1));
  EXPECT_EQ(cluster_->look_again_in(kUid), Duration::zero()) << "it was counted a moment ago";
  EXPECT_THAT(uids(), IsEmpty());
  EXPECT_EQ(cluster_->look_again_in(kUid), std::nullopt);
}

TEST_F(KubePodsTest, APodThatCameAndWentBeforeTheAnswerIsGone) {
  start();
  const control::PodSpec pod = spec();
  // The watch is faster than the answer: the pod comes, and somebody deletes it.
  server_.script.on_call([&](const kube::Request& request) {
    if (request.method != kube::Method::kPost) return;
    json seen = holder(pod, "made");
    seen["metadata"]["resourceVersion"] = "20";
    server_.push("pods", "ADDED", seen);
    seen["metadata"]["resourceVersion"] = "21";
    server_.push("pods", "DELETED", seen);
    EXPECT_EQ(hear(2).size(), 2u);
  });
  show(holder(pod, "made"));
  ASSERT_TRUE(cluster_->create_pod(pod).has_value());
  EXPECT_THAT(uids(), IsEmpty());
}

TEST_F(KubePodsTest, AnOwnPodUnderTheNameIsAsGoodAsCreated) {
  start();
  const control::PodSpec pod = spec();
  answer(409, "AlreadyExists");
  show(holder(pod, "older"));
  const auto reply = cluster_->create_pod(pod);
  ASSERT_TRUE(reply.has_value()) << reply.error().message;
  EXPECT_EQ(reply->outcome, CreateReply::Outcome::kExists);
  EXPECT_EQ(reply->uid, "older");
  EXPECT_THAT(uids(), ElementsAre("older"));
}

TEST_F(KubePodsTest, ANameThatIsHeldByAnotherOrByOneThatGoesIsAConflict) {
  start();
  const control::PodSpec pod = spec();
  json going = holder(pod, "going");
  going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z";
  for (const json& held : {holder(pod, "foreign", "another-job"), going}) {
    answer(409, "AlreadyExists");
    show(held);
    const auto reply = cluster_->create_pod(pod);
    ASSERT_TRUE(reply.has_value()) << reply.error().message;
    EXPECT_EQ(reply->outcome, CreateReply::Outcome::kNameConflict);
    EXPECT_EQ(reply->uid, held["metadata"]["uid"]);
    EXPECT_EQ(reply->owner_uid, held["metadata"]["ownerReferences"][0]["uid"]);
    EXPECT_THAT(uids(), IsEmpty());
    EXPECT_EQ(cluster_->look_again_in(kUid), std::nullopt) << "nothing is awaited";
  }
}

TEST_F(KubePodsTest, AHolderThatIsGoneMeanwhileIsTriedAgain) {
  start();
  const control::PodSpec pod = spec();
  answer(409, "AlreadyExists");
  answer(404, "NotFound");
  const auto reply = cluster_->create_pod(pod);
  ASSERT_FALSE(reply.has_value());
  EXPECT_EQ(reply.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(reply.error().message, HasSubstr("held a moment ago"));
  EXPECT_EQ(cluster_->look_again_in(kUid), std::nullopt) << "nothing is awaited";
}

TEST_F(KubePodsTest, AHolderThatCannotBeLookedAtIsAFault) {
  start();
  const control::PodSpec pod = spec();
  answer(409, "AlreadyExists");
  answer(403, "Forbidden");
  const auto reply = cluster_->create_pod(pod);
  ASSERT_FALSE(reply.has_value());
  EXPECT_EQ(reply.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(reply.error().message, HasSubstr("as it is said"));
}

TEST_F(KubePodsTest, WhatAServerDoesNotTakeIsRefused) {
  start();
  const control::PodSpec pod = spec();
  answer(403, "Forbidden");
  const auto reply = cluster_->create_pod(pod);
  ASSERT_TRUE(reply.has_value()) << reply.error().message;
  EXPECT_EQ(reply->outcome, CreateReply::Outcome::kRefused);
  ASSERT_TRUE(reply->refusal.has_value());
  EXPECT_EQ(reply->refusal->reason, api::reason::kAdmissionRefused);
  EXPECT_THAT(uids(), IsEmpty());
  EXPECT_EQ(cluster_->look_again_in(kUid), std::nullopt) << "nothing is awaited";
}

TEST_F(KubePodsTest, AServerThatFailsIsAFaultAndNoRefusal) {
  start();
  const control::PodSpec pod = spec();
  answer(500, "InternalError");
  const auto reply = cluster_->create_pod(pod);
  ASSERT_FALSE(reply.has_value());
  EXPECT_THAT(reply.error().message, HasSubstr("create pod n/" + pod.name));
}

TEST_F(KubePodsTest, ACreationWithoutAnAnswerTakesNoPodOutOfView) {
  start();
  const control::PodSpec pod = spec();
  show(holder(pod, "made"));
  ASSERT_TRUE(cluster_->create_pod(pod).has_value());
  server_.script.fail({ErrorCode::kUnavailable, "cut off"});
  EXPECT_FALSE(cluster_->create_pod(pod).has_value());
  EXPECT_THAT(uids(), ElementsAre("made"));
}

TEST_F(KubePodsTest, ACreationWithoutAnAnswerMayStillCome) {
  start();
  const control::PodSpec pod = spec();
  server_.script.fail({ErrorCode::kUnavailable, "cut off"});
  EXPECT_FALSE(cluster_->create_pod(pod).has_value());
  EXPECT_THAT(uids(), IsEmpty());
  EXPECT_EQ(cluster_->look_again_in(kUid), cache::Expectations::kTimeLimit);
}

TEST_F(KubePodsTest, APodOfAJobThatIsGoneIsNeverMadeButItsHolderIsToldOf) {
  start();
  control::PodSpec pod = spec();
  pod.job_uid = "job-before";
  show(holder(pod, "older"));
  const auto reply = cluster_->create_pod(pod);
  ASSERT_TRUE(reply.has_value()) << reply.error().message;
  EXPECT_EQ(reply->outcome, CreateReply::Outcome::kNameConflict);
  EXPECT_EQ(server_.script.last_request().method, kube::Method::kGet);
  EXPECT_EQ(calls(), 1u);
}

// ---- Trying ------------------------------------------------------------------------------------

TEST_F(KubePodsTest, APodIsTriedWithoutBeingMadeAndOnceForItsShape) {
  start();
  const control::PodSpec pod = spec();
  show(holder(pod, "never"));
  const auto tried = cluster_->try_pod(pod);
  ASSERT_TRUE(tried.has_value()) << tried.error().message;
  EXPECT_FALSE(tried->has_value());
  EXPECT_EQ(server_.script.last_request().query, "dryRun=All&fieldValidation=Strict");
  EXPECT_THAT(uids(), IsEmpty());
  ASSERT_TRUE(cluster_->try_pod(pod).has_value());
  EXPECT_EQ(calls(), 1u) << "it was taken a moment ago";
}

TEST_F(KubePodsTest, AfterARefusalTheShapeIsTriedAgain) {
  start();
  const control::PodSpec pod = spec();
  show(holder(pod, "never"));
  ASSERT_TRUE(cluster_->try_pod(pod).has_value());
  answer(403, "Forbidden");
  ASSERT_TRUE(cluster_->create_pod(pod).has_value());
  answer(422, "Invalid");
  const auto tried = cluster_->try_pod(pod);
  ASSERT_TRUE(tried && *tried);
  EXPECT_EQ((*tried)->reason, api::reason::kInvalidPodTemplate);
  EXPECT_EQ(calls(), 3u);
}

TEST_F(KubePodsTest, AQuantityThatNoServerReadsIsNamedWithItsField) {
  json job = job_object("False");
  job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] = "4GB";
  server_.jobs = {job};
  start();
  server_.script.answer(
      400, status_body(400, "BadRequest",
                       "Pod in version \"v1\" cannot be handled as a Pod: quantities must match "
                       "the regular expression"));
  const auto tried = cluster_->try_pod(spec());
  ASSERT_TRUE(tried && *tried);
  EXPECT_THAT((*tried)->message,
              HasSubstr("spec.template.spec.containers[0].resources.limits[memory]: \"4GB\""));
}

TEST_F(KubePodsTest, ATakenNameSaysNothingOfTheTemplate) {
  start();
  const control::PodSpec pod = spec();
  for (int i = 0; i < 2; ++i) {
    answer(409, "AlreadyExists");
    const auto tried = cluster_->try_pod(pod);
    ASSERT_TRUE(tried.has_value()) << tried.error().message;
    EXPECT_FALSE(tried->has_value());
  }
  EXPECT_EQ(calls(), 2u) << "it is not known to be taken";
}

TEST_F(KubePodsTest, ATryThatFailsIsAFault) {
  start();
  const control::PodSpec pod = spec();
  answer(500, "InternalError");
  const auto tried = cluster_->try_pod(pod);
  ASSERT_FALSE(tried.has_value());
  EXPECT_THAT(tried.error().message, HasSubstr("try pod n/" + pod.name));
}

/// A job of two nodes that writes checkpoints to the claim "ckpt".
json saving_job_object(json job) {
  job["spec"]["checkpointPolicy"] = {
      {"storage", {{"persistentVolumeClaim", {{"claimName", "ckpt"}}}}}};
  return job;
}

json claim_object(const char* asked, const char* given) {
  json claim = {{"spec", {{"accessModes", json::array({asked})}}}};
  if (given != nullptr) claim["status"]["accessModes"] = json::array({given});
  return claim;
}

TEST_F(KubePodsTest, AClaimThatOneNodeAloneMayWriteToIsNoPlaceForTheCheckpointsOfTwo) {
  server_.jobs = {saving_job_object(job_object("False"))};
  start();
  const control::PodSpec pod = spec();
  for (const json& claim : {claim_object("ReadWriteOnce", nullptr),
                            claim_object("ReadWriteMany", "ReadWriteOncePod")}) {
    show(claim);
    const auto tried = cluster_->try_pod(pod);
    ASSERT_TRUE(tried && *tried);
    EXPECT_EQ((*tried)->reason, api::reason::kStorageNotShared);
    EXPECT_THAT((*tried)->message, HasSubstr("claim ckpt: access mode ReadWriteOnce"));
    EXPECT_THAT((*tried)->message, HasSubstr("2 nodes"));
    EXPECT_TRUE(server_.script.last_request().path.ends_with("/persistentvolumeclaims/ckpt"));
  }
  EXPECT_EQ(calls(), 2u) << "the pod itself is not tried";
}

TEST_F(KubePodsTest, AClaimThatAllMayWriteToOrThatIsNotThereIsNoReasonToRefuse) {
  server_.jobs = {saving_job_object(job_object("False"))};
  start();
  const control::PodSpec pod = spec();
  show(claim_object("ReadWriteMany", "ReadWriteMany"));
  show(holder(pod, "never"));
  EXPECT_FALSE(cluster_->try_pod(pod).value().has_value());
  answer(404, "NotFound");
  EXPECT_FALSE(cluster_->try_pod(pod).value().has_value()) << "the scheduler tells of it";
  answer(403, "Forbidden");
  EXPECT_FALSE(cluster_->try_pod(pod).value().has_value()) << "no right to look";
  answer(500, "InternalError");
  EXPECT_FALSE(cluster_->try_pod(pod).has_value()) << "to be tried again";
}

TEST_F(KubePodsTest, OneNodeMayHaveItsClaimToItself) {
  server_.jobs = {saving_job_object(job_object("False"))};
  server_.jobs[0]["spec"]["numNodes"] = 1;
  start();
  const control::PodSpec pod = spec();
  show(holder(pod, "never"));
  EXPECT_FALSE(cluster_->try_pod(pod).value().has_value());
  EXPECT_EQ(calls(), 1u) << "the claim is not asked for";
}

TEST_F(KubePodsTest, APodOfAnotherJobIsNotTried) {
  start();
  control::PodSpec pod = spec();
  pod.job_uid = "job-before";
  EXPECT_EQ(cluster_->try_pod(pod).error().code, ErrorCode::kConflict);
  pod = spec();
  pod.job_name = "nobody";
  EXPECT_EQ(cluster_->try_pod(pod).error().code, ErrorCode::kConflict);
  EXPECT_EQ(calls(), 0u);
}

// ---- Deleting and taking the label off ---------------------------------------------------------

TEST_F(KubePodsTest, ADeletionNamesThePodAndItsGraceAndIsSeenAtOnce) {
  const control::PodRef pod = there();
  show(json::object());
  ASSERT_TRUE(cluster_->delete_pod(pod, std::chrono::milliseconds(1500)).has_value());
  EXPECT_EQ(server_.script.last_request().method, kube::Method::kDelete);
  EXPECT_EQ(sent()["preconditions"]["uid"], pod.uid);
  EXPECT_EQ(sent()["gracePeriodSeconds"], 2);
  EXPECT_TRUE(look().pods[0].terminating);
}

TEST_F(KubePodsTest, ALabelIsTakenOffThePodThatIsMeantAndSeenAtOnce) {
  const control::PodRef pod = there();
  EXPECT_TRUE(look().pods[0].member);
  show(json::object());
  ASSERT_TRUE(cluster_->remove_member_label(pod).has_value());
  EXPECT_EQ(server_.script.last_request().method, kube::Method::kPatch);
  EXPECT_EQ(sent()["metadata"]["uid"], pod.uid);
  EXPECT_TRUE(sent()["metadata"]["labels"]["trainyard.dev/member"].is_null());
  EXPECT_FALSE(look().pods[0].member);
}

TEST_F(KubePodsTest, WhatAConflictIsAboutIsAsked) {
  const control::PodRef pod = there();
  struct Case {
    int code;
    json holder;
    ErrorCode meaning;
  };
  json another = pod_object(0);
  another["metadata"]["uid"] = "another";
  for (const Case& one :
       {Case{200, pod_object(0), ErrorCode::kUnavailable}, Case{200, another, ErrorCode::kConflict},
        Case{404, {}, ErrorCode::kNotFound}}) {
    for (const bool deletes : {false, true}) {
      answer(409, "Conflict");
      if (one.code == 200) {
        show(one.holder);
      } else {
        answer(one.code, "NotFound");
      }
      const Status done = deletes ? cluster_->delete_pod(pod, std::chrono::seconds(1))
                                  : cluster_->remove_member_label(pod);
      ASSERT_FALSE(done.has_value());
      EXPECT_EQ(done.error().code, one.meaning);
    }
  }
  EXPECT_FALSE(look().pods[0].terminating);
  EXPECT_TRUE(look().pods[0].member);
}

TEST_F(KubePodsTest, APatchForAnotherUidIsAConflict) {
  const control::PodRef pod = there();
  server_.script.answer(
      422, status_body(422, "Invalid", "immutable",
                       R"({"causes":[{"reason":"FieldValueInvalid","field":"metadata.uid"}]})"));
  json another = pod_object(0);
  another["metadata"]["uid"] = "another";
  show(another);
  EXPECT_EQ(cluster_->remove_member_label(pod).error().code, ErrorCode::kConflict);
}

TEST_F(KubePodsTest, OtherAnswersAreFaultsAndAskNothing) {
  const control::PodRef pod = there();
  answer(404, "NotFound");
  EXPECT_EQ(cluster_->delete_pod(pod, std::chrono::seconds(1)).error().code, ErrorCode::kNotFound);
  answer(403, "Forbidden");
  EXPECT_EQ(cluster_->delete_pod(pod, std::chrono::seconds(1)).error().code,
            ErrorCode::kInvalidConfig);
  EXPECT_EQ(calls(), 2u);
}

}  // namespace
}  // namespace trainyard::cluster
