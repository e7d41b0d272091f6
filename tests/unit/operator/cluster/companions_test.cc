#include "operator/cluster/companions.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "control/status_edit.h"
#include "tests/support/manual_clock.h"
#include "tests/support/sim/transport.h"

namespace trainyard::cluster {
namespace {

using api::ConditionStatus;
using api::ConditionType;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kBudgets[] = "poddisruptionbudgets";

/// A job of three nodes in its first generation, and a server that holds nothing yet.
class CompanionsTest : public testing::Test {
 protected:
  using Kept = Result<std::optional<control::Refusal>>;

  CompanionsTest() {
    job_.name = "bert";
    job_.namespace_name = "ns";
    job_.uid = "job-1";
    spec_.num_nodes = 3;
    status_.membership.generation = 1;
    status_.nodes.target = 3;
  }

  Kept keep() { return companions_->keep(job_, spec_, status_); }
  void expect_kept() {
    const Kept kept = keep();
    ASSERT_TRUE(kept.has_value()) << kept.error().message;
    EXPECT_FALSE(kept->has_value()) << (*kept)->message;
  }
  /// A controller that remembers nothing.
  void restart() { companions_ = std::make_unique<Companions>(client_, *logger_); }

  void set(ConditionType type, const char* reason = "Because") {
    control::set_condition(status_, {type, ConditionStatus::kTrue, reason, ""}, clock_.now());
  }
  void next_generation(int64_t target) {
    ++status_.membership.generation;
    status_.nodes.target = target;
  }

  sim::Object find(const std::string& plural, const std::string& name = "bert") const {
    return store_.find({plural, "ns", name});
  }
  int64_t budget() const {
    const sim::Object found = find(kBudgets);
    return found ? (*found)["spec"]["minAvailable"].get<int64_t>() : -1;
  }
  json owned_by(const std::string& uid, const std::string& owner_name) const {
    return {{"metadata",
             {{"name", "bert"},
              {"namespace", "ns"},
              {"uid", "uid-of-theirs"},
              {"ownerReferences", json::array({{{"apiVersion", "trainyard.dev/v1alpha1"},
                                                {"kind", "TrainingJob"},
                                                {"name", owner_name},
                                                {"uid", uid},
                                                {"controller", true}}})}}},
            {"spec", {{"minAvailable", 7}}}};
  }
  /// "create services 201", each write the server was asked for since the last call.
  std::vector<std::string> writes() {
    std::vector<std::string> made;
    for (; told_ < api_.audit().size(); ++told_) {
      const auto& event = api_.audit()[told_];
      made.push_back(event.verb + " " + event.resource + " " + std::to_string(event.code));
    }
    return made;
  }
  /// The server answers the next write to this resource with an error.
  void refuse_next(const std::string& plural, int code, const std::string& reason,
                   const std::string& verb = "create") {
    api_.set_admission([=, done = false](const sim::Call& call) mutable {
      if (done || call.object.plural != plural || call.verb != verb) {
        return std::optional<sim::Answer>();
      }
      done = true;
      return std::optional(sim::refusal(code, reason, "the server's words"));
    });
  }

