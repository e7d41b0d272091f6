#include "operator/cluster/companions.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "control/status_edit.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scripted_transport.h"

namespace trainyard::cluster {
namespace {

using api::ConditionType;
using kube::Method;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::status_body;

class CompanionsTest : public testing::Test {
 protected:
  CompanionsTest() {
    job_.name = "train";
    job_.namespace_name = "n";
    job_.uid = "now";
    spec_.num_nodes = 3;
    status_.membership.generation = 1;
    status_.nodes.target = 3;
    status_.nodes.ready = 3;
  }

  /// An object of the job's name, as the server has it.
  static std::string object_of(const std::string& owner_name, const std::string& owner_uid) {
    return json{{"metadata",
                 {{"name", "train"},
                  {"namespace", "n"},
                  {"uid", "uid-of-object"},
                  {"resourceVersion", "4"},
                  {"ownerReferences", json::array({{{"apiVersion", "trainyard.dev/v1alpha1"},
                                                    {"kind", "TrainingJob"},
                                                    {"name", owner_name},
                                                    {"uid", owner_uid},
                                                    {"controller", true}}})}}}}
        .dump();
  }
  void taken() { refused(409, "AlreadyExists"); }
  void missing() { refused(404, "NotFound"); }
  void broken() { refused(500, "InternalError"); }
  void refused(int code, const char* reason) {
    transport_.answer(code, status_body(code, reason, "as it is said"));
  }
  void done() { ours(); }
  void ours() { transport_.answer(200, object_of("train", "now")); }
  void left_over() { transport_.answer(200, object_of("train", "before")); }
  void somebodys() { transport_.answer(200, object_of("other", "before")); }

  Result<std::optional<control::Refusal>> keep() { return companions_.keep(job_, spec_, status_); }
  /// Kept without a fault; what it took.
  std::vector<std::string> kept() {
    const size_t before = requests().size();
    const auto reply = keep();
    if (!reply) ADD_FAILURE() << reply.error().message;
    if (reply && *reply) ADD_FAILURE() << "refused: " << (*reply)->message;
    EXPECT_EQ(transport_.left(), 0u) << "answers that nobody asked for";
    std::vector<std::string> all = requests();
    return {all.begin() + static_cast<std::ptrdiff_t>(before), all.end()};
  }
  /// The fault of a keep that has one.
  Error fault() {
    const auto reply = keep();
    EXPECT_FALSE(reply.has_value());
    EXPECT_EQ(transport_.left(), 0u) << "answers that nobody asked for";
    return reply.has_value() ? Error{} : reply.error();
  }
  /// Service and budget of three members stand.
  void settle() {
    done();
    done();
    EXPECT_THAT(kept(), ElementsAre("POST services", "POST poddisruptionbudgets"));
  }
  /// As settle, where they are thought to stand already, and do.
  void find_settled() {
    ours();
    ours();
    done();
    EXPECT_THAT(kept(), ElementsAre("GET services", "GET poddisruptionbudgets",
                                    "PATCH poddisruptionbudgets"));
  }
  json sent() const { return json::parse(transport_.last_request().body); }
  void set(ConditionType type) {
    control::set_condition(status_, {type, api::ConditionStatus::kTrue, "Reason", ""},
                           clock_.now());
  }
  /// "POST services", "DELETE poddisruptionbudgets" ... of all requests.
  std::vector<std::string> requests() const {
    std::vector<std::string> texts;
    for (const kube::Request& request : transport_.requests()) {
      std::string path = request.path;
      if (path.ends_with("/train")) path.erase(path.size() - std::string("/train").size());
      texts.push_back(std::string(kube::name_of(request.method)) + " " +
                      path.substr(path.rfind('/') + 1));
    }
    return texts;
  }

