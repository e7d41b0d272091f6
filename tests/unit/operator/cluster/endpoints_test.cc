// Which address is under which name: what is written, when, and what is found.
#include "tests/unit/operator/cluster/endpoints_world.h"

namespace trainyard::cluster {
namespace {

TEST_F(EndpointsTest, NothingIsAskedWhileThereIsNothingToTell) {
  EXPECT_THAT(kept(), IsEmpty());
  status_.membership.generation = 0;
  whole();
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(EndpointsTest, AGangIsNamedWhenItIsWholeAndOnlyOnce) {
  settle();
  EXPECT_THAT(hosts(), ElementsAre("train-0", "train-1", "train-2"));
  EXPECT_EQ(sent()["metadata"]["name"], first_name());
  EXPECT_THAT(kept(), IsEmpty());
  EXPECT_FALSE(endpoints_.due_in("now"));
}

TEST_F(EndpointsTest, TheFirstPodIsNamedAtOnceTheOthersWhileTheyGatherInTurns) {
  address(1);
  done("1");
  EXPECT_THAT(kept(), ElementsAre("POST slices")) << "the first word";
  address(0);
  done("2");
  EXPECT_THAT(kept(), ElementsAre("PUT slices")) << "by its name the others meet";
  EXPECT_THAT(hosts(), ElementsAre("train-0", "train-1"));
  status_.nodes.target = 4;
  address(2);
  EXPECT_THAT(kept(), IsEmpty());
  ASSERT_TRUE(endpoints_.due_in("now"));
  clock_.advance(*endpoints_.due_in("now"));
  done("3");
  EXPECT_THAT(kept(), ElementsAre("PUT slices"));
  EXPECT_EQ(sent()["metadata"]["resourceVersion"], "2") << "no leader of yesterday undoes it";
  EXPECT_FALSE(endpoints_.due_in("now"));
}

TEST_F(EndpointsTest, PodsThatDoNotCountHaveNoName) {
  whole();
  observed_.pods[0].member = false;
  observed_.pods[1].terminating = true;
  observed_.pods.push_back(pod(0, "next", "10.0.0.9"));
  observed_.pods[2].phase = control::PodPhase::kFailed;
  done();
  EXPECT_THAT(kept(), ElementsAre("POST slices"));
  EXPECT_THAT(hosts(), ElementsAre("train-0"));
  EXPECT_EQ(sent()["endpoints"][0]["targetRef"]["uid"], "next");
}

TEST_F(EndpointsTest, AnIndexThatTheGangDoesNotHaveMakesNoSlice) {
  settle();
  for (const int index : {2'147'483'000, 3, -1}) {
    observed_.pods.push_back(pod(index, "odd", "10.0.0.9"));
    EXPECT_THAT(kept(), IsEmpty()) << index;
    observed_.pods.pop_back();
  }
}

TEST_F(EndpointsTest, WhatANewGenerationHasLostIsForgottenAtOnce) {
  settle();
  status_.membership.generation = 2;
  observed_.pods[1].member = false;
  done("2");
  EXPECT_THAT(kept(), ElementsAre("PUT slices"));
  EXPECT_THAT(hosts(), ElementsAre("train-0", "train-2"));
}

TEST_F(EndpointsTest, OfAJobThatIsOverNothingIsLeft) {
  settle();
  over();
  for (control::ObservedPod& one : observed_.pods)
    one.phase = control::PodPhase::kSucceeded;
  done("2");
  EXPECT_THAT(kept(), ElementsAre("PUT slices"));
  EXPECT_THAT(hosts(), IsEmpty());
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(EndpointsTest, ASliceOfAnotherFamilyIsEmptiedAsWhatItIs) {
  for (size_t i = 0; i < observed_.pods.size(); ++i)
    observed_.pods[i].address = "fd00::" + std::to_string(i + 1);
  done();
  EXPECT_THAT(kept(), ElementsAre("POST slices"));
  EXPECT_EQ(sent()["addressType"], "IPv6");
  for (control::ObservedPod& one : observed_.pods)
    one.phase = control::PodPhase::kSucceeded;
  over();
  done("2");
  EXPECT_THAT(kept(), ElementsAre("PUT slices"));
  EXPECT_THAT(hosts(), IsEmpty());
  EXPECT_EQ(sent()["addressType"], "IPv6") << "the server refuses another";
}

TEST_F(EndpointsTest, ASliceOfAnotherFamilyThatALeaderBeforeLeftIsEmptiedAsWhatItIs) {
  observed_.pods.clear();
  over();
  json slice = stored(first_name(), "7",
                      json::array({{{"addresses", json::array({"fd00::1"})},
                                    {"hostname", "train-0"},
                                    {"targetRef", {{"name", "train-0-p0"}, {"uid", "p0"}}}}}));
  slice["addressType"] = "IPv6";
  listed(json::array({slice}));
  done("8");
  EXPECT_THAT(kept(), ElementsAre("GET slices", "PUT slices"));
  EXPECT_EQ(sent()["addressType"], "IPv6");
}

TEST_F(EndpointsTest, WhatALeaderBeforeLeftOfAJobThatIsOverIsFoundAndCleared) {
  control::set_condition(
      status_, {ConditionType::kComplete, api::ConditionStatus::kTrue, "Reason", ""}, clock_.now());
  observed_.pods.clear();
  listed(json::array({stored(
      first_name(), "7",
      json::array({{{"addresses", json::array({"10.0.0.1"})}, {"hostname", "train-1"}}}))}));
  done("8");
  EXPECT_THAT(kept(), ElementsAre("GET slices", "PUT slices"));
  EXPECT_THAT(hosts(), IsEmpty());
}

TEST_F(EndpointsTest, AJobOnItsWayOutIsLeftAlone) {
  whole();
  observed_.metadata.deletion_timestamp = clock_.now();
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(EndpointsTest, ANewLeaderFindsWhatStandsAndWritesNothing) {
  settle();
  const json endpoints = sent()["endpoints"];
  Endpoints next(client_, clock_, *logger_, lists());
  status_.membership.generation = 2;
  listed(json::array({stored(first_name(), "7", endpoints)}));
  next.keep(observed_, status_);
  EXPECT_EQ(transport_.left(), 0u);
  EXPECT_EQ(transport_.last_request().method, kube::Method::kGet);
  observed_.pods[2].address = "10.0.0.77";
  done("8");
  next.keep(observed_, status_);
  EXPECT_EQ(transport_.last_request().method, kube::Method::kPut);
  EXPECT_EQ(sent()["metadata"]["resourceVersion"], "7");
  EXPECT_EQ(sent()["metadata"]["uid"], "slice");
}

/// One that stood still has its view of the pods from before, and what it reads from after.
TEST_F(EndpointsTest, ALeaderOfYesterdayPutsNoPodsOfYesterdayBack) {
  settle();
  const json endpoints = sent()["endpoints"];
  status_.membership.generation = 2;
  server_pods_ = observed_.pods;
  for (control::ObservedPod& pod : observed_.pods)
    pod.uid += "-of-yesterday";
  Endpoints zombie(client_, clock_, *logger_, lists());
  listed(json::array({stored(first_name(), "7", endpoints)}));
  zombie.keep(observed_, status_);
  EXPECT_EQ(transport_.left(), 0u);
  EXPECT_EQ(transport_.last_request().method, kube::Method::kGet) << "nothing is written";
}

TEST_F(EndpointsTest, ALookThatWasOlderThanTheListIsAsOldTheNextTime) {
  control::set_condition(status_,
                         {ConditionType::kScheduled, api::ConditionStatus::kTrue, "Reason", ""},
                         clock_.now());
  observed_.look = 7;
  whole();
  server_pods_ = observed_.pods;
  observed_.pods[2].address.clear();
  listed(json::array({stored(first_name(), "4", json::array())}));
  done("5");
  EXPECT_THAT(kept(), ElementsAre("GET slices", "PUT slices"));
  EXPECT_THAT(hosts(), ElementsAre("train-0", "train-1", "train-2"));
  clock_.advance(std::chrono::seconds(10));
  EXPECT_THAT(kept(), IsEmpty()) << "by the same look";
  observed_.look = 8;
  done("6");
  EXPECT_THAT(kept(), ElementsAre("PUT slices"));
}

TEST_F(EndpointsTest, WhatSomebodyElseMadeOfASliceIsMended) {
  whole();
  status_.membership.generation = 2;
  listed(json::array(
      {stored(first_name(), "7",
              json::array({{{"addresses", json::array({"10.9.9.9"})}, {"hostname", nullptr}}}))}));
  done("8");
  EXPECT_THAT(kept(), ElementsAre("GET slices", "PUT slices"));
  EXPECT_THAT(hosts(), ElementsAre("train-0", "train-1", "train-2"));
}

TEST_F(EndpointsTest, ASliceThatAnotherHasWrittenIsLookedAtLater) {
  whole();
  refused(409, "AlreadyExists");
  EXPECT_THAT(kept(), ElementsAre("POST slices")) << "the leader of yesterday would undo it";
  ASSERT_TRUE(endpoints_.due_in("now"));
  clock_.advance(*endpoints_.due_in("now"));
  listed(json::array({stored(first_name(), "5", json::array())}));
  done("6");
  EXPECT_THAT(kept(), ElementsAre("GET slices", "PUT slices"));
  EXPECT_EQ(sent()["metadata"]["resourceVersion"], "5");
}

TEST_F(EndpointsTest, AFailureHoldsUpNobodyAndIsMadeUpFor) {
  whole();
  refused(500, "InternalError");
  EXPECT_THAT(kept(), ElementsAre("POST slices"));
  ASSERT_TRUE(endpoints_.due_in("now"));
  clock_.advance(*endpoints_.due_in("now"));
  listed(json::array());  // it may have been carried out
  done();
  EXPECT_THAT(kept(), ElementsAre("GET slices", "POST slices"));
  EXPECT_FALSE(endpoints_.due_in("now"));
}

TEST_F(EndpointsTest, AJobOfMoreThanASliceHoldsHasSeveral) {
  observed_.pods.clear();
  for (int index = 0; index < 1500; ++index)
    observed_.pods.push_back(pod(index, "p" + std::to_string(index), "10.0.0.1"));
  status_.nodes.target = 1500;
  done();
  done();
  EXPECT_THAT(kept(), ElementsAre("POST slices", "POST slices"));
  EXPECT_EQ(sent()["endpoints"].size(), 500u);
  EXPECT_EQ(sent()["endpoints"][0]["hostname"], "train-1000");
  observed_.pods.back().member = false;
  status_.nodes.target = 1499;
  done("2");
  EXPECT_THAT(kept(), ElementsAre("PUT slices")) << "the other has not changed";
  observed_.pods.resize(3);
  status_.nodes.target = 3;
  done("3");
  done("3");
  EXPECT_THAT(kept(), ElementsAre("PUT slices", "PUT slices"));
  EXPECT_THAT(hosts(), IsEmpty());
}

TEST_F(EndpointsTest, ASliceOfAnotherJobWithOurLabelIsNotOurs) {
  whole();
  status_.membership.generation = 2;
  json foreign = stored(first_name(), "7", json::array());
  foreign["metadata"]["ownerReferences"][0]["uid"] = "other";
  listed(json::array({foreign}));
  done();
  EXPECT_THAT(kept(), ElementsAre("GET slices", "POST slices"));
}

TEST_F(EndpointsTest, ASliceThatSomebodyTakesAwayIsWrittenAnew) {
  EXPECT_FALSE(endpoints_.lost("now")) << "nobody has looked yet";
  settle();
  EXPECT_TRUE(endpoints_.lost("now"));
  EXPECT_FALSE(endpoints_.lost("another"));
  listed(json::array());
  done("5");
  EXPECT_THAT(kept(), ElementsAre("GET slices", "POST slices"));
  EXPECT_THAT(hosts(), ElementsAre("train-0", "train-1", "train-2"));
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(EndpointsTest, WhatIsForgottenIsWrittenAnew) {
  settle();
  endpoints_.forget("now");
  done();
  EXPECT_THAT(kept(), ElementsAre("POST slices"));
}

TEST_F(EndpointsTest, ALookThatDoesNotComeToItIsNotRepeatedAtOnce) {
  settle();
  observed_.pods[1].address = "10.0.0.77";
  status_.nodes.target = 4;
  EXPECT_THAT(kept(), IsEmpty());
  ASSERT_TRUE(endpoints_.due_in("now"));
  clock_.advance(std::chrono::minutes(1));
  EXPECT_GT(*endpoints_.due_in("now"), Duration::zero());
}

TEST_F(EndpointsTest, ARightThatIsMissingIsWaitedFor) {
  whole();
  refused(403, "Forbidden",
          "endpointslices.discovery.k8s.io is forbidden: User \"o\" cannot create resource "
          "\"endpointslices\" in API group \"discovery.k8s.io\" in the namespace \"n\"");
  EXPECT_THAT(kept(), ElementsAre("POST slices")) << "the Service stays as it is";
  EXPECT_TRUE(endpoints_.due_in("now"));
}

}  // namespace
}  // namespace trainyard::cluster
