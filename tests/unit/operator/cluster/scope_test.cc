#include "operator/cluster/scope.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "control/pod_spec.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scripted_transport.h"

namespace trainyard::cluster {
namespace {

using control::ObservedPod;
using nlohmann::json;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr char kUid[] = "uid-of-job";
/// Of index 0 and, having no such label, of generation 0.
const std::string kPod = control::pod_name("train", kUid, 0, 0);

json job(int version) {
  return {{"metadata",
           {{"name", "train"},
            {"namespace", "n"},
            {"uid", kUid},
            {"resourceVersion", std::to_string(version)}}}};
}

json pod(int version) {
  return {{"metadata",
           {{"name", kPod},
            {"namespace", "n"},
            {"uid", "uid-of-pod"},
            {"resourceVersion", std::to_string(version)},
            {"labels", {{"trainyard.dev/job-name", "train"}, {"trainyard.dev/member", "true"}}},
            {"ownerReferences", json::array({{{"apiVersion", "trainyard.dev/v1alpha1"},
                                              {"kind", "TrainingJob"},
                                              {"name", "train"},
                                              {"uid", kUid},
                                              {"controller", true}}})}}},
          {"status", {{"phase", "Running"}}}};
}

json terminating(json pod) {
  pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z";
  return pod;
}

/// Caches whose events the test brings.
class ScopeTest : public testing::Test {
 protected:
  ScopeTest() {
    spec_.name = kPod;
    spec_.job_uid = kUid;
  }

  template <class Store>
  void list(Store& store, const std::vector<json>& objects) {
    store.begin_list();
    for (const json& object : objects)
      store.list_item(object);
    store.end_list(clock_.mono(), "1");
  }
  /// Who was to be looked at since the last question.
  std::vector<std::string> woken() { return std::exchange(woken_, {}); }
  /// The job's pods: what the cache shows, amended.
  std::vector<ObservedPod> seen() {
    const auto awaited = own_writes_.awaited(kUid);
    std::vector<ObservedPod> pods;
    for (const auto& found : scope_.pods().find_by(kPodsByJob, kUid))
      pods.push_back(found->seen);
    own_writes_.amend(kUid, awaited, pods);
    return pods;
  }
  bool is_there() { return own_writes_.newest(scope_.jobs().find("n/train")) != nullptr; }
  void make_pod() {
    own_writes_.creating(spec_);
    own_writes_.created(spec_, "uid-of-pod");
  }

