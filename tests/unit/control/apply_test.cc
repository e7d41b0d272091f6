// What a reconcile does to pods and to what stands beside them: in which order, and what the
// answers mean.
#include "control/apply.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/job_driver.h"

namespace trainyard::control {
namespace {

using std::chrono::seconds;
using testing_support::make_job;
using testing_support::ManualClock;
using testing_support::MemoryCluster;
using testing_support::StillFacts;

/// A cluster whose deletions and labels end in an error.
class ErrorCluster final : public MemoryCluster {
 public:
  using MemoryCluster::MemoryCluster;
  Status delete_pod(const PodRef& pod, Duration grace) override {
    if (of_delete) return Error{*of_delete, "delete"};
    return MemoryCluster::delete_pod(pod, grace);
  }
  Status remove_member_label(const PodRef& pod) override {
    if (of_label) return Error{*of_label, "label"};
    return MemoryCluster::remove_member_label(pod);
  }
  Status delete_job(const JobKey& key, const std::string& uid) override {
    if (of_delete_job) return Error{*of_delete_job, "delete the job"};
    return MemoryCluster::delete_job(key, uid);
  }
  std::optional<ErrorCode> of_delete;
  std::optional<ErrorCode> of_label;
  std::optional<ErrorCode> of_delete_job;
};

/// Whether a reconcile that finds a deleted pod succeeds though its calls end so.
bool succeeds(std::optional<ErrorCode> of_delete, std::optional<ErrorCode> of_label) {
  const ManualClock clock;
  ErrorCluster cluster(clock, make_job(2));
  Reconciler reconciler({.cluster = &cluster, .clock = &clock});
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(reconciler.reconcile(cluster.key()).has_value());
    cluster.step();
  }
  cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  cluster.of_delete = of_delete;
  cluster.of_label = of_label;
  return reconciler.reconcile(cluster.key()).has_value();
}

TEST(GoneTest, APodThatIsGoneOrAnotherIsAsGoodAsDeleted) {
  EXPECT_TRUE(succeeds({}, {}));
  for (const ErrorCode gone : {ErrorCode::kNotFound, ErrorCode::kConflict}) {
    EXPECT_TRUE(succeeds(gone, {}));
    EXPECT_TRUE(succeeds({}, gone));
  }
  for (const ErrorCode failed : {ErrorCode::kUnavailable, ErrorCode::kDeadline, ErrorCode::kIo}) {
    EXPECT_FALSE(succeeds(failed, {}));
    EXPECT_FALSE(succeeds({}, failed));
  }
}

TEST(GoneTest, SoIsAJob) {
  for (const auto& [code, good] :
       {std::pair(ErrorCode::kNotFound, true), std::pair(ErrorCode::kUnavailable, false)}) {
    ManualClock clock;
    auto job = make_job(1);
    job.spec.ttl_after_finished = seconds(1);
    ErrorCluster cluster(clock, std::move(job));
    Reconciler reconciler({.cluster = &cluster, .clock = &clock});
    const auto rounds = [&] {
      for (int i = 0; i < 4; ++i) {
        ASSERT_TRUE(reconciler.reconcile(cluster.key()).has_value());
        cluster.step();
      }
    };
    rounds();
    cluster.finish_all();
    rounds();
    clock.advance(seconds(2));
    cluster.of_delete_job = code;
    EXPECT_EQ(reconciler.reconcile(cluster.key()).has_value(), good);
  }
}

/// Takes down every call that changes pods or stands beside them.
class RecordingCluster final : public MemoryCluster {
 public:
  using MemoryCluster::MemoryCluster;
  Status delete_pod(const PodRef& pod, Duration grace) override {
    calls.push_back("delete " + pod.name);
    last_grace = grace;
    return MemoryCluster::delete_pod(pod, grace);
  }
  Status remove_member_label(const PodRef& pod) override {
    calls.push_back("label " + pod.name);
    return MemoryCluster::remove_member_label(pod);
  }
  Result<CreateReply> create_pod(const PodSpec& spec) override {
    calls.push_back("create " + spec.name);
    return MemoryCluster::create_pod(spec);
  }
  Result<std::optional<Refusal>> keep_companions(const Observed& observed,
                                                 const api::TrainingJobStatus& status) override {
    calls.push_back("companions");
    companions_status = status;
    if (companions) return *companions;
    return MemoryCluster::keep_companions(observed, status);
  }
  Status emit_event(const JobKey& key, const Event& event) override {
    events.push_back(event);
    return MemoryCluster::emit_event(key, event);
  }
  /// What was called since the last time.
  std::vector<std::string> taken() { return std::exchange(calls, {}); }

  std::vector<std::string> calls;
  std::vector<Event> events;
  Duration last_grace{};
  api::TrainingJobStatus companions_status;  ///< that they were kept for last
  std::optional<Result<std::optional<Refusal>>> companions;
};

class ApplyTest : public testing::Test {
 protected:
  void start(api::TrainingJob job) {
    cluster_ = std::make_unique<RecordingCluster>(clock_, std::move(job));
    reconciler_ = std::make_unique<Reconciler>(
        Reconciler::Options{.cluster = cluster_.get(), .clock = &clock_, .facts = &facts_});
  }
  Result<Reconciled> look() { return reconciler_->reconcile(cluster_->key()); }
  void run() {
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(look().has_value());
      cluster_->step();
    }
    cluster_->taken();
  }
  static std::string pod(int index, int64_t generation = 1) {
    return pod_name("job", "job-uid-1", index, generation);
  }

  ManualClock clock_;
  StillFacts facts_;
  std::unique_ptr<RecordingCluster> cluster_;
  std::unique_ptr<Reconciler> reconciler_;
};

