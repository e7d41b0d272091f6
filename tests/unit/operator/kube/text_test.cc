#include <algorithm>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "operator/kube/base64.h"
#include "operator/kube/json_read.h"
#include "operator/kube/json_text.h"
#include "operator/kube/resource.h"
#include "operator/kube/server_url.h"
#include "operator/kube/token_bucket.h"
#include "operator/kube/uri.h"

namespace trainyard::kube {
namespace {

using testing::HasSubstr;

TEST(UriTest, EncodesAllButUnreservedCharacters) {
  EXPECT_EQ(percent_encode("aZ09-._~"), "aZ09-._~");
  EXPECT_EQ(percent_encode("a/b?c=d&e f%"), "a%2Fb%3Fc%3Dd%26e%20f%25");
  EXPECT_EQ(percent_encode("\xc3\xa9"), "%C3%A9");
}

TEST(UriTest, LeavesNoStepInThePath) {
  EXPECT_EQ(percent_encode(".."), "%2E%2E");
  EXPECT_EQ(percent_encode("."), "%2E");
}

TEST(UriTest, QueryLeavesOutWhatIsEmpty) {
  Query query;
  query.add("a", "");
  query.add("b", "x y");
  query.add("c", "1");
  EXPECT_EQ(query.text(), "b=x%20y&c=1");
}

TEST(ResourceTest, PathsAreThoseOfTheApi) {
  EXPECT_EQ(collection_path(kPods, ""), "/api/v1/pods");
  EXPECT_EQ(collection_path(kPods, "team"), "/api/v1/namespaces/team/pods");
  EXPECT_EQ(collection_path(kNodes, ""), "/api/v1/nodes");
  EXPECT_EQ(collection_path(kNodes, "ignored"), "/api/v1/nodes");
  EXPECT_EQ(object_path(kTrainingJobs, {"a", "b"}, "status"),
            "/apis/trainyard.dev/v1alpha1/namespaces/a/trainingjobs/b/status");
  EXPECT_EQ(object_path(kPods, {"a/../b", ".."}), "/api/v1/namespaces/a%2F..%2Fb/pods/%2E%2E");
  EXPECT_EQ(api_version(kPods), "v1");
  EXPECT_EQ(api_version(kLeases), "coordination.k8s.io/v1");
}

TEST(Base64Test, DecodesTheVectorsOfTheRfc) {
  EXPECT_EQ(decode_base64("").value(), "");
  EXPECT_EQ(decode_base64("Zg==").value(), "f");
  EXPECT_EQ(decode_base64("Zm8=").value(), "fo");
  EXPECT_EQ(decode_base64("Zm9v").value(), "foo");
  EXPECT_EQ(decode_base64("Zm9vYmFy\n").value(), "foobar");
  EXPECT_EQ(decode_base64("AP/+\r\n").value(), std::string("\x00\xff\xfe", 3));
}

TEST(Base64Test, RefusesEverythingElse) {
  for (const char* text : {"Z", "Zg", "Zg=", "Zg===", "=", "Zm9v=", "Zg==Zg==", "Z!==", "Zm 9v"}) {
    const Result<std::string> decoded = decode_base64(text);
    ASSERT_FALSE(decoded.has_value()) << text;
    EXPECT_EQ(decoded.error().code, ErrorCode::kInvalidConfig);
  }
}

TEST(ServerUrlTest, ReadsItsForms) {
  const ServerUrl plain = parse_server_url("https://kube.example.org").value();
  EXPECT_EQ(plain.host, "kube.example.org");
  EXPECT_EQ(plain.port, 443);
  EXPECT_EQ(plain.scheme, Scheme::kHttps);
  EXPECT_EQ(plain.text(), "https://kube.example.org:443");
  const ServerUrl prefixed = parse_server_url("http://10.0.0.1:8080/k8s/clusters/c-1//").value();
  EXPECT_EQ(prefixed.text(), "http://10.0.0.1:8080/k8s/clusters/c-1");
  const ServerUrl v6 = parse_server_url("https://[fd00::1]:6443/").value();
  EXPECT_EQ(v6.host, "fd00::1");
  EXPECT_EQ(v6.text(), "https://[fd00::1]:6443");
}

TEST(ServerUrlTest, RefusesEverythingElse) {
  for (const char* text :
       {"", "kube:6443", "ftp://kube", "https://", "https://:443", "https://a:0", "https://a:65536",
        "https://a:", "https://a:b", "https://user@kube", "https://a/?x=1", "https://a/#x",
        "https://[::1", "https://[]:1", "https://[::1]x", "https://a b", "https://a/../b",
        "https://a\r\nHost: b"}) {
    const Result<ServerUrl> url = parse_server_url(text);
    ASSERT_FALSE(url.has_value()) << text;
    EXPECT_THAT(url.error().message, HasSubstr("wanted https://"));
  }
}

TEST(TokenBucketTest, GivesABurstAndThenARate) {
  TokenBucket bucket(10, 3);
  const MonoTime start{std::chrono::seconds(100)};
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(bucket.reserve(start), Duration::zero());
  EXPECT_EQ(bucket.reserve(start), std::chrono::milliseconds(100));
  EXPECT_EQ(bucket.reserve(start), std::chrono::milliseconds(200));
  EXPECT_EQ(bucket.reserve(start + std::chrono::milliseconds(200)), std::chrono::milliseconds(100));
}

TEST(TokenBucketTest, WhatIsNotThereIsNotTaken) {
  TokenBucket bucket(1, 2);
  const MonoTime start{std::chrono::seconds(100)};
  EXPECT_TRUE(bucket.try_take(start));
  EXPECT_TRUE(bucket.try_take(start));
  for (int i = 0; i < 1000; ++i)
    EXPECT_FALSE(bucket.try_take(start)) << "and nothing has to be paid back";
  EXPECT_TRUE(bucket.try_take(start + std::chrono::seconds(1)));
  EXPECT_FALSE(bucket.try_take(start + std::chrono::seconds(1)));
}

TEST(TokenBucketTest, IsFullWhenAllIsPaidBack) {
  TokenBucket bucket(1, 2);
  const MonoTime start{std::chrono::seconds(100)};
  EXPECT_TRUE(bucket.is_full(start));
  EXPECT_TRUE(bucket.try_take(start));
  EXPECT_TRUE(bucket.try_take(start));
  EXPECT_FALSE(bucket.is_full(start + std::chrono::milliseconds(1999)));
  EXPECT_TRUE(bucket.is_full(start + std::chrono::seconds(2)));
}

TEST(TokenBucketTest, SavesNoMoreThanTheBurst) {
  TokenBucket bucket(1000, 2);
  const MonoTime start{std::chrono::seconds(100)};
  const MonoTime later = start + std::chrono::hours(1);
  EXPECT_EQ(bucket.reserve(start), Duration::zero());
  EXPECT_EQ(bucket.reserve(later), Duration::zero());
  EXPECT_EQ(bucket.reserve(later), Duration::zero());
  EXPECT_EQ(bucket.reserve(later), std::chrono::milliseconds(1));
  EXPECT_EQ(bucket.reserve(start), std::chrono::milliseconds(2)) << "an older clock gives nothing";
}

TEST(JsonTextTest, LeavesManagedFieldsOutOfMetadataOnly) {
  const auto value = parse_json_text(
      R"({"metadata":{"name":"a","managedFields":[{"f":{"x":{}}}],"uid":"u"},)"
      R"("data":{"managedFields":"mine"},)"
      R"("items":[{"metadata":{"managedFields":[1],"name":"b"}}],"managedFields":2})");
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(*value, nlohmann::json::parse(
                        R"({"metadata":{"name":"a","uid":"u"},"data":{"managedFields":"mine"},)"
                        R"("items":[{"metadata":{"name":"b"}}],"managedFields":2})"));
}

TEST(JsonTextTest, LeavesManagedFieldsOutWhateverIsNamedMetadataBeforeThem) {
  const std::string text =
      R"({"metadata":{"labels":{"metadata":"x"},"managedFields":[1],"name":"a"},)"
      R"("items":[{"metadata":[{"managedFields":1}]}]})";
  const nlohmann::json wanted =
      nlohmann::json::parse(R"({"metadata":{"labels":{"metadata":"x"},"name":"a"},)"
                            R"("items":[{"metadata":[{"managedFields":1}]}]})");
  EXPECT_EQ(read_json_quickly(text), wanted);
  EXPECT_EQ(read_json_carefully(text), wanted);
}

/// The type of each number too, which == does not tell.
bool is_same(const nlohmann::json& a, const nlohmann::json& b) {
  if (a.type() != b.type() || a.size() != b.size()) return false;
  return a.is_structured() ? std::equal(a.begin(), a.end(), b.begin(), is_same) : a == b;
}

TEST(JsonTextTest, ReadsQuicklyWhatItReadsCarefully) {
  for (const char* text :
       {R"({"a":1,"a":{"b":2},"a":[3]})", R"([0,-1,9223372036854775807,9223372036854775808])",
        R"([18446744073709551615,-9223372036854775808,1.0,-0.0,1e3,2.5E-3,123456789.123456789])",
        R"(["","\u0000\ud83d\ude00\/\b","\u00e9 é"," "])", " \n\t{ \r} ", "null", "[true,false]",
        R"({"":{"":{}},"metadata":null})"}) {
    const std::optional<nlohmann::json> quick = read_json_quickly(text);
    ASSERT_TRUE(quick.has_value()) << text;
    const nlohmann::json careful = read_json_carefully(text);
    EXPECT_EQ(*quick, careful) << text;
    EXPECT_TRUE(is_same(*quick, careful)) << text;
  }
  // What only the careful way reads.
  const std::string deep = std::string(200, '[') + std::string(200, ']');
  for (const std::string& text :
       {std::string("[18446744073709551616]"), std::string("\xef\xbb\xbf[1]"), deep}) {
    EXPECT_FALSE(read_json_quickly(text).has_value()) << text;
    EXPECT_TRUE(parse_json_text(text).has_value()) << text;
  }
  for (const char* text :
       {"", " ", "[1", "[1]]", "{\"a\":}", "[\"\xff\"]", "[1e400]", "[\"\\ud800\"]"}) {
    EXPECT_FALSE(read_json_quickly(text).has_value()) << text;
    EXPECT_FALSE(parse_json_text(text).has_value()) << text;
  }
}

int depth_of(const nlohmann::json& value) {
  if (!value.is_structured()) return 0;
  int deepest = 0;
  for (const nlohmann::json& member : value)
    deepest = std::max(deepest, depth_of(member));
  return deepest + 1;
}

TEST(JsonTextTest, LeavesOutWhatIsTooDeep) {
  const auto nested = [](const std::string& begin, const std::string& end, int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i)
      text += begin;
    text += "1";
    for (int i = 0; i < depth; ++i)
      text += end;
    return text;
  };
  using Ends = std::pair<std::string, std::string>;
  for (const auto& [begin, end] :
       {Ends("[", "]"), Ends("{\"a\":", "}"), Ends("[{\"a\":", "}]"), Ends("{\"a\":[2,", "]}")}) {
    for (const int depth : {60, 130, 100'000}) {
      const std::string deep = nested(begin, end, depth);
      const auto value = parse_json_text(R"({"before":[1],"deep":)" + deep +
                                         R"(,"after":{"b":[2]},"metadata":{"name":"n",)" +
                                         R"("managedFields":)" + deep + "}}");
      ASSERT_TRUE(value.has_value()) << begin << " " << depth << ": " << value.error().message;
      EXPECT_EQ((*value)["before"], nlohmann::json::array({1}));
      EXPECT_EQ((*value)["after"], nlohmann::json::parse(R"({"b":[2]})"));
      EXPECT_EQ((*value)["metadata"], nlohmann::json::parse(R"({"name":"n"})"));
      EXPECT_LE(depth_of(*value), kJsonDepthMax);
      const int whole = depth * (begin.size() > 5 ? 2 : 1) + 1;
      EXPECT_GE(depth_of(*value), std::min(whole, kJsonDepthMax)) << begin << " " << depth;
      const auto again = parse_json_text(to_json_text(*value));
      ASSERT_TRUE(again.has_value()) << begin << " " << depth;
      EXPECT_EQ(*again, *value) << begin << " " << depth;
    }
  }
}

TEST(JsonTextTest, SaysWhatIsNoJson) {
  const auto broken = parse_json_text("{\"a\":\x1b[31m");
  ASSERT_FALSE(broken.has_value());
  EXPECT_THAT(broken.error().message, HasSubstr("{\"a\":\\x1b[31m"));
  EXPECT_EQ(broken.error().message.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace trainyard::kube
