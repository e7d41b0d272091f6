// The disruption budget that stands beside the pods of a job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/operator/cluster/companions_world.h"

namespace trainyard::cluster {
namespace {

using api::ConditionType;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class BudgetTest : public CompanionsTest {};

TEST_F(BudgetTest, ABudgetThatCouldNotBeMadeIsTriedAgain) {
  done();   // the service
  taken();  // the budget of the job before, which ...
  left_over();
  done();
  taken();  // ... a finalizer holds
  EXPECT_EQ(kept().back(), "POST poddisruptionbudgets");
  EXPECT_TRUE(companions_.due_in("now").has_value()) << "nothing tells when that one is gone";
  done();
  EXPECT_THAT(kept(), ElementsAre("POST poddisruptionbudgets"));
  EXPECT_THAT(kept(), IsEmpty()) << "now it stands";
  EXPECT_FALSE(companions_.due_in("now").has_value());
}

TEST_F(BudgetTest, ABudgetThatCouldNotBeMadeIsWantedNoMoreWhenTheJobIsOver) {
  done();   // the service
  taken();  // as above
  left_over();
  done();
  taken();
  (void)kept();
  ASSERT_TRUE(companions_.due_in("now").has_value());
  set(api::ConditionType::kSuccessCriteriaMet);
  (void)kept();
  EXPECT_FALSE(companions_.due_in("now").has_value());
}

TEST_F(BudgetTest, ABudgetLetsOneMemberGo) {
  settle();
  EXPECT_EQ(sent()["spec"]["minAvailable"], 2);
}

TEST_F(BudgetTest, AGangHasItsBudgetFromWhenItIsUpWhateverBecomesOfItsPodsThen) {
  status_.nodes.ready = 2;
  done();
  EXPECT_THAT(kept(), ElementsAre("POST services"));
  set(ConditionType::kScheduled);
  EXPECT_THAT(kept(), IsEmpty()) << "it is known to have none";
  status_.nodes.ready = 3;
  done();
  EXPECT_THAT(kept(), ElementsAre("POST poddisruptionbudgets"));
  status_.nodes.ready = 1;
  status_.nodes.target = 2;
  ours();
  done();
  EXPECT_THAT(kept(), ElementsAre("GET poddisruptionbudgets", "PATCH poddisruptionbudgets"));
}

/// A new leader first sees a gang that gathers, as it was before its predecessor made the budget.
TEST_F(BudgetTest, ABudgetOfTheLeaderBeforeGoesThoughTheFirstViewWasOlder) {
  status_.nodes.ready = 2;
  done();
  EXPECT_THAT(kept(), ElementsAre("POST services"));
  set(ConditionType::kSuccessCriteriaMet);
  ours();
  done();
  EXPECT_THAT(kept(), ElementsAre("GET poddisruptionbudgets", "DELETE poddisruptionbudgets"));
  EXPECT_THAT(kept(), IsEmpty()) << "it is gone";
}

TEST_F(BudgetTest, AJobOfOneNodeHasNoBudgetAndAsksForNone) {
  spec_.num_nodes = 1;
  status_.nodes.target = 1;
  done();
  EXPECT_THAT(kept(), ElementsAre("POST services"));
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(BudgetTest, ABudgetOfAnotherSizeIsChangedWhereItIsTheSameObject) {
  settle();
  status_.nodes.target = 2;
  ours();
  done();
  EXPECT_THAT(kept(), ElementsAre("GET poddisruptionbudgets", "PATCH poddisruptionbudgets"));
  EXPECT_EQ(sent()["spec"]["minAvailable"], 1);
  EXPECT_EQ(sent()["metadata"]["uid"], "uid-of-object");
  EXPECT_EQ(sent()["metadata"]["resourceVersion"], "4") << "it may come late";
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(BudgetTest, ABudgetThatSomebodyHasRemovedIsMadeAnew) {
  settle();
  status_.nodes.target = 2;
  missing();
  done();
  EXPECT_THAT(kept(), ElementsAre("GET poddisruptionbudgets", "POST poddisruptionbudgets"));
  EXPECT_EQ(sent()["spec"]["minAvailable"], 1);
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(BudgetTest, ABudgetThatIsGoneAndCannotBeMadeAnewIsAFault) {
  settle();
  status_.nodes.target = 2;
  missing();
  broken();
  EXPECT_THAT(fault().message, HasSubstr("create PodDisruptionBudget train"));
  missing();
  done();
  EXPECT_THAT(kept(), ElementsAre("GET poddisruptionbudgets", "POST poddisruptionbudgets"));
}

TEST_F(BudgetTest, ABudgetThatCouldNotBeChangedIsTriedAgain) {
  settle();
  status_.nodes.target = 2;
  ours();
  broken();
  EXPECT_THAT(fault().message, HasSubstr("patch PodDisruptionBudget train"));
  broken();
  EXPECT_THAT(fault().message, HasSubstr("get PodDisruptionBudget train"));
  ours();
  done();
  EXPECT_THAT(kept(), ElementsAre("GET poddisruptionbudgets", "PATCH poddisruptionbudgets"));
}

TEST_F(BudgetTest, ABudgetThatTheJobHasAlreadyIsBroughtInLine) {
  done();
  taken();
  ours();
  done();
  EXPECT_THAT(kept(), ElementsAre("POST services", "POST poddisruptionbudgets",
                                  "GET poddisruptionbudgets", "PATCH poddisruptionbudgets"));
}

TEST_F(BudgetTest, ABudgetOfSomebodyElseIsLeftAloneAndLetsTheJobRun) {
  done();
  taken();
  somebodys();
  EXPECT_THAT(kept(), ElementsAre("POST services", "POST poddisruptionbudgets",
                                  "GET poddisruptionbudgets"));
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(BudgetTest, ABudgetThatIsRefusedLetsTheJobRun) {
  done();
  refused(403, "Forbidden");
  EXPECT_THAT(kept(), ElementsAre("POST services", "POST poddisruptionbudgets"));
  EXPECT_THAT(kept(), IsEmpty()) << "it would be refused again";
}

TEST_F(BudgetTest, AServerThatFailsAtTheBudgetIsAFault) {
  done();
  broken();
  EXPECT_THAT(fault().message, HasSubstr("create PodDisruptionBudget train"));
  done();
  EXPECT_THAT(kept(), ElementsAre("POST poddisruptionbudgets"));
}

TEST_F(BudgetTest, WithTheJobsEndItsBudgetGoes) {
  for (const ConditionType type : {ConditionType::kFailureTarget, ConditionType::kFailed,
                                   ConditionType::kSuccessCriteriaMet, ConditionType::kComplete}) {
    status_.conditions.clear();
    companions_.forget(job_.uid);
    settle();
    set(type);
    ours();
    done();
    EXPECT_THAT(kept(), ElementsAre("GET poddisruptionbudgets", "DELETE poddisruptionbudgets"));
    EXPECT_EQ(sent()["preconditions"]["uid"], "uid-of-object");
    EXPECT_EQ(sent()["preconditions"]["resourceVersion"], "4");
    EXPECT_THAT(kept(), IsEmpty());
  }
}

TEST_F(BudgetTest, ASuspendedJobHasNoBudgetUntilItIsResumed) {
  settle();
  control::set_condition(status_,
                         {ConditionType::kSuspended, api::ConditionStatus::kFalse,
                          api::reason::kSuspended, "pods are going"},
                         clock_.now());
  ours();
  done();
  EXPECT_THAT(kept(), ElementsAre("GET poddisruptionbudgets", "DELETE poddisruptionbudgets"));
  control::set_condition(
      status_, {ConditionType::kSuspended, api::ConditionStatus::kFalse, api::reason::kResumed, ""},
      clock_.now());
  status_.membership.generation = 2;
  ours();
  done();
  EXPECT_THAT(kept(), ElementsAre("GET services", "POST poddisruptionbudgets"));
}

TEST_F(BudgetTest, AJobThatEndsUnseenLosesWhatBudgetItHas) {
  set(ConditionType::kComplete);
  ours();
  done();
  EXPECT_THAT(kept(), ElementsAre("GET poddisruptionbudgets", "DELETE poddisruptionbudgets"));
}

TEST_F(BudgetTest, ABudgetThatIsGoneOrAnothersIsNotRemoved) {
  set(ConditionType::kComplete);
  for (const bool is_there : {false, true}) {
    companions_.forget(job_.uid);
    if (is_there) {
      somebodys();
    } else {
      missing();
    }
    EXPECT_THAT(kept(), ElementsAre("GET poddisruptionbudgets"));
    EXPECT_THAT(kept(), IsEmpty());
  }
}

TEST_F(BudgetTest, ABudgetThatGoesMeanwhileIsRemoved) {
  set(ConditionType::kComplete);
  ours();
  missing();
  EXPECT_THAT(kept(), ElementsAre("GET poddisruptionbudgets", "DELETE poddisruptionbudgets"));
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(BudgetTest, ABudgetThatCannotBeRemovedIsTriedAgain) {
  set(ConditionType::kComplete);
  broken();
  EXPECT_THAT(fault().message, HasSubstr("get PodDisruptionBudget train"));
  for (const auto& [code, reason] : {std::pair(500, "InternalError"), std::pair(409, "Conflict")}) {
    ours();
    refused(code, reason);
    EXPECT_THAT(fault().message, HasSubstr("delete PodDisruptionBudget train"));
  }
  ours();
  done();
  EXPECT_THAT(kept(), ElementsAre("GET poddisruptionbudgets", "DELETE poddisruptionbudgets"));
}

}  // namespace
}  // namespace trainyard::cluster
