#include "operator/kube/api_error.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scripted_transport.h"

namespace trainyard::kube {
namespace {

using testing::HasSubstr;
using testing_support::status_body;

TEST(ApiErrorTest, KeepsWhatTheServerSaid) {
  const ApiError error =
      decode_error(422,
                   status_body(422, "Invalid", "Pod \"a\" is invalid",
                               R"({"retryAfterSeconds":3,"causes":[{"reason":"FieldValueInvalid",)"
                               R"("message":"Invalid value: 1","field":"spec.x"}]})"),
                   std::nullopt);
  EXPECT_EQ(error.status, 422);
  EXPECT_EQ(error.reason, Reason::kInvalid);
  EXPECT_EQ(error.message, "Pod \"a\" is invalid");
  EXPECT_EQ(error.retry_after, std::chrono::seconds(3));
  ASSERT_EQ(error.causes.size(), 1u);
  EXPECT_EQ(error.causes[0].field, "spec.x");
  EXPECT_EQ(error.causes[0].reason, "FieldValueInvalid");
  EXPECT_EQ(error.to_error("create pod a").message,
            "create pod a: Invalid (422): Pod \"a\" is invalid");
}

TEST(ApiErrorTest, TellsThe409sApart) {
  const auto reason_of = [](const char* reason) {
    return decode_error(409, status_body(409, reason, ""), std::nullopt);
  };
  EXPECT_EQ(reason_of("AlreadyExists").to_error("").code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(reason_of("Conflict").to_error("").code, ErrorCode::kConflict);
  EXPECT_EQ(reason_of("SomethingNew").reason, Reason::kConflict) << "by its code";
}

TEST(ApiErrorTest, ReadsStatusCodesWithoutStatusObjects) {
  const ApiError proxy = decode_error(503, "<html>\x1b[2Jno\n</html>", std::chrono::seconds(7));
  EXPECT_EQ(proxy.reason, Reason::kServiceUnavailable);
  EXPECT_EQ(proxy.retry_after, std::chrono::seconds(7));
  EXPECT_THAT(proxy.message, HasSubstr("<html>\\x1b[2Jno\\n</html>"));
  EXPECT_EQ(decode_error(418, "", std::nullopt).reason, Reason::kUnknown);
  EXPECT_EQ(decode_error(401, "", std::nullopt).reason, Reason::kUnauthorized);
  EXPECT_EQ(decode_error(410, "", std::nullopt).reason, Reason::kGone);
}

TEST(ApiErrorTest, BoundsWhatItKeeps) {
  std::string causes;
  for (int i = 0; i < 100; ++i)
    causes += std::string(i == 0 ? "" : ",") + R"({"message":"x"})";
  const ApiError error =
      decode_error(422,
                   status_body(422, "Invalid", std::string(100'000, 'm'),
                               R"({"retryAfterSeconds":999999,"causes":[)" + causes + "]}"),
                   std::nullopt);
  EXPECT_EQ(error.causes.size(), kCausesMax);
  EXPECT_LE(error.message.size(), 2100u);
  EXPECT_EQ(error.retry_after, std::chrono::minutes(10));
}

TEST(ApiErrorTest, NoServerCanClaimThatItDidNotAnswer) {
  EXPECT_EQ(decode_error(500, status_body(500, "NoAnswer", ""), std::nullopt).reason,
            Reason::kInternalError);
}

TEST(ApiErrorTest, KnowsWhenToListAgain) {
  EXPECT_TRUE(decode_error(410, status_body(410, "Expired", "too old"), {}).needs_relist());
  EXPECT_TRUE(decode_error(410, status_body(410, "Gone", ""), {}).needs_relist());
  EXPECT_TRUE(decode_error(410, "", {}).needs_relist());
  for (const char* reason : {"Expired", "Gone"})
    EXPECT_TRUE(decode_error(500, status_body(500, reason, ""), {}).needs_relist()) << reason;
  EXPECT_TRUE(decode_error(504,
                           status_body(504, "Timeout", "Too large resource version: 9",
                                       R"({"causes":[{"reason":"ResourceVersionTooLarge",)"
                                       R"("message":"Too large resource version"}]})"),
                           {})
                  .needs_relist());
  EXPECT_FALSE(decode_error(504, status_body(504, "Timeout", "etcd is slow"), {}).needs_relist());
  EXPECT_FALSE(decode_error(403, status_body(403, "Forbidden", "no"), {}).needs_relist());
}

TEST(ApiErrorTest, KeepsTheTransportsError) {
  const ApiError late = no_answer({ErrorCode::kDeadline, "nothing came"});
  EXPECT_EQ(late.status, 0);
  EXPECT_EQ(late.reason, Reason::kNoAnswer);
  EXPECT_EQ(late.to_error("get x").code, ErrorCode::kDeadline);
  EXPECT_EQ(late.to_error("get x").message, "get x: NoAnswer: nothing came");
  EXPECT_FALSE(late.needs_relist());
}

TEST(ApiErrorTest, MapsReasonsToTheCallersCodes) {
  const auto code_of = [](int status) { return decode_error(status, "", {}).to_error("").code; };
  EXPECT_EQ(code_of(404), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(403), ErrorCode::kInvalidConfig);
  EXPECT_EQ(code_of(422), ErrorCode::kInvalidConfig);
  EXPECT_EQ(code_of(401), ErrorCode::kUnavailable);
  EXPECT_EQ(code_of(429), ErrorCode::kUnavailable);
  EXPECT_EQ(code_of(500), ErrorCode::kUnavailable);
  EXPECT_EQ(code_of(504), ErrorCode::kDeadline);
}

TEST(ApiErrorTest, EveryReasonHasItsWord) {
  EXPECT_EQ(name_of(Reason::kAlreadyExists), "AlreadyExists");
  EXPECT_EQ(name_of(Reason::kServerTimeout), "ServerTimeout");
  EXPECT_EQ(name_of(Reason::kNoAnswer), "NoAnswer");
}

}  // namespace
}  // namespace trainyard::kube
