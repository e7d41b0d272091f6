// An operator that may do nothing for a while, or whose token is not taken any more.
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "tests/apiserver/operator/upheaval.h"

namespace trainyard::apiserver {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr char kSystem[] = "trainyard-system";

TEST_F(UpheavalTest, RightsThatAreTakenAreMissedAndUsedAgain) {
  apply(job_manifest("train", 2));
  ASSERT_TRUE(runs("train", 2, 0));
  take_rights();
  must({"delete", "pod", member("train", 1), "--wait=false"});
  const auto& subject = running_operator();
  ASSERT_TRUE(wait_until([&] {
    return subject.log().find(R"("message":"reconcile failed")") != std::string::npos;
  })) << subject.log();
  EXPECT_THAT(subject.log(), AllOf(HasSubstr("trainingjobs"), HasSubstr("is forbidden")));
  EXPECT_THAT(subject.page("/metrics").body,
              AllOf(ContainsRegex("rest_client_requests_total\\{code=\"403\",[^}]*\\} [1-9]"),
                    ContainsRegex("controller_runtime_reconcile_errors_total\\{[^}]*\\} [1-9]")));
  // What it knows it still has; it only may not act on it.
  EXPECT_EQ(subject.page("/readyz").status, 200);
  EXPECT_EQ(job_status("train")["restarts"]["total"], 0);
  give_rights();
  EXPECT_TRUE(runs("train", 2, 1)) << subject.log();
}

TEST_F(UpheavalTest, AnOperatorThatStartsWithoutRightsWaitsForThem) {
  take_rights();
  restart_operator();
  apply(job_manifest("train", 2));
  const auto& subject = running_operator();
  ASSERT_TRUE(wait_until([&] {
    return subject.log().find(R"("reason":"Forbidden")") != std::string::npos;
  })) << subject.log();
  EXPECT_EQ(subject.page("/healthz").status, 200);
  const auto readiness = subject.page("/readyz");
  EXPECT_EQ(readiness.status, 503);
  EXPECT_THAT(readiness.body, HasSubstr("not filled"));
  EXPECT_EQ(condition("train", "Accepted"), "");
  give_rights();
  ASSERT_TRUE(runs("train", 2, 0)) << subject.log();
  EXPECT_EQ(subject.page("/readyz").status, 200);
  EXPECT_TRUE(wait_until([&] {
    return subject.page("/metrics").body.find(R"(trainyard_cache_objects{kind="Node"} 20)") !=
           std::string::npos;
  })) << "nodes, too, are seen: "
      << subject.page("/metrics").body;
}

/// Tokens that live as long as a Secret does, as a pod's live as long as the pod.
class TokenTest : public UpheavalTest {
 protected:
  std::string new_token(const std::string& secret) const {
    must({"create", "secret", "generic", secret, "--namespace", kSystem});
    std::string token = must({"create", "token", "trainyard-operator", "--namespace", kSystem,
                              "--bound-object-kind=Secret", "--bound-object-name=" + secret});
    token.erase(token.find_last_not_of("\r\n") + 1);
    return token;
  }
  bool is_taken(const std::string& token) const {
    const Json review = {{"apiVersion", "authentication.k8s.io/v1"},
                         {"kind", "TokenReview"},
                         {"spec", {{"token", token}}}};
    const Json answer = Json::parse(must_with({"create", "-o", "json"}, review.dump()));
    return answer["status"].value("authenticated", false);
  }
  /// No server takes it any more.
  void end_token(const std::string& secret, const std::string& token) const {
    must({"delete", "secret", secret, "--namespace", kSystem});
    ASSERT_TRUE(wait_until([&] { return !is_taken(token); })) << secret;
  }
  void write_token(const std::string& token) const {
    ASSERT_TRUE(write_file_atomic(file_, token).has_value());
  }

  const std::filesystem::path file_ = folder() / "token";
};

TEST_F(TokenTest, WorkGoesOnWithTheTokenThatReplacesOne) {
  const std::string first = new_token("first");
  write_token(first);
  restart_operator({.server = {}, .token_file = file_});
  apply(job_manifest("train", 2));
  ASSERT_TRUE(runs("train", 2, 0));
  const std::string second = new_token("second");
  write_token(second);
  end_token("first", first);
  must({"delete", "pod", member("train", 1), "--wait=false"});
  ASSERT_TRUE(runs("train", 2, 1)) << running_operator().log();
  EXPECT_THAT(running_operator().log(), Not(HasSubstr("Unauthorized")));
  // And where the file is late.
  end_token("second", second);
  must({"delete", "pod", member("train", 1), "--wait=false"});
  ASSERT_TRUE(wait_until([&] {
    return running_operator().log().find("Unauthorized") != std::string::npos;
  })) << running_operator().log();
  EXPECT_EQ(job_status("train")["restarts"]["total"], 1);
  write_token(new_token("third"));
  EXPECT_TRUE(runs("train", 2, 2)) << running_operator().log();
  must({"delete", "secret", "third", "--namespace", kSystem});
}

}  // namespace
}  // namespace trainyard::apiserver
