// What stands beside the pods of a job: its Service, its ConfigMaps, and who holds their names.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/unit/operator/cluster/companions_world.h"

namespace trainyard::cluster {
namespace {

using api::ConditionType;
using kube::Method;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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
  EXPECT_EQ(sent()["metadata"]["resourceVersion"], "4");
  authorities = "two";
  config("two");
  EXPECT_THAT(kept_so(), ElementsAre("GET train-control")) << "another process was here";
}

TEST_F(CompanionsTest, TheAuthoritiesAreNotAskedForAgainAfterAFaultAtTheBudget) {
  spec_.engine.emplace();
  Companions companions(client_, *logger_, [] { return std::string("one"); });
  json config = json::parse(object_of("train", "now"));
  config["data"] = {{"ca.crt", "one"}};
  done();
  done();
  transport_.answer(200, config.dump());
  broken();
  EXPECT_FALSE(companions.keep(job_, spec_, status_).has_value());
  done();
  EXPECT_TRUE(companions.keep(job_, spec_, status_).has_value());
  EXPECT_THAT(requests(), ElementsAre("POST services", "POST configmaps", "POST configmaps",
                                      "POST poddisruptionbudgets", "POST poddisruptionbudgets"));
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

/// A generation waits for its back-off, say, and its pods are made of the newest spec.
TEST_F(CompanionsTest, TheEnginesConfigurationFollowsASpecThatChangesWithinAGeneration) {
  spec_.engine.emplace();
  job_.generation = 1;
  const auto asked = [&] {
    const size_t before = requests().size();
    EXPECT_TRUE(keep().has_value());
    EXPECT_EQ(transport_.left(), 0u) << "answers that nobody asked for";
    const std::vector<std::string> all = requests();
    return std::vector<std::string>(all.begin() + static_cast<std::ptrdiff_t>(before), all.end());
  };
  done();
  done();
  EXPECT_THAT(asked(), ElementsAre("POST services", "POST configmaps"));
  const std::string first = sent()["metadata"]["name"];
  EXPECT_THAT(asked(), IsEmpty());
  job_.generation = 2;
  spec_.checkpoint_policy.every_steps = 7;
  broken();
  EXPECT_THAT(fault().message, HasSubstr("create ConfigMap train-engine-"));
  done();
  EXPECT_THAT(asked(), ElementsAre("POST configmaps")) << "what failed is tried again";
  EXPECT_NE(sent()["metadata"]["name"], first);
  EXPECT_THAT(asked(), IsEmpty());
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
  EXPECT_THAT(requests(), ElementsAre("POST services", "GET services", "GET poddisruptionbudgets"));
}

TEST_F(CompanionsTest, ABudgetThatIsInTheWayAsWellIsNamedWithTheService) {
  const std::string orphan =
      R"({"metadata":{"name":"train","namespace":"n","uid":"u","resourceVersion":"1"}})";
  const auto message = [&](const std::string& budget) {
    taken();
    transport_.answer(200, orphan);
    transport_.answer(200, budget);
    const auto reply = keep();
    return reply && *reply ? (*reply)->message : "";
  };
  const char* const service_only =
      "Service train exists and is not this job's; delete it or rename the job";
  EXPECT_EQ(message(orphan),
            "Service train and PodDisruptionBudget train exist and are not this job's; delete both "
            "or rename the job");
  EXPECT_EQ(message(object_of("other", "before")),
            "Service train and PodDisruptionBudget train exist and are not this job's; delete both "
            "or rename the job");
  EXPECT_EQ(message(object_of("train", "before")), service_only) << "that one is removed";
  spec_.num_nodes = 1;
  const size_t asked = transport_.requests().size();
  taken();
  transport_.answer(200, orphan);
  const auto alone = keep();
  ASSERT_TRUE(alone && *alone);
  EXPECT_EQ((*alone)->message, service_only);
  EXPECT_EQ(transport_.requests().size(), asked + 2) << "a job of one node has no budget";
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

TEST_F(CompanionsTest, WhatSomebodyTakesAwayIsMadeAnew) {
  EXPECT_FALSE(companions_.lost(kube::kServices, "now")) << "nobody has looked yet";
  settle();
  EXPECT_TRUE(companions_.lost(kube::kServices, "now"));
  EXPECT_TRUE(companions_.lost(kube::kPodDisruptionBudgets, "now"));
  EXPECT_FALSE(companions_.lost(kube::kServices, "another"));
  done();
  done();
  EXPECT_THAT(kept(), ElementsAre("POST services", "POST poddisruptionbudgets"));
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(CompanionsTest, WhatIsTakenAwayWhileItIsMadeIsLookedForSoon) {
  settle();
  EXPECT_FALSE(companions_.due_in("now").has_value());
  (void)companions_.lost(kube::kPodDisruptionBudgets, "now");
  EXPECT_EQ(companions_.due_in("now"), std::chrono::seconds(1))
      << "a look that is under way does not know";
  done();
  EXPECT_THAT(kept(), ElementsAre("POST poddisruptionbudgets"));
  EXPECT_FALSE(companions_.due_in("now").has_value());
  EXPECT_FALSE(companions_.due_in("another").has_value());
}

TEST_F(CompanionsTest, WhatWasTakenAwayIsNotForgottenWhereItCouldNotBeMade) {
  settle();
  (void)companions_.lost(kube::kServices, "now");
  broken();
  (void)fault();
  done();
  EXPECT_THAT(kept(), ElementsAre("POST services"));
}

TEST_F(CompanionsTest, WhatTheJobHasTakenAwayItselfIsNotMissed) {
  settle();
  set(api::ConditionType::kSuccessCriteriaMet);
  ours();
  done();
  EXPECT_THAT(kept(), ElementsAre("GET poddisruptionbudgets", "DELETE poddisruptionbudgets"));
  EXPECT_FALSE(companions_.lost(kube::kPodDisruptionBudgets, "now"));
  EXPECT_THAT(kept(), IsEmpty());
  companions_.forget("now");
  EXPECT_FALSE(companions_.lost(kube::kServices, "now"));
}

TEST_F(CompanionsTest, WhatWasKeptOfAJobThatIsGoneIsForgotten) {
  settle();
  companions_.forget("another");
  EXPECT_THAT(kept(), IsEmpty());
  companions_.forget(job_.uid);
  settle();
}

}  // namespace
}  // namespace trainyard::cluster
