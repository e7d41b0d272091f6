#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/audit_log.h"
#include "tests/support/audited_plane.h"
#include "tests/support/operator_process.h"

namespace trainyard::apiserver {
namespace {

using testing::IsEmpty;
using testing_support::AuditEvent;

/// What the API server says of everything that the tests before have had the operator do.
class AuditTest : public testing_support::ApiServerTest {
 protected:
  void SetUp() override {
    ApiServerTest::SetUp();
    events_ = testing_support::read_audit_log(plane().audit_log());
    const bool any = std::any_of(events_.begin(), events_.end(), [](const AuditEvent& event) {
      return event.user == testing_support::kOperatorUser;
    });
    if (!any)
      GTEST_SKIP()
          << "no operator has run on this control plane; run the whole tier: ctest -L apiserver";
  }

  std::set<std::string> granted() const {
    std::set<std::string> rights =
        testing_support::rights_granted(get({"clusterrole", "trainyard-operator"}));
    rights.merge(testing_support::rights_granted(
        get({"role", "trainyard-operator", "--namespace", "trainyard-system"})));
    return rights;
  }

  std::vector<AuditEvent> events_;
};

std::vector<std::string> without(const std::set<std::string>& all,
                                 const std::set<std::string>& these) {
  std::vector<std::string> rest;
  std::set_difference(all.begin(), all.end(), these.begin(), these.end(), std::back_inserter(rest));
  return rest;
}

TEST_F(AuditTest, NothingIsAskedForThatIsNotGranted) {
  EXPECT_THAT(
      without(testing_support::rights_used(events_, testing_support::kOperatorUser), granted()),
      IsEmpty());
}

TEST_F(AuditTest, NothingIsGrantedThatIsNotUsed) {
  // Which of its rights the operator needs shows in all of its tests together.
  for (const char* suite :
       {"AdmissionTest", "EndingTest", "KillTest", "KubectlTest", "LeaderTest", "LifecycleTest",
        "LeftoverTest", "ParkedTest", "PartitionTest", "PolicyTest", "StreamTest"}) {
    if (!plane().has_seen(suite))
      GTEST_SKIP() << suite << " has not run on this control plane; run the whole tier: "
                   << "ctest -L apiserver";
  }
  std::set<std::string> used =
      testing_support::rights_used(events_, testing_support::kOperatorUser);
  // Asked for inside the server, by the admission of owner references that block deletion.
  used.insert("trainyard.dev/trainingjobs/finalizers update");
  EXPECT_THAT(without(granted(), used), IsEmpty());
}

TEST_F(AuditTest, NoInvariantIsBroken) {
  // The conformance suite makes pods as it pleases, under names of its own choice.
  std::erase_if(events_, [](const AuditEvent& event) {
    return event.resource == "pods" && event.verb == "create" &&
           event.user != testing_support::kOperatorUser;
  });
  for (const std::string& violation : testing_support::violations_on(
           plane(), events_, get({"pods", "--all-namespaces"}), get({"tj", "--all-namespaces"})))
    ADD_FAILURE() << violation;
}

}  // namespace
}  // namespace trainyard::apiserver
