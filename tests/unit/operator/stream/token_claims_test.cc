#include "operator/stream/token_claims.h"

#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace trainyard::stream {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr Time kReadAt{std::chrono::seconds(1'700'000'000)};

/// RFC 4648, the alphabet for URLs, without padding.
std::string base64url(const std::string& bytes) {
  constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string text;
  uint32_t bits = 0;
  unsigned held = 0;
  for (const char byte : bytes) {
    bits = (bits << 8U) | static_cast<unsigned char>(byte);
    held += 8;
    for (; held >= 6; held -= 6)
      text += kAlphabet[(bits >> (held - 6)) & 63U];
  }
  if (held > 0) text += kAlphabet[(bits << (6 - held)) & 63U];
  return text;
}

/// As the API server writes it for a projected token.
json claims() {
  return {{"aud", {"trainyard.dev/control"}},
          {"exp", 1'700'003'600},
          {"iat", 1'700'000'000},
          {"iss", "https://kubernetes.default.svc"},
          {"kubernetes.io",
           {{"namespace", "team-\u00e4\u00ff"},
            {"pod", {{"name", "job-0-abcde"}, {"uid", "2f1d"}}},
            {"serviceaccount", {{"name", "default"}, {"uid", "77"}}}}},
          {"sub", "system:serviceaccount:team:default"}};
}

std::string token_of(const json& claims) {
  return "eyJhbGciOiJSUzI1NiJ9." + base64url(claims.dump()) + ".c2lnbmF0dXJl";
}

std::string fault_of(const std::string& token) {
  const auto owner = claims_of(token, kReadAt);
  return owner ? "none" : owner.error().message;
}

TEST(TokenClaimsTest, APodsTokenNamesItsPodWhateverTheLengthOfItsPayload) {
  json made = claims();
  for (const char* more : {"", "x", "xx", "xxx"}) {
    made["jti"] = more;
    const auto owner = claims_of(token_of(made), kReadAt);
    ASSERT_TRUE(owner) << owner.error().message;
    EXPECT_EQ(*owner, (TokenOwner{"team-\u00e4\u00ff", "job-0-abcde", "2f1d"}));
  }
  made["aud"] = "trainyard.dev/control";
  EXPECT_EQ(fault_of(token_of(made)), "none") << "an audience alone";
}

TEST(TokenClaimsTest, WhatNoApiServerTakesIsRefused) {
  EXPECT_THAT(fault_of("forged"), HasSubstr("not a JWT"));
  EXPECT_THAT(fault_of("a..b"), HasSubstr("not a JWT"));
  EXPECT_THAT(fault_of("a.b.c.d"), HasSubstr("not a JWT"));
  EXPECT_THAT(fault_of("a.%%%%.c"), HasSubstr("not base64"));
  EXPECT_THAT(fault_of("a." + base64url("{\"aud\":") + ".c"), HasSubstr("not a JSON object"));
  EXPECT_THAT(fault_of("a." + base64url("[1]") + ".c"), HasSubstr("not a JSON object"));
  EXPECT_THAT(fault_of(token_of(claims()) + std::string(16 << 10, 'x')), HasSubstr("16 KiB"));
}

TEST(TokenClaimsTest, ATokenForOthersOrOfYesterdayIsRefused) {
  json made = claims();
  made["aud"] = {"https://kubernetes.default.svc"};
  EXPECT_THAT(fault_of(token_of(made)), HasSubstr("another audience"));
  made.erase("aud");
  EXPECT_THAT(fault_of(token_of(made)), HasSubstr("another audience"));
  made = claims();
  made["exp"] = 1'699'999'000;
  EXPECT_THAT(fault_of(token_of(made)), HasSubstr("expired"));
  made["exp"] = "tomorrow";
  EXPECT_THAT(fault_of(token_of(made)), HasSubstr("expired"));
  made["exp"] = 1'699'999'900;
  EXPECT_EQ(fault_of(token_of(made)), "none") << "clocks differ";
  made = claims();
  made["kubernetes.io"].erase("pod");
  EXPECT_THAT(fault_of(token_of(made)), HasSubstr("bound to no pod"));
  made["kubernetes.io"] = "system";
  EXPECT_THAT(fault_of(token_of(made)), HasSubstr("bound to no pod"));
}

/// It is read before anybody is known.
TEST(TokenClaimsTest, AHostileNestIsNoFault) {
  EXPECT_THAT(fault_of("a." + base64url(std::string(10'000, '[')) + ".c"),
              HasSubstr("not a JSON object"));
}

}  // namespace
}  // namespace trainyard::stream