  testing_support::ManualClock clock_;
  sim::Store store_{clock_};
  sim::ApiServer api_{store_, clock_};
  sim::WatchServer watches_{store_, clock_};
  sim::SimTransport transport_{api_, watches_, clock_, "operator", {}};
  kube::Client client_{transport_, clock_, {}};
  std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  std::unique_ptr<Companions> companions_ = std::make_unique<Companions>(client_, *logger_);
  size_t told_ = 0;
  api::ObjectMeta job_;
  api::TrainingJobSpec spec_;
  api::TrainingJobStatus status_;
};

TEST_F(CompanionsTest, AGangHasItsServiceAndABudgetThatSparesOne) {
  expect_kept();
  EXPECT_THAT(writes(), ElementsAre("create services 201", "create poddisruptionbudgets 201"));
  ASSERT_NE(find("services"), nullptr);
  EXPECT_EQ((*find("services"))["metadata"]["ownerReferences"][0]["uid"], "job-1");
  EXPECT_EQ(budget(), 2);
}

TEST_F(CompanionsTest, BeforeTheFirstGenerationThereIsNothing) {
  status_.membership.generation = 0;
  expect_kept();
  EXPECT_THAT(writes(), IsEmpty());
}

TEST_F(CompanionsTest, WhatStandsIsNotAskedForAgain) {
  expect_kept();
  writes();
  expect_kept();
  EXPECT_THAT(writes(), IsEmpty());
}

TEST_F(CompanionsTest, ANewControllerFindsWhatStands) {
  expect_kept();
  writes();
  restart();
  expect_kept();
  EXPECT_EQ(budget(), 2);
  for (const std::string& write : writes())
    EXPECT_THAT(write, testing::Not(HasSubstr(" 201"))) << "nothing is made twice";
  expect_kept();
  EXPECT_THAT(writes(), IsEmpty());
}

TEST_F(CompanionsTest, EachGenerationLooksForItsServiceAgain) {
  expect_kept();
  store_.erase({"services", "ns", "bert"});
  expect_kept();
  EXPECT_EQ(find("services"), nullptr) << "within a generation nobody looks";
  next_generation(3);
  expect_kept();
  EXPECT_NE(find("services"), nullptr);
}

TEST_F(CompanionsTest, AnOldViewChangesNothing) {
  const api::TrainingJobStatus old = status_;
  expect_kept();
  next_generation(2);
  expect_kept();
  EXPECT_EQ(budget(), 1);
  writes();
  status_ = old;
  expect_kept();
  EXPECT_THAT(writes(), IsEmpty());
  EXPECT_EQ(budget(), 1);
}

TEST_F(CompanionsTest, TheBudgetFollowsTheSize) {
  expect_kept();
  writes();
  next_generation(2);
  expect_kept();
  EXPECT_EQ(budget(), 1);
  EXPECT_THAT(writes(), ElementsAre("create services 409", "patch poddisruptionbudgets 200"));
  next_generation(3);
  expect_kept();
  EXPECT_EQ(budget(), 2);
}

TEST_F(CompanionsTest, AGangOfOneHasNone) {
  expect_kept();
  next_generation(1);
  expect_kept();
  EXPECT_EQ(find(kBudgets), nullptr);
  next_generation(3);
  expect_kept();
  EXPECT_EQ(budget(), 2);
}

TEST_F(CompanionsTest, AJobOfOneNodeNeverAsksForABudget) {
  spec_.num_nodes = 1;
  status_.nodes.target = 1;
  expect_kept();
  EXPECT_THAT(writes(), ElementsAre("create services 201"));
}

TEST_F(CompanionsTest, TheBudgetEndsWithTheGang) {
  struct Case {
    ConditionType type;
    const char* reason;
  };
  for (const Case& end :
       {Case{ConditionType::kFailureTarget, "Because"},
        Case{ConditionType::kSuccessCriteriaMet, "Because"},
        Case{ConditionType::kComplete, "Because"}, Case{ConditionType::kFailed, "Because"},
        Case{ConditionType::kSuspended, api::reason::kSuspended}}) {
    restart();
    status_.conditions.clear();
    next_generation(3);
    expect_kept();
    ASSERT_EQ(budget(), 2) << static_cast<int>(end.type);
    set(end.type, end.reason);
    expect_kept();
    EXPECT_EQ(find(kBudgets), nullptr) << static_cast<int>(end.type);
    EXPECT_NE(find("services"), nullptr) << "the owner's end takes it";
    writes();
    expect_kept();
    EXPECT_THAT(writes(), IsEmpty());
  }
}

TEST_F(CompanionsTest, AResumedJobIsNotOver) {
  set(ConditionType::kSuspended, api::reason::kResumed);
  expect_kept();
  EXPECT_EQ(budget(), 2);
}

TEST_F(CompanionsTest, AJobThatIsOverGetsNoService) {
  set(ConditionType::kFailed);
  expect_kept();
  EXPECT_EQ(find("services"), nullptr);
}

TEST_F(CompanionsTest, AnEngineHasItsConfigMap) {
  spec_.engine.emplace();
  expect_kept();
  EXPECT_THAT(writes(), ElementsAre("create services 201", "create configmaps 201",
                                    "create poddisruptionbudgets 201"));
}

TEST_F(CompanionsTest, SomebodyElsesServiceIsARefusalAndNothingElseIsMade) {
  store_.put({"services", "ns", "bert"}, {{"metadata", {{"name", "bert"}, {"uid", "theirs"}}}});
  spec_.engine.emplace();
  for (int i = 0; i < 2; ++i) {
    const Kept kept = keep();
    ASSERT_TRUE(kept.has_value());
    ASSERT_TRUE(kept->has_value());
    EXPECT_EQ((*kept)->reason, api::reason::kNameConflict);
    EXPECT_THAT((*kept)->message, HasSubstr("Service bert exists"));
    EXPECT_FALSE((*kept)->passing);
    EXPECT_THAT(writes(), ElementsAre("create services 409")) << "looked for again each time";
  }
}

TEST_F(CompanionsTest, WhatAnotherJobOwnsIsNotTakenOver) {
  store_.put({"services", "ns", "bert"}, owned_by("job-9", "another"));
  const Kept kept = keep();
  ASSERT_TRUE(kept.has_value());
  ASSERT_TRUE(kept->has_value());
  EXPECT_EQ((*kept)->reason, api::reason::kNameConflict);
  EXPECT_EQ((*find("services"))["metadata"]["uid"], "uid-of-theirs");
}

TEST_F(CompanionsTest, AServiceThatTheServerRefusesIsTold) {
  refuse_next("services", 403, "Forbidden");
  const Kept kept = keep();
  ASSERT_TRUE(kept.has_value());
  ASSERT_TRUE(kept->has_value());
  EXPECT_EQ((*kept)->reason, api::reason::kAdmissionRefused);
  EXPECT_THAT((*kept)->message, HasSubstr("the server's words"));
  expect_kept();
  EXPECT_NE(find("services"), nullptr) << "and made later";
}

TEST_F(CompanionsTest, AServerThatFailsIsAnErrorAndTriedAgain) {
  for (const char* plural : {"services", kBudgets}) {
    refuse_next(plural, 500, "InternalError");
    const Kept failed = keep();
    ASSERT_FALSE(failed.has_value()) << plural;
    EXPECT_THAT(failed.error().message, HasSubstr("create"));
  }
  expect_kept();
  EXPECT_NE(find("services"), nullptr);
  EXPECT_EQ(budget(), 2);
}

TEST_F(CompanionsTest, ABudgetThatTheServerRefusesKeepsNoJobFromRunning) {
  refuse_next(kBudgets, 403, "Forbidden");
  expect_kept();
  EXPECT_EQ(find(kBudgets), nullptr);
}

TEST_F(CompanionsTest, SomebodyElsesBudgetIsLeftAlone) {
  store_.put({kBudgets, "ns", "bert"}, owned_by("job-9", "another"));
  expect_kept();
  EXPECT_EQ(budget(), 7);
  set(ConditionType::kComplete);
  expect_kept();
  EXPECT_EQ(budget(), 7);
}

TEST_F(CompanionsTest, ABudgetThatIsGoneIsMadeAgainWithTheNextSize) {
  expect_kept();
  store_.erase({kBudgets, "ns", "bert"});
  next_generation(2);
  expect_kept();
  EXPECT_EQ(budget(), 1);
}

TEST_F(CompanionsTest, ABudgetThatIsGoneAtTheEndIsNoError) {
  expect_kept();
  store_.erase({kBudgets, "ns", "bert"});
  set(ConditionType::kComplete);
  expect_kept();
}

TEST_F(CompanionsTest, ChangesOfTheBudgetThatFailAreTriedAgain) {
  expect_kept();
  next_generation(2);
  refuse_next(kBudgets, 500, "InternalError", "patch");
  EXPECT_FALSE(keep().has_value());
  expect_kept();
  EXPECT_EQ(budget(), 1);
  set(ConditionType::kComplete);
  refuse_next(kBudgets, 500, "InternalError", "delete");
  EXPECT_FALSE(keep().has_value());
  expect_kept();
  EXPECT_EQ(find(kBudgets), nullptr);
}

/// Between reading the budget and writing it another one takes its name.
TEST_F(CompanionsTest, ABudgetThatWasReplacedMeanwhileIsLeftAlone) {
  expect_kept();
  const auto replace_before = [&](const std::string& verb) {
    api_.set_admission([this, verb, done = false](const sim::Call& call) mutable {
      if (!done && call.object.plural == kBudgets && call.verb == verb) {
        done = true;
        store_.put({kBudgets, "ns", "bert"}, owned_by("job-9", "another"));
      }
      return std::optional<sim::Answer>();
    });
  };
  next_generation(2);
  replace_before("patch");
  EXPECT_FALSE(keep().has_value());
  EXPECT_EQ(budget(), 7) << "not the one that was read";
  store_.erase({kBudgets, "ns", "bert"});
  expect_kept();
  EXPECT_EQ(budget(), 1);
  set(ConditionType::kComplete);
  replace_before("delete");
  EXPECT_FALSE(keep().has_value());
  EXPECT_EQ(budget(), 7);
}

TEST_F(CompanionsTest, AJobThatIsForgottenIsLookedAtAfresh) {
  expect_kept();
  writes();
  companions_->forget("job-1");
  expect_kept();
  EXPECT_THAT(writes(), testing::Contains("create services 409"));
}

}  // namespace
}  // namespace trainyard::cluster
