// A status keeps to its bounds, and the newest in it.
#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/api/encode.h"
#include "control/policies/restart.h"
#include "tests/support/job_driver.h"

namespace trainyard::control {
namespace {

using api::ConditionType;
using api::FailureClass;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::JobDriver;
using testing_support::kBackoffOver;
using testing_support::make_job;

TEST(StatusSizeTest, AStatusOfTheLongestNamesAndTextsStaysWithinSixteenKibibytes) {
  auto manifest = make_job(2);
  manifest.metadata.name = std::string(57, 'j');
  manifest.metadata.uid = std::string(36, 'u');
  manifest.spec.failure_policy.backoff = {seconds(1), seconds(1)};
  for (const auto failure_class :
       {api::FailureClass::kApplication, api::FailureClass::kInfrastructure,
        api::FailureClass::kPreemption, api::FailureClass::kHang}) {
    manifest.spec.failure_policy.budgets.push_back({failure_class, 1000, seconds(1'000'000)});
  }
  api::FailureRule rule;
  rule.name = std::string(63, 'r');
  rule.action = api::RuleAction::kRestartJob;
  rule.on_exit_codes = {"", api::ExitCodeOperator::kNotIn, {0}};
  manifest.spec.failure_policy.rules = {rule};
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  for (int restart = 0; restart < 90; ++restart) {
    ContainerExit exit;
    exit.container = std::string(63, 'c');
    constexpr int kCodes[] = {1, 75, 143};
    exit.exit_code = kCodes[restart % 3];
    exit.signal = 15;
    exit.rank = 100'000;
    exit.last_step = int64_t{1} << 50;
    exit.message = std::string(4000, '"');
    job.cluster.finish_pod(job.member(0).name, exit);
    ASSERT_TRUE(job.settle());
    job.clock.advance(seconds(1) + std::chrono::nanoseconds(123'456'789));
    ASSERT_TRUE(job.settle());
  }
  ASSERT_EQ(job.status().restarts.total, 90);
  job.cluster.refuse_created_pods(Refusal{"AdmissionRefused", std::string(4000, '"')});
  ContainerExit exit;
  exit.exit_code = 1;
  exit.message = std::string(4000, '"');
  job.cluster.finish_pod(job.member(0).name, exit);
  ASSERT_TRUE(job.settle());
  ASSERT_TRUE(job.pass(seconds(2)));
  EXPECT_EQ(job.reason_of(ConditionType::kAccepted), "AdmissionRefused");
  int64_t largest = 0;
  for (const api::TrainingJobStatus& status : job.cluster.status_history())
    largest = std::max(largest, static_cast<int64_t>(api::encode_status(status).size()));
  EXPECT_LE(largest, api::kMaxStatusBytes);
  EXPECT_GT(largest, api::kMaxStatusBytes / 2) << "the test must come near the limit";
}

TEST(StatusSizeTest, FittingAStatusKeepsTheNewestAttempts) {
  api::TrainingJobStatus status;
  for (int64_t generation = 1; generation <= api::kMaxAttempts; ++generation) {
    api::Attempt attempt;
    attempt.generation = generation;
    attempt.node = std::string(2500, 'n');
    attempt.message = "m";
    status.attempts.push_back(attempt);
  }
  fit_status(status);
  EXPECT_LE(static_cast<int64_t>(api::encode_status(status).size()), api::kMaxStatusBytes);
  ASSERT_GE(status.attempts.size(), 4U);
  EXPECT_EQ(status.attempts.back().generation, api::kMaxAttempts);
  EXPECT_EQ(status.attempts.back().message, "m");
  EXPECT_EQ(status.attempts.front().message, "");
}

TEST(StatusSizeTest, FittingAStatusKeepsTheAttemptsThatCondemnPods) {
  api::TrainingJobStatus status;
  for (int64_t generation = 1; generation <= api::kMaxAttempts; ++generation) {
    api::Attempt attempt;
    attempt.generation = generation;
    attempt.node = std::string(2500, 'n');
    attempt.pod_uid = "pod";
    if (generation > 2) attempt.in_place = true;
    status.attempts.push_back(attempt);
  }
  fit_status(status);
  EXPECT_LT(static_cast<int64_t>(status.attempts.size()), api::kMaxAttempts);
  EXPECT_EQ(status.attempts[0].generation, 1);
  EXPECT_EQ(status.attempts[1].generation, 2);
  EXPECT_EQ(status.attempts.back().generation, api::kMaxAttempts);
}

TEST(StatusSizeTest, FittingAStatusCutsConditionsBeforeItForgetsAttempts) {
  api::TrainingJobStatus status;
  for (int i = 0; i < 11; ++i) {
    set_condition(status,
                  {static_cast<ConditionType>(i), api::ConditionStatus::kFalse, "Because",
                   std::string(2000, '"')},
                  {});
  }
  status.attempts.resize(4);
  fit_status(status);
  EXPECT_EQ(status.attempts.size(), 4u);
  EXPECT_LE(static_cast<int64_t>(api::encode_status(status).size()), api::kMaxStatusBytes);
}

TEST(StatusSizeTest, FittingAStatusForgetsOldRestartsLast) {
  api::TrainingJobStatus status;
  for (int i = 0; i < 11; ++i) {
    set_condition(status,
                  {static_cast<ConditionType>(i), api::ConditionStatus::kFalse,
                   std::string(64, 'R'), std::string(2000, '"')},
                  {});
  }
  for (int64_t generation = 1; generation <= api::kMaxAttempts; ++generation) {
    api::Attempt attempt;
    attempt.generation = generation;
    attempt.node = std::string(253, 'n');
    attempt.pod_name = std::string(63, 'p');
    attempt.message = std::string(2000, '"');
    push_attempt(status, attempt);
  }
  for (const auto failure_class :
       {api::FailureClass::kApplication, api::FailureClass::kInfrastructure,
        api::FailureClass::kPreemption, api::FailureClass::kHang}) {
    api::ClassRestarts entry{failure_class, api::kMaxRecentRestarts, {}};
    for (int i = 0; i < api::kMaxRecentRestarts; ++i)
      entry.recent.emplace_back(std::chrono::milliseconds(1'000'000'000'123 + i));
    status.restarts.classes.push_back(entry);
  }
  fit_status(status);
  EXPECT_LE(static_cast<int64_t>(api::encode_status(status).size()), api::kMaxStatusBytes);
  EXPECT_EQ(status.attempts.size(), 2U);
  const std::vector<Time>& oldest = status.restarts.classes.front().recent;
  EXPECT_EQ(std::ssize(oldest), policies::kCrowdedRecentRestarts);
  EXPECT_EQ(oldest.back(), Time(std::chrono::milliseconds(1'000'000'000'222))) << "the newest stay";
}

TEST(StatusSizeTest, FittingAStatusCutsTheConditionsAndWritesThemOnce) {
  api::TrainingJobStatus status;
  for (const auto type :
       {ConditionType::kAccepted, ConditionType::kScheduled, ConditionType::kRunning,
        ConditionType::kStalled, ConditionType::kFailureTarget, ConditionType::kFailed}) {
    set_condition(status, {type, api::ConditionStatus::kFalse, "Because", std::string(2000, '"')},
                  {});
  }
  api::TrainingJobStatus small = status;
  fit_status(small);
  EXPECT_EQ(small, status) << "it fits";
  for (int64_t generation = 1; generation <= 2; ++generation) {
    api::Attempt attempt;
    attempt.generation = generation;
    attempt.node = std::string(2500, 'n');
    status.attempts.push_back(attempt);
  }
  fit_status(status);
  EXPECT_LE(static_cast<int64_t>(api::encode_status(status).size()), api::kMaxStatusBytes);
  EXPECT_EQ(status.attempts.size(), 2u);
  for (const api::Condition& condition : status.conditions)
    EXPECT_EQ(static_cast<int64_t>(condition.message.size()), api::kMaxCrowdedMessage);
}

TEST(StatusSizeTest, AStatusThatIsCutIsNotWrittenAgainAndAgain) {
  auto manifest = make_job(2);
  manifest.metadata.name = std::string(57, 'j');
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  const Observed seen = job.cluster.truth();
  api::TrainingJobStatus full = seen.status;
  full.checkpoint.emplace();
  full.checkpoint->uri = std::string(11'000, 'u');
  ASSERT_TRUE(
      job.cluster.put_status(seen.key, seen.metadata.uid, full, seen.metadata.resource_version));
  job.cluster.set_room(false);
  job.fail(0, 1, std::string(4000, '"'));
  ASSERT_TRUE(job.pass(kBackoffOver));
  job.cluster.set_pod_condition(job.member(0).name,
                                {"PodScheduled", "False", "Unschedulable", std::string(4000, '"')});
  ASSERT_TRUE(job.settle());
  const int64_t writes = job.cluster.writes_count();
  ASSERT_TRUE(job.pass(seconds(1)));
  EXPECT_EQ(job.cluster.writes_count(), writes) << "nothing but time has passed";
  EXPECT_EQ(static_cast<int64_t>(job.message_of(ConditionType::kScheduled).size()),
            api::kMaxCrowdedMessage);
}

TEST(StatusSizeTest, AConditionTellsTheEndOfLastWords) {
  JobDriver job(make_job(1));
  ASSERT_TRUE(job.settle());
  job.fail(0, 1, "Traceback:" + std::string(900, ' ') + "ValueError: no such file");
  ASSERT_TRUE(job.settle());
  EXPECT_THAT(
      job.message_of(ConditionType::kRestarting),
      testing::AllOf(testing::HasSubstr("exit code 1: Traceback:"), testing::HasSubstr("..."),
                     testing::EndsWith("ValueError: no such file")));
}

TEST(StatusSizeTest, AnAttemptsHistoryIsBounded) {
  auto manifest = make_job(1);
  manifest.spec.failure_policy.budgets = {{FailureClass::kApplication, 15, seconds(1)}};
  JobDriver job(std::move(manifest));
  ASSERT_TRUE(job.settle());
  for (int failure = 0; failure < 14; ++failure) {
    job.fail(0, 1, std::string(3000, 'x') + "\n");
    ASSERT_TRUE(job.pass(kBackoffOver));
  }
  const auto status = job.status();
  EXPECT_EQ(static_cast<int64_t>(status.attempts.size()), api::kMaxAttempts);
  EXPECT_EQ(status.attempts.back().generation, 15);
  EXPECT_EQ(static_cast<int64_t>(status.attempts[8].message.size()), api::kMaxNewestAttemptMessage);
  EXPECT_EQ(static_cast<int64_t>(status.attempts[7].message.size()), api::kMaxAttemptMessage);
}

}  // namespace
}  // namespace trainyard::control