  std::vector<std::string> woken_;
  std::vector<std::string> gone_;
  std::vector<std::string> missed_;
  control::PodSpec spec_;
  testing_support::ManualClock clock_;
  testing_support::ScriptedTransport transport_;
  kube::Client client_{transport_, clock_, {}};
  std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  cache::ThreadRunner runner_;
  ListedPods listed_pods_;
  GonePods gone_pods_;
  ScopeContext context_{
      .client = &client_,
      .clock = &clock_,
      .logger = logger_.get(),
      .listed_pods = &listed_pods_,
      .gone_pods = &gone_pods_,
      .runner = &runner_,
      .random = [] { return 0.5; },
      .changed =
          [this](const control::JobKey& key) {
            woken_.push_back(key.namespace_name + "/" + key.name);
          },
      .companion_gone =
          [this](const kube::Resource& resource, const control::JobKey& key,
                 const std::string& uid) {
            missed_.push_back(std::string(resource.plural) + " of " + key.name + ", " + uid);
          },
      .job_gone = [this](const JobView& job) { gone_.push_back(job.meta.uid); }};
  Scope scope_{context_, "n"};
  OwnWrites& own_writes_ = scope_.own_writes();
};

TEST_F(ScopeTest, AJobIsLookedAtWhenItComesChangesAndGoes) {
  scope_.jobs().event(kube::EventType::kAdded, job(1));
  EXPECT_THAT(woken(), ElementsAre("n/train"));
  scope_.jobs().event(kube::EventType::kModified, job(2));
  EXPECT_THAT(woken(), ElementsAre("n/train"));
  EXPECT_THAT(gone_, IsEmpty());
  scope_.jobs().event(kube::EventType::kDeleted, job(3));
  EXPECT_THAT(woken(), ElementsAre("n/train"));
  EXPECT_THAT(gone_, ElementsAre(kUid)) << "what is kept of it is given up";
}

TEST_F(ScopeTest, AJobIsLookedAtWhenAPodOfItComesChangesAndGoes) {
  scope_.pods().event(kube::EventType::kAdded, pod(1));
  EXPECT_THAT(woken(), ElementsAre("n/train"));
  json failed = pod(2);
  failed["status"]["phase"] = "Failed";
  scope_.pods().event(kube::EventType::kModified, failed);
  EXPECT_THAT(woken(), ElementsAre("n/train"));
  scope_.pods().event(kube::EventType::kDeleted, pod(3));
  EXPECT_THAT(woken(), ElementsAre("n/train"));
}

TEST_F(ScopeTest, WhatStoodBesideAJobIsMissedByItsEndAndByAList) {
  json service = pod(2);
  service["metadata"]["name"] = "train";
  auto& services = scope_.beside()[0].objects();
  scope_.jobs().event(kube::EventType::kAdded, job(1));
  list(services, {service});
  EXPECT_THAT(missed_, IsEmpty());
  services.event(kube::EventType::kDeleted, service);
  const std::string missing = "services of train, uid-of-job";
  EXPECT_THAT(std::exchange(missed_, {}), ElementsAre(missing));
  list(services, {});
  EXPECT_THAT(missed_, ElementsAre(missing)) << "it may have come and gone since the last list";
}

TEST_F(ScopeTest, WhatMattersToNoPlanWakesNobody) {
  scope_.pods().event(kube::EventType::kAdded, pod(1));
  (void)woken();
  json noise = pod(2);
  noise["status"]["hostIP"] = "192.0.2.1";
  scope_.pods().event(kube::EventType::kModified, noise);
  EXPECT_THAT(woken(), IsEmpty());
}

TEST_F(ScopeTest, AMadePodIsBelievedInUntilTheCacheShowsIt) {
  make_pod();
  EXPECT_EQ(seen().size(), 1u);
  scope_.pods().event(kube::EventType::kAdded, pod(1));
  EXPECT_THAT(own_writes_.awaited(kUid), IsEmpty());
  EXPECT_EQ(seen().size(), 1u);
  scope_.pods().event(kube::EventType::kDeleted, pod(2));
  EXPECT_THAT(seen(), IsEmpty());
}

TEST_F(ScopeTest, ADeletedPodIsTerminatingUntilTheCacheSaysSo) {
  scope_.pods().event(kube::EventType::kAdded, pod(1));
  own_writes_.deleted_pod("uid-of-pod");
  ASSERT_EQ(seen().size(), 1u);
  EXPECT_TRUE(seen()[0].terminating);
  scope_.pods().event(kube::EventType::kModified, terminating(pod(2)));
  // The same object as before the deletion: only what the process remembers could tell.
  ObservedPod before;
  before.uid = "uid-of-pod";
  std::vector<ObservedPod> pods{before};
  own_writes_.amend(kUid, {}, pods);
  EXPECT_FALSE(pods[0].terminating) << "the cache has caught up, and is believed";
}

TEST_F(ScopeTest, OfAPodThatIsGoneNothingIsRemembered) {
  scope_.pods().event(kube::EventType::kAdded, pod(1));
  own_writes_.deleted_pod("uid-of-pod");
  scope_.pods().event(kube::EventType::kDeleted, pod(2));
  ObservedPod before;
  before.uid = "uid-of-pod";
  std::vector<ObservedPod> pods{before};
  own_writes_.amend(kUid, {}, pods);
  EXPECT_FALSE(pods[0].terminating);
}

TEST_F(ScopeTest, OnlyOfAJobThatGoesOnIsKeptWhatItHasLost) {
  const auto lost = [this] { return gone_pods_.of(kUid, {}).size(); };
  const auto lose_pod = [this](int version) {
    scope_.pods().event(kube::EventType::kAdded, pod(version));
    scope_.pods().event(kube::EventType::kDeleted, pod(version + 1));
  };
  list(scope_.jobs(), {job(1)});
  lose_pod(1);
  EXPECT_EQ(lost(), 1u);
  gone_pods_.forget(kUid);
  json namesake = job(2);
  namesake["metadata"]["uid"] = "uid-of-namesake";
  list(scope_.jobs(), {namesake});
  lose_pod(3);
  EXPECT_EQ(lost(), 0u) << "nobody would ask for it, or forget it";
}

TEST_F(ScopeTest, APodThatGoesUnseenIsNotAwaited) {
  own_writes_.creating(spec_);
  scope_.pods().event(kube::EventType::kAdded, pod(1));
  scope_.pods().event(kube::EventType::kDeleted, pod(2));
  own_writes_.created(spec_, "uid-of-pod");
  EXPECT_THAT(seen(), IsEmpty());
}

TEST_F(ScopeTest, AListThatLacksAPodSettlesWhatWasWaitedFor) {
  make_pod();
  clock_.advance(seconds(1));
  list(scope_.pods(), {});
  EXPECT_THAT(seen(), IsEmpty());
}

TEST_F(ScopeTest, AListOfAnotherNamespaceSettlesNothing) {
  Scope other{context_, "m"};
  make_pod();
  own_writes_.deleted_job(kUid);
  list(scope_.jobs(), {job(1)});
  clock_.advance(seconds(1));
  list(other.pods(), {});
  list(other.jobs(), {});
  EXPECT_EQ(seen().size(), 1U) << "it would look lost";
  EXPECT_FALSE(is_there());
}

TEST_F(ScopeTest, OnlyTheJobOfWhichAListLacksAPodIsLookedAt) {
  json other = job(2);
  other["metadata"]["name"] = "other";
  other["metadata"]["uid"] = "uid-of-other";
  list(scope_.jobs(), {job(1), other});
  make_pod();
  clock_.advance(seconds(1));
  (void)woken();
  list(scope_.pods(), {});
  EXPECT_THAT(woken(), ElementsAre("n/train")) << "the pod came and went between two lists";
  list(scope_.pods(), {});
  EXPECT_THAT(woken(), IsEmpty()) << "nothing is awaited any more";
}

TEST_F(ScopeTest, ADeletedJobIsGoneUntilAListThatBeganLaterShowsIt) {
  list(scope_.jobs(), {job(1)});
  own_writes_.deleted_job(kUid);
  EXPECT_FALSE(is_there());
  clock_.advance(seconds(1));
  list(scope_.jobs(), {job(1)});
  EXPECT_TRUE(is_there()) << "a finalizer holds it";
}

TEST_F(ScopeTest, OfAJobThatIsGoneNothingIsAwaited) {
  list(scope_.jobs(), {job(1)});
  make_pod();
  scope_.jobs().event(kube::EventType::kDeleted, job(2));
  EXPECT_THAT(own_writes_.awaited(kUid), IsEmpty());
}

TEST_F(ScopeTest, WhatCannotBeReadIsNoPod) {
  scope_.pods().event(kube::EventType::kAdded, json::object());
  EXPECT_THAT(woken(), IsEmpty());
}

}  // namespace
}  // namespace trainyard::cluster
