// A gang has one worker image, whatever the operator would give new pods by now.
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/staying_job.h"

namespace trainyard::control {
namespace {

using api::RestartStrategy;
using ::testing::HasSubstr;
using testing_support::job_of;
using testing_support::kBackoffOver;
using testing_support::StayingJob;

/// A job that began under an operator with the image "old"; that of now has "new".
class UpgradedJob : public StayingJob {
 public:
  explicit UpgradedJob(RestartStrategy strategy, bool restarts_renew = true)
      : StayingJob(of(strategy)) {
    cluster.set_worker_image("old");
    cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
    EXPECT_TRUE(settle());
    cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = false; });
    EXPECT_TRUE(settle());
    carry_out();
    EXPECT_EQ(images(), std::set<std::string>{"old"});
    EXPECT_EQ(status().membership.worker_image, "old");
    cluster.set_worker_image("new", restarts_renew);
    restart_controller();
    EXPECT_TRUE(settle());
  }

  std::set<std::string> images() const {
    std::set<std::string> found;
    for (int index = 0; index < kNodes; ++index)
      found.insert(member(index).worker_image);
    return found;
  }

  static constexpr int kNodes = 3;

 private:
  static api::TrainingJob of(RestartStrategy strategy) { return job_of(kNodes, strategy); }
};

TEST(WorkerImageTest, APodThatIsReplacedAloneGetsThatOfItsGang) {
  for (const RestartStrategy strategy : {RestartStrategy::kReplacePod, RestartStrategy::kInPlace}) {
    UpgradedJob job(strategy);
    const std::string kept = job.member(0).uid;
    job.cluster.delete_from_outside(job.member(1).name);
    ASSERT_TRUE(job.pass(kBackoffOver));
    EXPECT_EQ(job.member(0).uid, kept);
    EXPECT_GT(job.member(1).created_generation, job.member(0).created_generation);
    EXPECT_EQ(job.images(), std::set<std::string>{"old"});
    EXPECT_EQ(job.status().membership.worker_image, "old");
  }
}

TEST(WorkerImageTest, ARestartOfAllPodsTakesTheNewOneWhereItMay) {
  for (const bool renews : {true, false}) {
    UpgradedJob job(RestartStrategy::kRecreateAll, renews);
    EXPECT_EQ(job.images(), std::set<std::string>{"old"}) << "the upgrade alone restarts nothing";
    job.fail(1, 1);
    ASSERT_TRUE(job.pass(kBackoffOver));
    EXPECT_EQ(job.images(), std::set<std::string>{renews ? "new" : "old"});
    job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
    ASSERT_TRUE(job.settle());
    job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = false; });
    ASSERT_TRUE(job.settle());
    EXPECT_EQ(job.images(), std::set<std::string>{"new"}) << "a resumption always takes it";
    EXPECT_EQ(job.status().membership.worker_image, "new");
  }
}

/// One that restarts may not renew: pods of another configuration need what belongs to it.
TEST(WorkerImageTest, AnEditedSpecTakesTheNewOne) {
  UpgradedJob job(RestartStrategy::kRecreateAll, /*restarts_renew=*/false);
  job.cluster.edit_spec(
      [](api::TrainingJobSpec& spec) { spec.pod_template.emplace().json = "{}"; });
  job.fail(1, 1);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.images(), std::set<std::string>{"new"});
}

/// The operator of before has not written it down, and was upgraded while it made the gang.
TEST(WorkerImageTest, AGangThatWasBegunWithoutItIsMadeWhole) {
  UpgradedJob job(RestartStrategy::kRecreateAll);
  job.cluster.set_worker_image("old");
  job.fail(1, 1);
  ASSERT_TRUE(job.settle());
  job.clock.advance(kBackoffOver);
  job.cluster.set_quota(2);
  ASSERT_TRUE(job.settle());
  job.cluster.edit_status(
      [](api::TrainingJobStatus& status) { status.membership.worker_image.clear(); });
  job.cluster.set_worker_image("new");
  job.restart_controller();
  job.cluster.set_quota(100);
  ASSERT_TRUE(job.pass(kBackoffOver));
  EXPECT_EQ(job.images(), std::set<std::string>{"old"});
  EXPECT_EQ(job.status().membership.worker_image, "old");
}