TEST_F(ApplyTest, CompanionsStandBeforeTheFirstPodIsMade) {
  start(make_job(2));
  ASSERT_TRUE(look().has_value());
  EXPECT_THAT(cluster_->taken(),
              testing::ElementsAre("companions", "create " + pod(0), "create " + pod(1)));
}

TEST_F(ApplyTest, WithoutItsCompanionsNoPodIsMade) {
  start(make_job(2));
  cluster_->companions = std::optional<Refusal>(Refusal{api::reason::kNameConflict, "taken"});
  const auto refused = look();
  ASSERT_TRUE(refused.has_value());
  EXPECT_TRUE(refused->refused);
  EXPECT_THAT(cluster_->taken(), testing::Each("companions"));
  const auto status = cluster_->truth().status;
  EXPECT_EQ(find_condition(status, api::ConditionType::kAccepted)->reason, "NameConflict");
  cluster_->companions = Error{ErrorCode::kUnavailable, "no server"};
  EXPECT_FALSE(look().has_value());
  EXPECT_THAT(cluster_->taken(), testing::Each("companions"));
}

TEST_F(ApplyTest, EachPodIsUnlabelledAndEndedOnceLabelsFirstWhateverBecomesOfCompanions) {
  start(make_job(2));
  run();
  cluster_->edit_spec([](api::TrainingJobSpec& spec) { spec.suspend = true; });
  cluster_->companions = Error{ErrorCode::kUnavailable, "no server"};
  EXPECT_FALSE(look().has_value());
  EXPECT_THAT(cluster_->taken(),
              testing::ElementsAre("label " + pod(0), "label " + pod(1), "delete " + pod(0),
                                   "delete " + pod(1), "companions"));
  EXPECT_EQ(cluster_->last_grace, Duration(grace_of(cluster_->truth().spec)));
}

TEST_F(ApplyTest, ADecisionThatIsWrittenIsToldOnceThoughItsApplicationIsCutShort) {
  start(make_job(2));
  run();
  const auto told = [&] {
    std::vector<std::string> reasons;
    for (const MemoryCluster::Write& write : cluster_->writes()) {
      if (write.kind == MemoryCluster::Write::Kind::kEvent) reasons.push_back(write.what);
    }
    return reasons;
  };
  ContainerExit exit;
  exit.exit_code = 1;
  cluster_->finish_pod(pod(0), exit);
  cluster_->companions = Error{ErrorCode::kUnavailable, "no server"};
  EXPECT_FALSE(look().has_value());
  EXPECT_EQ(cluster_->truth().status.membership.generation, 2);
  EXPECT_THAT(told(), testing::ElementsAre("Started", "Restarting"));
  cluster_->companions.reset();
  ASSERT_TRUE(look().has_value());
  EXPECT_THAT(told(), testing::ElementsAre("Started", "Restarting"));
}

TEST_F(ApplyTest, CompanionsFollowTheOutcomeInTheSameReconcile) {
  auto job = make_job(2);
  job.spec.success_policy.rules.push_back({"0", std::nullopt});
  start(std::move(job));
  run();
  cluster_->finish_pod(pod(0), ContainerExit());
  ASSERT_TRUE(look().has_value());
  ASSERT_TRUE(is_true(cluster_->truth().status, api::ConditionType::kSuccessCriteriaMet));
  ASSERT_FALSE(is_true(cluster_->truth().status, api::ConditionType::kComplete)) << "a pod is left";
  cluster_->step();
  ASSERT_TRUE(look().has_value());
  EXPECT_TRUE(is_true(cluster_->truth().status, api::ConditionType::kComplete));
  EXPECT_EQ(cluster_->companions_status, cluster_->truth().status);
}

TEST_F(ApplyTest, ARefusalHidesNoEarlierLook) {
  auto job = make_job(2);
  job.spec.active_deadline = seconds(5);
  start(std::move(job));
  cluster_->refuse_created_pods(Refusal{api::reason::kAdmissionRefused, "exceeded quota"});
  ASSERT_TRUE(look().has_value());  // the first generation begins, and with it the time
  EXPECT_EQ(look()->requeue_after, seconds(5)) << "the deadline comes before the next try";
}

/// The gang's first: an event that is not taken ends the telling.
TEST_F(ApplyTest, ARefusalOfTheGangAndOneOfASpareAreToldOnceEach) {
  start(make_job(1));
  cluster_->refuse_created_pods(Refusal{api::reason::kAdmissionRefused, "exceeded quota"});
  const auto apply_both = [&] {
    const Observed observed = cluster_->truth();
    Plan planned;
    planned.create.push_back(make_pod_spec(observed.metadata, observed.spec, 0, 1, 1));
    planned.create_spares.push_back(make_spare_spec(observed.metadata, observed.spec, 1, 1, 1));
    const Applied applied = apply(*cluster_, observed, planned, clock_.now());
    EXPECT_FALSE(applied.error.has_value());
  };
  const Event of_gang{EventType::kWarning, "AdmissionRefused", "exceeded quota"};
  const Event of_spare{EventType::kWarning, "AdmissionRefused", "no spare pod: exceeded quota"};
  apply_both();
  EXPECT_THAT(cluster_->events, testing::ElementsAre(of_gang, of_spare));
  apply_both();
  EXPECT_THAT(cluster_->events, testing::ElementsAre(of_gang, of_spare)) << "told already";
}

TEST_F(ApplyTest, AFencedGenerationHasTenSecondsToEnd) {
  start(make_job(2));
  run();
  facts_.now.hosted = true;
  cluster_->delete_from_outside(pod(0));
  ASSERT_TRUE(look().has_value());
  EXPECT_THAT(cluster_->taken(), testing::Contains("delete " + pod(1)));
  EXPECT_EQ(cluster_->last_grace, Duration(seconds(10)));
}

}  // namespace
}  // namespace trainyard::control
