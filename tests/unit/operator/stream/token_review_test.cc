#include "operator/stream/token_review.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/manual_clock.h"
#include "tests/support/scripted_transport.h"

namespace trainyard::stream {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json accepted() {
  return {{"authenticated", true},
          {"audiences", json::array({"trainyard.dev/control"})},
          {"user",
           {{"username", "system:serviceaccount:team-a:default"},
            {"extra",
             {{"authentication.kubernetes.io/pod-name", json::array({"train-0-x"})},
              {"authentication.kubernetes.io/pod-uid", json::array({"uid-1"})}}}}}};
}

class TokenReviewTest : public testing::Test {
 protected:
  Result<TokenOwner> review(const json& status) {
    transport_.answer(201, json({{"status", status}}).dump());
    return review_token(client_, "a.b.c");
  }

  testing_support::ScriptedTransport transport_;
  testing_support::ManualClock clock_;
  const kube::Client client_{transport_, clock_, {}};
};

TEST_F(TokenReviewTest, TheServerSaysWhosePodItIs) {
  const auto owner = review(accepted());
  ASSERT_TRUE(owner) << owner.error().message;
  EXPECT_EQ(*owner, (TokenOwner{"team-a", "train-0-x", "uid-1"}));
  const json body = json::parse(transport_.last_request().body);
  EXPECT_EQ(body["spec"]["token"], "a.b.c");
  EXPECT_EQ(body["spec"]["audiences"], json::array({"trainyard.dev/control"}));
}

TEST_F(TokenReviewTest, EverythingLessIsRefused) {
  json unknown = accepted();
  unknown["authenticated"] = false;
  unknown["error"] = "token has expired";
  EXPECT_THAT(review(unknown).error().message, HasSubstr("token has expired"));
  json elsewhere = accepted();
  elsewhere["audiences"] = json::array({"https://kubernetes.default.svc"});
  EXPECT_THAT(review(elsewhere).error().message, HasSubstr("another audience"));
  json unaware = accepted();
  unaware.erase("audiences");
  EXPECT_THAT(review(unaware).error().message, HasSubstr("another audience"));
  json person = accepted();
  person["user"]["username"] = "alice";
  EXPECT_THAT(review(person).error().message, HasSubstr("not a ServiceAccount"));
  json unbound = accepted();
  unbound["user"].erase("extra");
  EXPECT_THAT(review(unbound).error().message, HasSubstr("bound to no pod"));
  for (const json& nonsense : {json(nullptr), json("text"), json::array(), json::object()})
    EXPECT_FALSE(review(nonsense)) << nonsense;
}

TEST_F(TokenReviewTest, AServerThatIsAwayIsNoVerdict) {
  transport_.fail({ErrorCode::kUnavailable, "no route"});
  EXPECT_EQ(review_token(client_, "a").error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace trainyard::stream
