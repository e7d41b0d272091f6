#include "operator/cluster/own_writes.h"

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/manual_clock.h"

namespace trainyard::cluster {
namespace {

using control::ObservedPod;
using std::chrono::minutes;
using std::chrono::seconds;
using testing_support::ManualClock;

class OwnWritesTest : public testing::Test {
 protected:
  static control::PodSpec spec(int index) {
    control::PodSpec pod;
    pod.name = "job-" + std::to_string(index) + "-x";
    pod.job_uid = "job";
    pod.node_index = index;
    pod.created_generation = 3;
    return pod;
  }
  static PodView shown(const control::PodSpec& pod, const std::string& uid) {
    PodView view;
    view.meta.name = pod.name;
    view.meta.uid = uid;
    view.job_uid = pod.job_uid;
    view.seen.name = pod.name;
    view.seen.uid = uid;
    view.seen.member = true;
    return view;
  }
  std::vector<ObservedPod> amended(std::vector<ObservedPod> cached) {
    const auto awaited = own_.awaited("job");
    own_.amend("job", awaited, cached);
    return cached;
  }
  OwnWrites::Job job(const std::string& version) {
    auto view = std::make_shared<JobView>();
    view->meta = {"ns", "job", "job", version};
    return view;
  }

  ManualClock clock_;
  OwnWrites own_{clock_};
};

TEST_F(OwnWritesTest, ACreatedPodIsThereBeforeTheCacheShowsIt) {
  own_.creating(spec(1));
  EXPECT_TRUE(amended({}).empty()) << "nobody knows before the answer";
  own_.created(spec(1), "u1");
  const auto pods = amended({});
  ASSERT_EQ(pods.size(), 1u);
  EXPECT_EQ(pods[0].uid, "u1");
  EXPECT_EQ(pods[0].node_index, 1);
  EXPECT_EQ(pods[0].created_generation, 3);
  EXPECT_TRUE(pods[0].member);
}

TEST_F(OwnWritesTest, AShownPodIsTheCachesAlone) {
  own_.creating(spec(1));
  own_.created(spec(1), "u1");
  own_.shows(shown(spec(1), "u1"));
  EXPECT_TRUE(amended({}).empty()) << "gone again, and the cache says so";
  EXPECT_EQ(amended({shown(spec(1), "u1").seen}).size(), 1u);
}

TEST_F(OwnWritesTest, TheEventMayComeBeforeTheAnswer) {
  own_.creating(spec(1));
  own_.shows(shown(spec(1), "u1"));
  own_.shows_no_more(shown(spec(1), "u1"));
  own_.created(spec(1), "u1");
  EXPECT_TRUE(amended({}).empty());
}

TEST_F(OwnWritesTest, TheEndMayBeAllThatIsShown) {
  own_.creating(spec(1));
  own_.created(spec(1), "u1");
  own_.shows_no_more(shown(spec(1), "u1"));
  EXPECT_TRUE(amended({}).empty());
}

TEST_F(OwnWritesTest, ACreatedPodIsThereAtEveryLook) {
  for (const int index : {1, 2}) {
    own_.creating(spec(index));
    own_.created(spec(index), "u" + std::to_string(index));
  }
  EXPECT_EQ(amended({}).size(), 2u);
  EXPECT_EQ(amended({}).size(), 2u);
  own_.shows(shown(spec(1), "u1"));
  EXPECT_EQ(amended({shown(spec(1), "u1").seen}).size(), 2u) << "each of them once";
}

TEST_F(OwnWritesTest, ARefusedPodIsNotAwaited) {
  own_.creating(spec(1));
  own_.not_created(spec(1));
  EXPECT_TRUE(own_.awaited("job").empty());
}

TEST_F(OwnWritesTest, AListThatBeganAfterwardsEndsTheWait) {
  own_.creating(spec(1));
  own_.created(spec(1), "u1");
  EXPECT_TRUE(own_.lists_pods(clock_.mono() - seconds(1)).empty());
  EXPECT_EQ(amended({}).size(), 1u) << "that list may be older than the pod";
  clock_.advance(seconds(1));
  EXPECT_EQ(own_.lists_pods(clock_.mono()), std::set<std::string>{"job"}) << "to be looked at";
  EXPECT_TRUE(amended({}).empty());
}

TEST_F(OwnWritesTest, ADeletedPodIsTerminatingUntilTheCacheSaysSo) {
  const ObservedPod alive = shown(spec(1), "u1").seen;
  own_.deleted_pod("u1");
  EXPECT_TRUE(amended({alive})[0].terminating);
  own_.shows(shown(spec(1), "u1"));
  EXPECT_TRUE(amended({alive})[0].terminating) << "an event from before the deletion";
  PodView terminating = shown(spec(1), "u1");
  terminating.seen.terminating = true;
  own_.shows(terminating);
  EXPECT_FALSE(amended({alive})[0].terminating) << "the cache has caught up and is believed";
}

TEST_F(OwnWritesTest, ADeletionThatLeavesNoTraceIsForgottenInTime) {
  own_.deleted_pod("u1");
  clock_.advance(minutes(5) + seconds(1));
  EXPECT_FALSE(amended({shown(spec(1), "u1").seen})[0].terminating);
}

TEST_F(OwnWritesTest, WhatIsForgottenComesBackWithNoOtherChange) {
  const ObservedPod alive = shown(spec(1), "u1").seen;
  own_.deleted_pod("u1");
  clock_.advance(minutes(5) + seconds(1));
  EXPECT_FALSE(amended({alive})[0].terminating);
  own_.unlabelled_pod("u1");
  EXPECT_FALSE(amended({alive})[0].terminating);
  EXPECT_FALSE(amended({alive})[0].member);
}

TEST_F(OwnWritesTest, APodThatIsGoneTakesItsChangesAlong) {
  own_.deleted_pod("u1");
  own_.unlabelled_pod("u2");
  own_.shows_no_more(shown(spec(1), "u1"));
  EXPECT_FALSE(amended({shown(spec(1), "u1").seen})[0].terminating);
  EXPECT_FALSE(amended({shown(spec(2), "u2").seen})[0].member) << "another's stay";
}

TEST_F(OwnWritesTest, AListThatBeganAfterwardsKnowsOfTheChanges) {
  own_.deleted_pod("u1");
  own_.lists_pods(clock_.mono());
  EXPECT_TRUE(amended({shown(spec(1), "u1").seen})[0].terminating) << "it may be older";
  clock_.advance(seconds(1));
  own_.lists_pods(clock_.mono());
  EXPECT_FALSE(amended({shown(spec(1), "u1").seen})[0].terminating);
}

/// The end of a pod that goes at once may be shown before its deletion is answered.
TEST_F(OwnWritesTest, DeletionsOfWhatHasGoneBeforeTheAnswerDoNotPileUp) {
  for (int i = 0; i < 10'000; ++i) {
    own_.deleted_pod("u" + std::to_string(i));
    clock_.advance(seconds(1));
  }
  EXPECT_LE(own_.size(), 1024u);
  EXPECT_TRUE(amended({shown(spec(1), "u9999").seen})[0].terminating) << "it may still be shown";
}

TEST_F(OwnWritesTest, TheLabelIsGoneUntilTheCacheSaysSo) {
  const ObservedPod member = shown(spec(1), "u1").seen;
  own_.unlabelled_pod("u1");
  own_.shows(shown(spec(1), "u1"));
  EXPECT_FALSE(amended({member})[0].member) << "an event from before";
  PodView without = shown(spec(1), "u1");
  without.seen.member = false;
  own_.shows(without);
  EXPECT_TRUE(amended({member})[0].member);
}

TEST_F(OwnWritesTest, APodWithoutItsLabelIsNoMember) {
  own_.unlabelled_pod("u1");
  EXPECT_FALSE(amended({shown(spec(1), "u1").seen})[0].member);
  EXPECT_TRUE(amended({shown(spec(2), "u2").seen})[0].member);
}

TEST_F(OwnWritesTest, TheOwnStatusIsNewerThanAnOldCache) {
  own_.wrote_job(job("11"));
  EXPECT_EQ(own_.newest(job("10"))->meta.resource_version, "11");
  EXPECT_EQ(own_.newest(job("12"))->meta.resource_version, "12");
  EXPECT_EQ(own_.newest(job("10"))->meta.resource_version, "10") << "it was caught up with before";
  EXPECT_EQ(own_.newest(nullptr), nullptr);
}

TEST_F(OwnWritesTest, ADeletedJobIsGoneUntilAListSaysOtherwise) {
  own_.deleted_job("job");
  EXPECT_EQ(own_.newest(job("10")), nullptr);
  clock_.advance(seconds(1));
  own_.lists_jobs(clock_.mono());
  EXPECT_NE(own_.newest(job("10")), nullptr);
}

TEST_F(OwnWritesTest, OfAJobThatIsGoneNothingIsRemembered) {
  own_.creating(spec(1));
  own_.created(spec(1), "u1");
  own_.wrote_job(job("11"));
  own_.deleted_job("job");
  const auto awaited_before = own_.awaited("job");
  ASSERT_EQ(awaited_before.size(), 1u);
  own_.shows_no_more(*job("12"));
  EXPECT_TRUE(own_.awaited("job").empty());
  std::vector<ObservedPod> pods;
  own_.amend("job", awaited_before, pods);
  EXPECT_TRUE(pods.empty()) << "not to a look that began before it went";
  ASSERT_NE(own_.newest(job("10")), nullptr);
  EXPECT_EQ(own_.newest(job("10"))->meta.resource_version, "10");
}

}  // namespace
}  // namespace trainyard::cluster
