// Pods that have nodes, and whose containers do not start.
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/job_driver.h"

namespace trainyard::control {
namespace {

using api::ConditionType;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing_support::JobDriver;
using testing_support::make_job;
using testing_support::MemoryCluster;

/// A job of three whose pods have nodes and have not begun.
class TroubledJob : public JobDriver {
 public:
  TroubledJob() : JobDriver(make_job(3)) {
    (void)reconciler->reconcile(cluster.key());
    cluster.step();  // it only places them
  }
  void wait(int index, const std::string& reason, const std::string& message = "") {
    cluster.set_waiting(member(index).name,
                        WaitingContainer{"trainer", reason, message, clock.now()});
  }
  void start(int index) { cluster.set_waiting(member(index).name, std::nullopt); }
  int64_t warnings(const std::string& reason) const {
    const auto writes = cluster.writes();
    return std::count_if(writes.begin(), writes.end(), [&](const MemoryCluster::Write& write) {
      return write.kind == MemoryCluster::Write::Kind::kEvent && write.what == reason;
    });
  }
};

TEST(TroubleTest, TheFirstPodsWordsAreToldOnceAndGoWhenItStarts) {
  TroubledJob job;
  job.wait(1, "ErrImagePull", "no such image");
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.reason_of(ConditionType::kRunning), "ImagePull");
  const std::string told =
      "1 of 3 pods: pod " + job.member(1).name + " container trainer: ErrImagePull: no such image";
  EXPECT_EQ(job.message_of(ConditionType::kRunning), told);
  EXPECT_EQ(job.status().phase, api::JobPhase::kStarting);
  EXPECT_EQ(job.status().reason, "ImagePull");
  EXPECT_EQ(job.status().message, told);

  const size_t before = job.cluster.status_history().size();
  job.wait(1, "ImagePullBackOff", "Back-off pulling image");
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.message_of(ConditionType::kRunning), told) << "the first words say why";
  EXPECT_EQ(job.cluster.status_history().size(), before);
  job.wait(2, "ImagePullBackOff");
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.message_of(ConditionType::kRunning), "2" + told.substr(1));
  EXPECT_EQ(job.warnings("ImagePull"), 1);

  job.start(1);
  job.start(2);
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(job.is(ConditionType::kRunning));
  EXPECT_EQ(job.status().reason, "AllNodesReady");
  EXPECT_EQ(job.status().restarts.total, 0);
}

TEST(TroubleTest, AConfigurationThatIsMissingIsAnotherReason) {
  TroubledJob job;
  job.wait(0, "CreateContainerConfigError", "secret \"keys\" not found");
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.reason_of(ConditionType::kRunning), "ContainerConfig");
  EXPECT_THAT(job.message_of(ConditionType::kRunning), HasSubstr("secret \"keys\" not found"));
  ASSERT_TRUE(job.pass(seconds(600)));
  EXPECT_EQ(job.status().restarts.total, 0) << "somebody may make it yet";
}

TEST(TroubleTest, AJobThatNeverBeganIsBoundByTheStartupTimeout) {
  TroubledJob job;
  job.cluster.edit_spec(
      [](api::TrainingJobSpec& spec) { spec.progress_policy.startup_timeout = seconds(100); });
  job.wait(1, "ErrImagePull", "no such image");
  ASSERT_TRUE(job.pass(seconds(99)));
  EXPECT_EQ(job.status().restarts.total, 0);
  ASSERT_TRUE(job.pass(seconds(2)));
  EXPECT_EQ(job.status().restarts.total, 1);
  EXPECT_EQ(job.status().attempts[0].failure_class, api::FailureClass::kHang);
}

TEST(TroubleTest, WhatAQuotaHoldsIsNotWaitingForNodes) {
  JobDriver job(make_job(2));
  job.cluster.refuse_created_pods(Refusal{api::reason::kAdmissionRefused, "exceeded quota"});
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().reason, "AdmissionRefused");
  EXPECT_EQ(job.status().message, "exceeded quota");
  job.cluster.refuse_created_pods(std::nullopt);
  ASSERT_TRUE(job.pass(seconds(30)));
  EXPECT_EQ(job.status().reason, "AllNodesReady");
}

/// An older definition of TrainingJobs has no place for them.
TEST(TroubleTest, AReasonThatIsNotStoredIsNotWrittenAgainAndAgain) {
  JobDriver job(make_job(2));
  job.cluster.drop_from_statuses([](api::TrainingJobStatus& status) {
    status.reason.clear();
    status.message.clear();
  });
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(job.is(ConditionType::kRunning));
  EXPECT_EQ(job.status().reason, "");
  job.cluster.finish_all();
  ASSERT_TRUE(job.settle());
  EXPECT_TRUE(job.is(ConditionType::kComplete));
}

/// Not after the half hour of a stall, and against the budget of the program's own failures.
TEST(TroubleTest, AnImageThatNobodyWillEverHaveFailsTheJob) {
  for (const char* reason : {"InvalidImageName", "ErrImageNeverPull"}) {
    TroubledJob job;
    job.cluster.edit_spec([](api::TrainingJobSpec& spec) {
      spec.failure_policy.budgets = {
          {.failure_class = api::FailureClass::kApplication, .max_restarts = 0}};
    });
    job.wait(1, reason, "couldn't parse");
    ASSERT_TRUE(job.pass(seconds(59)));
    EXPECT_FALSE(job.is(ConditionType::kFailed));
    ASSERT_TRUE(job.pass(seconds(1)));
    ASSERT_TRUE(job.settle());
    EXPECT_TRUE(job.is(ConditionType::kFailed)) << reason;
    const api::Attempt attempt = job.status().attempts.back();
    EXPECT_EQ(attempt.failure_class, api::FailureClass::kApplication);
    EXPECT_EQ(attempt.reason, "ImagePull");
    EXPECT_EQ(attempt.container, "trainer");
    EXPECT_EQ(attempt.message, std::string(reason) + ": couldn't parse");
  }
}

TEST(TroubleTest, ThePhaseSaysWhy) {
  JobDriver job(make_job(2));
  job.cluster.set_room(false);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().reason, "WaitingForGang");
  job.cluster.set_room(true);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().reason, "AllNodesReady");
  job.fail(0, 1);
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().reason, "PodFailed");
  EXPECT_THAT(job.status().message, HasSubstr("exit code 1"));
  job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  ASSERT_TRUE(job.settle());
  EXPECT_EQ(job.status().reason, "Suspended");
}

}  // namespace
}  // namespace trainyard::control