TEST(WorkerImageTest, AChangeOfSizeTakesTheNewOneWhereItMay) {
  for (const bool renews : {true, false}) {
    UpgradedJob job(RestartStrategy::kReplacePod, renews);
    job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.num_nodes = 4; });
    ASSERT_TRUE(job.pass(kBackoffOver));
    EXPECT_EQ(job.status().nodes.target, 4);
    EXPECT_EQ(job.images(), std::set<std::string>{renews ? "new" : "old"});
    EXPECT_EQ(job.member(3).worker_image, renews ? "new" : "old");
  }
}

TEST(WorkerImageTest, ASpareHasThatOfItsGang) {
  UpgradedJob job(RestartStrategy::kInPlace);
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.spares.count = 1; });
  ASSERT_TRUE(job.pass(kBackoffOver));
  const Observed truth = job.cluster.truth();
  const auto spare = std::find_if(truth.pods.begin(), truth.pods.end(),
                                  [](const ObservedPod& pod) { return pod.spare.has_value(); });
  ASSERT_NE(spare, truth.pods.end());
  EXPECT_EQ(spare->worker_image, "old");
}

/// The generation is written down, the process has ended, and the next one has another image.
TEST(WorkerImageTest, WhoeverGoesOnMakesThePodsThatWereDecided) {
  for (int write = 0; write < 8; ++write) {
    UpgradedJob job(RestartStrategy::kRecreateAll);
    job.fail(1, 1);
    job.clock.advance(kBackoffOver);
    job.cluster.crash_at(write, testing_support::MemoryCluster::CrashPoint::kAfter);
    for (int round = 0; round < 20 && !job.cluster.crashed(); ++round) {
      (void)job.reconciler->reconcile(job.cluster.key());
      job.cluster.step();
      job.clock.advance(kBackoffOver);
    }
    const std::string decided = job.status().membership.worker_image;
    job.cluster.set_worker_image("newest");
    job.restart_controller();
    ASSERT_TRUE(job.pass(kBackoffOver));
    EXPECT_EQ(job.images().size(), 1U) << write;
    const bool is_later = job.status().membership.generation > 3;
    EXPECT_EQ(job.images(),
              std::set<std::string>{is_later || decided == "old" ? "newest" : decided})
        << write;
  }
}

/// As where nodes have different images under one tag. An agent of before tells no build.
TEST(WorkerImageTest, AGangOfTwoBuildsIsMadeAnew) {
  for (const std::string build : {"b2", ""}) {
    StayingJob job(job_of(3));
    for (MemberFact& member : job.facts.now.members)
      member.build = "a1";
    ASSERT_TRUE(job.settle());
    EXPECT_EQ(job.status().restarts.total, 0) << "one build";
    job.facts.now.members[2].build = build;
    ASSERT_TRUE(job.settle());
    EXPECT_EQ(job.reason_of(api::ConditionType::kRestarting), "MixedBuilds");
    EXPECT_EQ(job.status().attempts[0].reason, "MixedBuilds");
    EXPECT_THAT(job.status().attempts[0].message,
                HasSubstr(job.facts.now.members[2].pod_name +
                          (build.empty() ? " (no build ID)" : " (b2)")));
    ASSERT_TRUE(job.pass(kBackoffOver));
    EXPECT_EQ(job.status().restarts.total, 1) << "once";
    for (int index = 0; index < 3; ++index)
      EXPECT_EQ(job.member(index).created_generation, 2);
  }
}

/// The restart of a pod that is lost comes first: what is left is looked at then.
TEST(WorkerImageTest, TwoBuildsDoNotHideALoss) {
  StayingJob job(job_of(2));
  job.facts.now.members[0].build = "a1";
  job.fail_rank(1, 1);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().attempts[0].reason, "PodFailed");
}

/// On one machine, and in pods of a program without an agent.
TEST(WorkerImageTest, WithoutOneNoneIsWritten) {
  StayingJob job(job_of(2));
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().membership.worker_image, "");
}

}  // namespace
}  // namespace trainyard::control
