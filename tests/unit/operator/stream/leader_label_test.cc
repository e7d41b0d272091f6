#include "operator/stream/leader_label.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/manual_clock.h"
#include "tests/support/scripted_transport.h"

namespace trainyard::stream {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

json pod(const std::string& name, const json& labels) {
  return {{"metadata",
           {{"name", name},
            {"namespace", "system"},
            {"uid", "uid-" + name},
            {"resourceVersion", "1"},
            {"labels", labels}}}};
}

json release(const std::string& name) {
  return {{"app.kubernetes.io/name", "trainyard"}, {"app.kubernetes.io/instance", name}};
}

class LeaderLabelTest : public testing::Test {
 protected:
  void finds(const json& own, const json& leaders) {
    transport_.answer(200, own.dump());
    transport_.answer(200,
                      json({{"metadata", {{"resourceVersion", "2"}}}, {"items", leaders}}).dump());
  }
  void takes(int patches) {
    for (int i = 0; i < patches; ++i)
      transport_.answer(200, pod("patched", json::object()).dump());
  }
  std::string selector() const { return transport_.requests().at(1).query; }
  /// "path body" of what it has changed.
  std::vector<std::string> changes() const {
    std::vector<std::string> found;
    for (const kube::Request& request : transport_.requests()) {
      if (request.method != kube::Method::kGet) found.push_back(request.path + " " + request.body);
    }
    return found;
  }

  testing_support::ScriptedTransport transport_;
  testing_support::ManualClock clock_;
  const kube::Client client_{transport_, clock_, {}};
};

TEST_F(LeaderLabelTest, GoesFromWhoLedBeforeToWhoLeadsNow) {
  finds(pod("new", release("a")), json::array({pod("old", release("a"))}));
  takes(2);
  ASSERT_TRUE(label_leader(client_, {"system", "new"}));
  ASSERT_EQ(changes().size(), 2U);
  EXPECT_THAT(changes()[0], AllOf(HasSubstr("/pods/old"), HasSubstr("null"), HasSubstr("uid-old")));
  EXPECT_THAT(changes()[1], AllOf(HasSubstr("/pods/new"), HasSubstr(R"("true")")));
}

/// Each of two releases in one namespace has a leader, and neither takes the other's label away.
TEST_F(LeaderLabelTest, LeavesTheLeadersOfOtherReleasesAlone) {
  finds(pod("new", release("a")), json::array({pod("new", release("a"))}));
  ASSERT_TRUE(label_leader(client_, {"system", "new"}));
  EXPECT_THAT(selector(), AllOf(HasSubstr("trainyard.dev%2Fleader%3Dtrue"),
                                HasSubstr("app.kubernetes.io%2Fname%3Dtrainyard"),
                                HasSubstr("app.kubernetes.io%2Finstance%3Da")));
  EXPECT_THAT(changes(), IsEmpty()) << "it is there already";
}

TEST_F(LeaderLabelTest, APodThatIsOfNoReleaseLeadsAloneInItsNamespace) {
  finds(pod("new", nullptr), json::array());
  takes(1);
  ASSERT_TRUE(label_leader(client_, {"system", "new"}));
  EXPECT_THAT(selector(), Not(HasSubstr("app.kubernetes.io")));
  EXPECT_EQ(changes().size(), 1U);
}

}  // namespace
}  // namespace trainyard::stream
