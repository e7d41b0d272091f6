#include "cli/run/left_facts.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/api/decode.h"
#include "common/worker_contract.h"
#include "control/local/process.h"
#include "control/reconciler.h"
#include "control/status_edit.h"
#include "tests/support/local_world.h"
#include "tests/unit/control/local/local_cluster_world.h"

namespace trainyard::cli {
namespace {

using control::PodRef;
using control::local::AfterFailure;
using control::local::LocalCluster;
using control::local::LocalClusterOptions;
using testing_support::kScriptUntilTold;

class Agents final : public control::FactsSource {
 public:
  control::StreamFacts facts(const std::string& /*job_uid*/) const override { return told; }
  control::StreamFacts told;
};

class LeftFactsTest : public control::local::LocalClusterWorld {
 protected:
  LocalClusterOptions options() const {
    LocalClusterOptions options =
        testing_support::script_options(run_dir(), clock_, kScriptUntilTold);
    options.job.spec.engine = *api::decode_engine(
        R"({"model":{"layers":1,"hidden":8,"heads":1},"batch":{"globalSequences":8},
            "data":{"tokens":["/data"],"sequenceLength":8},"steps":10})",
        {.file = "engine"});
    return options;
  }

  /// A run of two pods, which have ended so; nobody has looked since they began.
  void leave_run_of(int first_code, int second_code) {
    cluster_ = *LocalCluster::open(options());
    control::Reconciler reconciler({.cluster = cluster_.get(), .clock = &clock_});
    reconciler.wake(cluster_->key());
    ASSERT_TRUE(testing_support::wait_until([&] {
      reconciler.run_next();
      return cluster_->observe(cluster_->key())->pods.size() == 2;
    }));
    pods_.clear();
    const auto observed = cluster_->observe(cluster_->key());
    for (const control::ObservedPod& pod : observed->pods) {
      pods_.push_back({"default", pod.name, pod.uid});
      ASSERT_TRUE(testing_support::tell_to_exit(run_dir(), pod.name,
                                                pod.node_index == 0 ? first_code : second_code));
    }
    for (const PodRef& pod : pods_)
      ended(pod);
  }

  api::TrainingJobStatus status() {
    return control::local::LocalCluster::open(options())
        .value()
        ->observe({"default", "job"})
        ->status;
  }

  std::vector<PodRef> pods_;
};

TEST_F(LeftFactsTest, AnEndedRunIsDecidedByTheJobThatItWas) {
  struct Case {
    int first;
    int second;
    bool changed;
    AfterFailure after;
    bool complete;
    bool failed;
  };
  const std::vector<Case> cases = {{0, 0, true, AfterFailure::kStay, true, false},
                                   {0, 0, false, AfterFailure::kTryAgain, true, false},
                                   {0, 0, false, AfterFailure::kStay, false, false},
                                   {0, 64, true, AfterFailure::kStay, false, true},
                                   {0, 75, true, AfterFailure::kStay, false, false},
                                   {75, 75, false, AfterFailure::kTryAgain, false, false}};
  for (const Case& one : cases) {
    SCOPED_TRACE(std::to_string(one.first) + " " + std::to_string(one.second));
    ASSERT_NO_FATAL_FAILURE(leave_run_of(one.first, one.second));
    cluster_.reset();
    LocalClusterOptions wanted = options();
    if (one.changed) wanted.job.spec.engine->steps = 20;
    wanted.after_failure = one.after;
    const Status settled = settle_ended_run(wanted);
    ASSERT_TRUE(settled) << settled.error().message;
    const api::TrainingJobStatus now = status();
    EXPECT_EQ(control::is_true(now, api::ConditionType::kComplete), one.complete);
    EXPECT_EQ(control::is_true(now, api::ConditionType::kFailed), one.failed);
    EXPECT_EQ(now.membership.generation, 1);
    std::filesystem::remove_all(run_dir());
  }
}

TEST_F(LeftFactsTest, WhatIsLeftOfADecidedRunEndsBeforeItIsOver) {
  cluster_ = *LocalCluster::open(options());
  const PodRef pod = create(0);
  const control::local::ProcessId process = process_of(pod);
  auto job = cluster_->observe(cluster_->key());
  job->status.membership.generation = 1;
  control::set_condition(
      job->status,
      {api::ConditionType::kFailureTarget, api::ConditionStatus::kTrue, "Because", "no more"},
      clock_.now());
  ASSERT_TRUE(cluster_->put_status(cluster_->key(), cluster_->job_uid(), job->status,
                                   job->metadata.resource_version));
  cluster_.reset();
  LocalClusterOptions wanted = options();
  wanted.after_failure = AfterFailure::kTryAgain;
  ASSERT_TRUE(settle_ended_run(wanted));
  EXPECT_TRUE(control::is_true(status(), api::ConditionType::kFailed));
  // What is killed is there until the kernel has taken it away.
  EXPECT_TRUE(testing_support::wait_until(
      [&] { return control::local::session_members(process.pid).empty(); }));
}

TEST_F(LeftFactsTest, ARunOfAnotherNameAndNoneAreLeftAlone) {
  ASSERT_TRUE(settle_ended_run(options()));
  EXPECT_FALSE(std::filesystem::exists(run_dir() / "job.json"));
  ASSERT_NO_FATAL_FAILURE(leave_run_of(0, 0));
  cluster_.reset();
  LocalClusterOptions other = options();
  other.job.metadata.name = "other";
  ASSERT_TRUE(settle_ended_run(other));
  EXPECT_FALSE(control::is_true(status(), api::ConditionType::kComplete));
}

TEST_F(LeftFactsTest, WhatRanksHaveLeftCountsOnceAllHaveEndedWell) {
  for (const int second : {0, 75}) {
    ASSERT_NO_FATAL_FAILURE(leave_run_of(0, second));
    const contract::RunResult result{.state_hash = "beef", .step = 10, .final_loss = 1.5};
    std::ofstream(run_dir() / "pods" / pods_[0].name / contract::kResultFile)
        << contract::encode(result);
    // Of a run before: no pod of this one has told it.
    std::ofstream(run_dir() / contract::kResultFile)
        << contract::encode(contract::RunResult{.state_hash = "dead", .step = 5});
    Agents agents;
    const LeftFacts left(agents, *cluster_);
    const control::StreamFacts facts = left.facts(cluster_->job_uid());
    EXPECT_EQ(facts.result.has_value(), second == 0);
    EXPECT_EQ(facts.hosted, second == 0);
    EXPECT_EQ(facts.rank_table_ready, second == 0);
    EXPECT_EQ(facts.generation, second == 0 ? 1 : 0);
    if (facts.result) {
      EXPECT_EQ(facts.result->state_hash, "beef");
    }
    agents.told.hosted = true;
    agents.told.generation = 2;
    EXPECT_FALSE(left.facts(cluster_->job_uid()).result) << "another generation has begun";
    agents.told.generation = 1;
    agents.told.result = contract::RunResult{.state_hash = "told"};
    EXPECT_EQ(left.facts(cluster_->job_uid()).result->state_hash, "told");
    cluster_.reset();
    std::filesystem::remove_all(run_dir());
  }
}

}  // namespace
}  // namespace trainyard::cli