  testing_support::ScriptedTransport transport_;
  testing_support::ManualClock clock_;
  kube::Client client_{transport_, clock_, {}};
  std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  Companions companions_{client_, *logger_};
  api::ObjectMeta job_;
  api::TrainingJobSpec spec_;
  api::TrainingJobStatus status_;
};

TEST_F(CompanionsTest, WhatADeletedJobOfTheNameHasLeftMakesRoomAtOnce) {
  for (int kind = 0; kind < 2; ++kind) {
    taken();
    left_over();
    done();  // the deletion
    done();  // the creation
  }
  EXPECT_THAT(kept(),
              ElementsAre("POST services", "GET services", "DELETE services", "POST services",
                          "POST poddisruptionbudgets", "GET poddisruptionbudgets",
                          "DELETE poddisruptionbudgets", "POST poddisruptionbudgets"));
  EXPECT_THAT(transport_.requests()[2].body, HasSubstr("uid-of-object"));
  EXPECT_THAT(transport_.requests()[6].body, HasSubstr("uid-of-object"));
}

TEST_F(CompanionsTest, ALeftoverThatDoesNotGoIsWaitedFor) {
  taken();
  left_over();
  done();
  taken();
  const auto reply = keep();
  ASSERT_TRUE(reply.has_value()) << reply.error().message;
  ASSERT_TRUE(reply->has_value());
  EXPECT_EQ((*reply)->reason, api::reason::kNameConflict);
  EXPECT_TRUE((*reply)->passing);
}

TEST_F(CompanionsTest, WhatBelongsToAnotherIsNeverRemoved) {
  for (const std::string& found :
       {object_of("other", "before"), std::string(R"({"metadata":{"name":"train","namespace":"n",)"
                                                  R"("uid":"u","resourceVersion":"1"}})")}) {
    taken();
    transport_.answer(200, found);
    const auto reply = keep();
    ASSERT_TRUE(reply.has_value()) << reply.error().message;
    ASSERT_TRUE(reply->has_value());
    EXPECT_EQ((*reply)->reason, api::reason::kNameConflict);
    EXPECT_FALSE((*reply)->passing);
  }
  for (const kube::Request& request : transport_.requests())
    EXPECT_NE(request.method, Method::kDelete);
}

TEST_F(CompanionsTest, ABudgetThatCouldNotBeMadeIsTriedAgain) {
  done();   // the service
  taken();  // the budget of the job before, which ...
  left_over();
  done();
  taken();  // ... a finalizer holds
  EXPECT_EQ(kept().back(), "POST poddisruptionbudgets");
  done();
  EXPECT_THAT(kept(), ElementsAre("POST poddisruptionbudgets"));
  EXPECT_THAT(kept(), IsEmpty()) << "now it stands";
}

// ---- Service and ConfigMap ---------------------------------------------------------------------

TEST_F(CompanionsTest, NothingStandsBesideAJobWithoutAGeneration) {
  status_.membership.generation = 0;
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(CompanionsTest, WhatStandsIsNotAskedForTwice) {
  settle();
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(CompanionsTest, EachGenerationMakesSureOfItsService) {
  settle();
  status_.membership.generation = 2;
  ours();
  EXPECT_THAT(kept(), ElementsAre("GET services")) << "it is there, as always";
  status_.membership.generation = 3;
  missing();
  done();
  EXPECT_THAT(kept(), ElementsAre("GET services", "POST services"));
  status_.membership.generation = 4;
  left_over();
  done();
  done();
  EXPECT_THAT(kept(), ElementsAre("GET services", "DELETE services", "POST services"));
}

TEST_F(CompanionsTest, ANewLeaderWritesNothingWhereAllStands) {
  set(ConditionType::kScheduled);
  json budget = json::parse(object_of("train", "now"));
  budget["spec"]["minAvailable"] = 2;
  ours();
  transport_.answer(200, budget.dump());
  EXPECT_THAT(kept(), ElementsAre("GET services", "GET poddisruptionbudgets"));
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(CompanionsTest, ALookThatFailsIsAFaultAndNoCreation) {
  set(ConditionType::kScheduled);
  broken();
  EXPECT_THAT(fault().message, HasSubstr("get Service train"));
  find_settled();
}

// ---- Whom agents trust -------------------------------------------------------------------------

TEST_F(CompanionsTest, TheAuthoritiesAreMadeOnceAndAskedForNoMore) {
  spec_.engine.emplace();
  std::string authorities = "one";
  Companions companions(client_, *logger_, [&] { return authorities; });
  const auto kept_so = [&] {
    const size_t before = requests().size();
    const auto reply = companions.keep(job_, spec_, status_);
    EXPECT_TRUE(reply && !*reply);
    EXPECT_EQ(transport_.left(), 0u);
    const std::vector<std::string> all = requests();
    return std::vector<std::string>(all.begin() + static_cast<std::ptrdiff_t>(before), all.end());
  };
  const auto config = [&](const std::string& text) {
    json object = json::parse(object_of("train", "now"));
    object["data"] = {{"ca.crt", text}};
    transport_.answer(200, object.dump());
  };
  done();
  done();
  config("one");
  done();
  EXPECT_THAT(kept_so(), ElementsAre("POST services", "POST configmaps", "POST configmaps",
                                     "POST poddisruptionbudgets"));
  EXPECT_THAT(kept_so(), IsEmpty());
  authorities = "one and two";
  config("one");
  done();
  EXPECT_THAT(kept_so(), ElementsAre("GET train-control", "PATCH train-control"));
  EXPECT_EQ(sent()["data"]["ca.crt"], "one and two");
  EXPECT_EQ(sent()["metadata"]["uid"], "uid-of-object");
  authorities = "two";
  config("two");
  EXPECT_THAT(kept_so(), ElementsAre("GET train-control")) << "another process was here";
}

TEST_F(CompanionsTest, AnOldViewChangesNothing) {
  status_.membership.generation = 2;
  find_settled();
  status_.membership.generation = 1;
  status_.nodes.target = 2;
  set(ConditionType::kFailed);
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(CompanionsTest, TheEnginesConfigurationFollowsTheServiceAndWaitsForTheControlStream) {
  spec_.engine.emplace();
  done();
  done();
  const auto reply = keep();
  ASSERT_TRUE(reply.has_value()) << reply.error().message;
  ASSERT_TRUE(reply->has_value());
  EXPECT_TRUE((*reply)->passing);
  EXPECT_THAT(requests(), ElementsAre("POST services", "POST configmaps"));
}

TEST_F(CompanionsTest, AServiceThatIsRefusedIsTheJobsRefusal) {
  spec_.engine.emplace();
  for (const int code : {403, 422}) {
    refused(code, code == 403 ? "Forbidden" : "Invalid");
    const auto reply = keep();
    ASSERT_TRUE(reply.has_value()) << reply.error().message;
    ASSERT_TRUE(reply->has_value());
    EXPECT_EQ((*reply)->reason, api::reason::kAdmissionRefused);
    EXPECT_EQ((*reply)->message, "as it is said");
    EXPECT_FALSE((*reply)->passing);
  }
  EXPECT_THAT(requests(), ElementsAre("POST services", "POST services"))
      << "nothing else is made, and it is tried again";
}

TEST_F(CompanionsTest, AConfigMapThatIsRefusedIsTheJobsRefusal) {
  spec_.engine.emplace();
  done();
  refused(403, "Forbidden");
  const auto reply = keep();
  ASSERT_TRUE(reply && *reply);
  EXPECT_EQ(requests().back(), "POST configmaps");
}

TEST_F(CompanionsTest, AServerThatFailsIsAFaultAndNoRefusal) {
  broken();
  EXPECT_THAT(fault().message, HasSubstr("create Service train"));
  taken();
  broken();
  EXPECT_THAT(fault().message, HasSubstr("get Service train"));
  settle();
}

TEST_F(CompanionsTest, TheOwnServiceIsAsGoodAsMade) {
  taken();
  ours();
  done();
  EXPECT_THAT(kept(), ElementsAre("POST services", "GET services", "POST poddisruptionbudgets"));
}

TEST_F(CompanionsTest, TheControllersNameCountsAndNoOtherOwners) {
  json object = json::parse(object_of("other", "before"));
  const json bystander = {
      {"apiVersion", "v1"}, {"kind", "ConfigMap"}, {"name", "train"}, {"uid", "bystander"}};
  json& owners = object["metadata"]["ownerReferences"];
  owners = json::array({bystander, owners[0]});
  taken();
  transport_.answer(200, object.dump());
  const auto reply = keep();
  ASSERT_TRUE(reply && *reply);
  EXPECT_EQ((*reply)->reason, api::reason::kNameConflict);
  EXPECT_THAT(requests(), ElementsAre("POST services", "GET services"));
}

TEST_F(CompanionsTest, ALeftoverThatHasGoneMeanwhileIsNoFault) {
  for (const auto& [code, reason] : {std::pair(404, "NotFound"), std::pair(409, "Conflict")}) {
    Companions companions(client_, *logger_);
    taken();
    left_over();
    refused(code, reason);
    done();
    done();
    const auto reply = companions.keep(job_, spec_, status_);
    ASSERT_TRUE(reply && !*reply);
    EXPECT_EQ(transport_.left(), 0u);
  }
}

TEST_F(CompanionsTest, ALeftoverThatCannotBeRemovedIsAFault) {
  taken();
  left_over();
  broken();
  EXPECT_THAT(fault().message, HasSubstr("delete Service train"));
}

TEST_F(CompanionsTest, AServerThatFailsAfterTheLeftoverIsAFault) {
  taken();
  left_over();
  done();
  broken();
  EXPECT_THAT(fault().message, HasSubstr("create Service train"));
}

TEST_F(CompanionsTest, WhatWasKeptOfAJobThatIsGoneIsForgotten) {
  settle();
  companions_.forget("another");
  EXPECT_THAT(kept(), IsEmpty());
  companions_.forget(job_.uid);
  settle();
}

// ---- The disruption budget ---------------------------------------------------------------------

TEST_F(CompanionsTest, ABudgetLetsOneMemberGo) {
  settle();
  EXPECT_EQ(sent()["spec"]["minAvailable"], 2);
}

TEST_F(CompanionsTest, AGangHasItsBudgetFromWhenItIsUpWhateverBecomesOfItsPodsThen) {
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

TEST_F(CompanionsTest, AJobOfOneNodeHasNoBudgetAndAsksForNone) {
  spec_.num_nodes = 1;
  status_.nodes.target = 1;
  done();
  EXPECT_THAT(kept(), ElementsAre("POST services"));
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(CompanionsTest, ABudgetOfAnotherSizeIsChangedWhereItIsTheSameObject) {
  settle();
  status_.nodes.target = 2;
  ours();
  done();
  EXPECT_THAT(kept(), ElementsAre("GET poddisruptionbudgets", "PATCH poddisruptionbudgets"));
  EXPECT_EQ(sent()["spec"]["minAvailable"], 1);
  EXPECT_EQ(sent()["metadata"]["uid"], "uid-of-object");
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(CompanionsTest, ABudgetThatSomebodyHasRemovedIsMadeAnew) {
  settle();
  status_.nodes.target = 2;
  missing();
  done();
  EXPECT_THAT(kept(), ElementsAre("GET poddisruptionbudgets", "POST poddisruptionbudgets"));
  EXPECT_EQ(sent()["spec"]["minAvailable"], 1);
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(CompanionsTest, ABudgetThatCouldNotBeChangedIsTriedAgain) {
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

TEST_F(CompanionsTest, ABudgetThatTheJobHasAlreadyIsBroughtInLine) {
  done();
  taken();
  ours();
  done();
  EXPECT_THAT(kept(), ElementsAre("POST services", "POST poddisruptionbudgets",
                                  "GET poddisruptionbudgets", "PATCH poddisruptionbudgets"));
}

TEST_F(CompanionsTest, ABudgetOfSomebodyElseIsLeftAloneAndLetsTheJobRun) {
  done();
  taken();
  somebodys();
  EXPECT_THAT(kept(), ElementsAre("POST services", "POST poddisruptionbudgets",
                                  "GET poddisruptionbudgets"));
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(CompanionsTest, ABudgetThatIsRefusedLetsTheJobRun) {
  done();
  refused(403, "Forbidden");
  EXPECT_THAT(kept(), ElementsAre("POST services", "POST poddisruptionbudgets"));
  EXPECT_THAT(kept(), IsEmpty()) << "it would be refused again";
}

TEST_F(CompanionsTest, AServerThatFailsAtTheBudgetIsAFault) {
  done();
  broken();
  EXPECT_THAT(fault().message, HasSubstr("create PodDisruptionBudget train"));
  done();
  EXPECT_THAT(kept(), ElementsAre("POST poddisruptionbudgets"));
}

TEST_F(CompanionsTest, WithTheJobsEndItsBudgetGoes) {
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
    EXPECT_THAT(kept(), IsEmpty());
  }
}

TEST_F(CompanionsTest, ASuspendedJobHasNoBudgetUntilItIsResumed) {
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

TEST_F(CompanionsTest, AJobThatEndsUnseenLosesWhatBudgetItHas) {
  set(ConditionType::kComplete);
  ours();
  done();
  EXPECT_THAT(kept(), ElementsAre("GET poddisruptionbudgets", "DELETE poddisruptionbudgets"));
}

TEST_F(CompanionsTest, ABudgetThatIsGoneOrAnothersIsNotRemoved) {
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

TEST_F(CompanionsTest, ABudgetThatGoesMeanwhileIsRemoved) {
  set(ConditionType::kComplete);
  ours();
  missing();
  EXPECT_THAT(kept(), ElementsAre("GET poddisruptionbudgets", "DELETE poddisruptionbudgets"));
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(CompanionsTest, ABudgetThatCannotBeRemovedIsTriedAgain) {
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
