// What a process asks the server for that follows another one, whose pods its views may lack.
#include <memory>

#include <gtest/gtest.h>

#include "control/reconciler.h"
#include "tests/support/job_driver.h"

namespace trainyard::control {
namespace {

using testing_support::make_job;
using testing_support::ManualClock;
using testing_support::MemoryCluster;

const Refusal kNoneTaken{api::reason::kAdmissionRefused, "exceeded quota"};

/// Counts how often the pods are listed.
class ListedCluster : public MemoryCluster {
 public:
  using MemoryCluster::MemoryCluster;
  Result<std::vector<ObservedPod>> list_pods(const Observed& observed) override {
    ++lists;
    return MemoryCluster::list_pods(observed);
  }
  int lists = 0;
};

class UnseenPodsTest : public testing::TestWithParam<api::RestartStrategy> {
 protected:
  /// The second generation of a gang of two is written down, and none of its pods is taken; this
  /// process has just begun.
  UnseenPodsTest() : cluster_(clock_, job()) {
    begin();
    look(6);
    cluster_.refuse_created_pods(kNoneTaken);
    ContainerExit killed;
    killed.exit_code = 137;
    killed.signal = 9;
    cluster_.finish_pod(cluster_.truth().pods.at(0).name, killed);
    for (int i = 0; i < 4; ++i) {
      look(3);
      clock_.advance(testing_support::kBackoffOver);
    }
    begin();
    cluster_.lists = 0;
  }

  static api::TrainingJob job() {
    api::TrainingJob made = make_job(2);
    made.spec.failure_policy.restart_strategy = GetParam();
    return made;
  }
  void begin() {
    cluster_.reconnect();
    reconciler_ = std::make_unique<Reconciler>(
        Reconciler::Options{&cluster_, &clock_, nullptr, nullptr, {}, {}});
  }
  void look(int times) {
    for (int i = 0; i < times; ++i) {
      (void)reconciler_->reconcile(cluster_.key());
      cluster_.step();
    }
  }

  ManualClock clock_;
  ListedCluster cluster_;
  std::unique_ptr<Reconciler> reconciler_;
};

TEST_P(UnseenPodsTest, AreListedOnceWhereAllAreMadeAnewAndElseAtEachLook) {
  ASSERT_EQ(cluster_.truth().status.membership.generation, 2);
  look(1);
  EXPECT_EQ(cluster_.lists, 1);
  look(2);
  EXPECT_EQ(cluster_.lists, GetParam() == api::RestartStrategy::kRecreateAll ? 1 : 3);
}

TEST_P(UnseenPodsTest, AreListedAgainAfterAFailure) {
  cluster_.refuse_created_pods(std::nullopt);
  cluster_.crash_at(1, MemoryCluster::CrashPoint::kBefore);  // after the status, a creation
  EXPECT_FALSE(reconciler_->reconcile(cluster_.key()).has_value());
  EXPECT_EQ(cluster_.lists, 1);
  cluster_.reconnect();
  look(1);
  EXPECT_EQ(cluster_.lists, 2);
}

INSTANTIATE_TEST_SUITE_P(Strategies, UnseenPodsTest,
                         testing::Values(api::RestartStrategy::kRecreateAll,
                                         api::RestartStrategy::kReplacePod),
                         [](const auto& strategy) {
                           return strategy.param == api::RestartStrategy::kRecreateAll
                                      ? "RecreateAll"
                                      : "ReplacePod";
                         });

}  // namespace
}  // namespace trainyard::control
