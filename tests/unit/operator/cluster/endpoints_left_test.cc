// Slices that Kubernetes keeps, where nobody else may, and the Service that has it do so.
#include "tests/unit/operator/cluster/endpoints_world.h"

namespace trainyard::cluster {
namespace {

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

}  // namespace
}  // namespace trainyard::cluster
