// Which address is under which name: what is written, when, and what is found.
#include "operator/cluster/endpoints.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "control/status_edit.h"
#include "operator/render/companions.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scripted_transport.h"

namespace trainyard::cluster {
namespace {

using api::ConditionType;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class EndpointsTest : public testing::Test {
 protected:
  EndpointsTest() {
    observed_.metadata.name = "train";
    observed_.metadata.namespace_name = "n";
    observed_.metadata.uid = "now";
    observed_.spec.num_nodes = 3;
    status_.membership.generation = 1;
    status_.nodes.target = 3;
    for (int index = 0; index < 3; ++index)
      observed_.pods.push_back(pod(index, "p" + std::to_string(index), ""));
  }

  static control::ObservedPod pod(int index, const std::string& uid, const std::string& address) {
    control::ObservedPod made;
    made.name = "train-" + std::to_string(index) + "-" + uid;
    made.uid = uid;
    made.node_index = index;
    made.member = true;
    made.phase = control::PodPhase::kRunning;
    made.address = address;
    return made;
  }
  void address(size_t pod) { observed_.pods[pod].address = "10.0.0." + std::to_string(pod); }
  void whole() {
    for (size_t i = 0; i < observed_.pods.size(); ++i)
      address(i);
  }

  /// A slice as the server has it.
  static json stored(const std::string& name, const std::string& version, json endpoints) {
    json slice = {{"metadata",
                   {{"name", name},
                    {"namespace", "n"},
                    {"uid", "slice"},
                    {"resourceVersion", version},
                    {"ownerReferences", json::array({{{"apiVersion", "trainyard.dev/v1alpha1"},
                                                      {"kind", "TrainingJob"},
                                                      {"name", "train"},
                                                      {"uid", "now"},
                                                      {"controller", true}}})}}}};
    slice["endpoints"] = std::move(endpoints);
    return slice;
  }
  void done(const std::string& version = "1") {
    transport_.answer(200, stored(first_name(), version, json::array()).dump());
  }
  /// The job's Service as the server has it.
  json service() const {
    json object = stored("train", "3", json::array());
    object.erase("endpoints");
    object["spec"] = {{"clusterIP", "None"}};
    return object;
  }
  void answered(const json& object) { transport_.answer(200, object.dump()); }
  void refused(int code, const char* reason, const char* message = "as it is said") {
    transport_.answer(code, testing_support::status_body(code, reason, message));
  }
  void listed(json items) {
    transport_.answer(
        200, json{{"metadata", {{"resourceVersion", "9"}}}, {"items", std::move(items)}}.dump());
  }
  std::string first_name() const { return render::endpoint_slice_name(observed_.metadata, 0); }

  /// What a look takes: "POST endpointslices" ...
  std::vector<std::string> kept() {
    const size_t before = transport_.requests().size();
    endpoints_.keep(observed_, status_);
    EXPECT_EQ(transport_.left(), 0u) << "answers that nobody asked for";
    std::vector<std::string> texts;
    const std::vector<kube::Request> requests = transport_.requests();
    for (size_t i = before; i < requests.size(); ++i) {
      const kube::Request& request = requests[i];
      const std::string kind =
          request.path.find("/endpointslices") != std::string::npos ? "slices" : "services";
      texts.push_back(std::string(kube::name_of(request.method)) + " " + kind);
    }
    return texts;
  }
  json sent() const { return json::parse(transport_.last_request().body); }
  std::vector<std::string> hosts() const {
    std::vector<std::string> names;
    const json slice = sent();
    for (const json& one : slice["endpoints"])
      names.push_back(one["hostname"]);
    return names;
  }
  void over() {
    control::set_condition(
        status_, {ConditionType::kSuccessCriteriaMet, api::ConditionStatus::kTrue, "Reason", ""},
        clock_.now());
  }
  void settle() {
    whole();
    done();
    EXPECT_THAT(kept(), ElementsAre("POST slices"));
  }

  testing_support::ScriptedTransport transport_;
  testing_support::ManualClock clock_;
  kube::Client client_{transport_, clock_, {}};
  std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  Endpoints::ListPods lists() {
    return [this](const control::Observed& /*observed*/) {
      return Result<std::vector<control::ObservedPod>>(server_pods_.value_or(observed_.pods));
    };
  }
  std::optional<std::vector<control::ObservedPod>> server_pods_;  ///< nothing: those that are seen
  Endpoints endpoints_{client_, clock_, *logger_, lists()};
  control::Observed observed_;
  api::TrainingJobStatus status_;
};

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

TEST_F(EndpointsTest, WhereAdmissionRefusesSlicesTheServiceGetsASelector) {
  whole();
  refused(403, "Forbidden", "endpointslices \"x\" is forbidden: address 10.0.0.0 is not allowed");
  answered(service());
  answered(service());
  answered(service());
  EXPECT_THAT(kept(),
              ElementsAre("POST slices", "GET services", "DELETE services", "POST services"));
  EXPECT_EQ(sent()["spec"]["selector"]["trainyard.dev/job-uid"], "now");
  observed_.pods[0].address = "10.0.0.77";
  EXPECT_THAT(kept(), IsEmpty()) << "Kubernetes does the rest";
}

TEST_F(EndpointsTest, AServiceThatIsGoneIsGivenItsSelectorAgain) {
  whole();
  endpoints_.lost_service("now");  // before anything is known of the job
  refused(403, "Forbidden", "not allowed");
  refused(404, "NotFound");
  answered(service());
  EXPECT_THAT(kept(), ElementsAre("POST slices", "GET services", "POST services"));
  EXPECT_THAT(kept(), IsEmpty());
  endpoints_.lost_service("now");  // the job gets another, without a selector
  listed(json::array());
  refused(403, "Forbidden", "not allowed");
  answered(service());
  answered(service());
  answered(service());
  EXPECT_THAT(kept(), ElementsAre("GET slices", "POST slices", "GET services", "DELETE services",
                                  "POST services"));
  EXPECT_EQ(sent()["spec"]["selector"]["trainyard.dev/job-uid"], "now");
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(EndpointsTest, OfAServiceThatHadNoSelectorTheSlicesStay) {
  settle();
  endpoints_.lost_service("now");
  EXPECT_THAT(kept(), IsEmpty());
}

TEST_F(EndpointsTest, AServiceThatWasOnlyTakenAwayIsMadeAtTheNextTry) {
  whole();
  refused(403, "Forbidden", "not allowed");
  answered(service());
  answered(service());
  refused(500, "InternalError");
  kept();
  clock_.advance(*endpoints_.due_in("now"));
  listed(json::array());
  refused(403, "Forbidden", "not allowed");
  refused(404, "NotFound");
  answered(service());
  EXPECT_THAT(kept(), ElementsAre("GET slices", "POST slices", "GET services", "POST services"));
}

TEST_F(EndpointsTest, AServiceThatHasASelectorIsLeftAsItIs) {
  whole();
  refused(403, "Forbidden", "not allowed");
  json selecting = service();
  selecting["spec"]["selector"] = {{"a", "b"}};
  answered(selecting);
  EXPECT_THAT(kept(), ElementsAre("POST slices", "GET services"));
  EXPECT_FALSE(endpoints_.due_in("now"));
}

TEST_F(EndpointsTest, TheServiceOfAJobThatHadTheNameBeforeIsWaitedFor) {
  whole();
  refused(403, "Forbidden", "not allowed");
  json before = service();
  before["metadata"]["ownerReferences"][0]["uid"] = "before";
  answered(before);
  EXPECT_THAT(kept(), ElementsAre("POST slices", "GET services"));
  EXPECT_TRUE(endpoints_.due_in("now"));
}

TEST_F(EndpointsTest, AServiceThatCannotBeReadIsNotMadeAnew) {
  whole();
  refused(403, "Forbidden", "not allowed");
  refused(500, "InternalError");
  EXPECT_THAT(kept(), ElementsAre("POST slices", "GET services"));
  EXPECT_TRUE(endpoints_.due_in("now"));
}

TEST_F(EndpointsTest, AServiceThatCannotBeRemovedIsNotMadeAnew) {
  whole();
  refused(403, "Forbidden", "not allowed");
  answered(service());
  refused(409, "Conflict");
  EXPECT_THAT(kept(), ElementsAre("POST slices", "GET services", "DELETE services"));
  EXPECT_TRUE(endpoints_.due_in("now"));
}

TEST_F(EndpointsTest, AServiceThatSomebodyElseRemovesIsMadeAnew) {
  whole();
  refused(403, "Forbidden", "not allowed");
  answered(service());
  refused(404, "NotFound");
  answered(service());
  EXPECT_THAT(kept(),
              ElementsAre("POST slices", "GET services", "DELETE services", "POST services"));
  EXPECT_FALSE(endpoints_.due_in("now"));
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
