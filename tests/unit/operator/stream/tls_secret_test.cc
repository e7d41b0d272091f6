#include "operator/stream/tls_secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "operator/stream/certificates.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scripted_transport.h"

namespace trainyard::stream {
namespace {

using nlohmann::json;
using std::chrono::hours;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::status_body;

const Time kToday{std::chrono::seconds(1'700'000'000)};
const std::vector<std::string> kHosts = {"trainyard-control.trainyard-system.svc"};

SecretContent fresh() { return *renewed({}, kHosts, kToday); }

TEST(RenewedTest, NothingIsFilledWithWhatServes) {
  const SecretContent content = fresh();
  EXPECT_EQ(fault_of(content, kHosts, kToday), "");
  EXPECT_TRUE(is_signed_by(content.authorities, content.certificate));
  EXPECT_TRUE(is_key_of(content.authority_key, content.authorities));
  EXPECT_EQ(read_certificate(content.certificate)->not_after, kToday + kServerLifetime);
}

TEST(RenewedTest, WhatIsGoodStays) {
  const SecretContent content = fresh();
  const Time late = kToday + kServerLifetime - kServerRenewal - hours(1);
  EXPECT_EQ(*renewed(content, kHosts, late), content);
}

TEST(RenewedTest, AServerCertificateNearItsEndIsIssuedAnewByTheSameAuthority) {
  const SecretContent content = fresh();
  const Time late = kToday + kServerLifetime - kServerRenewal + hours(1);
  const SecretContent next = *renewed(content, kHosts, late);
  EXPECT_NE(next.certificate, content.certificate);
  EXPECT_EQ(next.authorities, content.authorities);
  EXPECT_EQ(next.authority_key, content.authority_key);
  EXPECT_EQ(fault_of(next, kHosts, late), "");
}

TEST(RenewedTest, AnotherHostIsAnotherCertificate) {
  const SecretContent content = fresh();
  const SecretContent next = *renewed(content, {"10.0.0.1"}, kToday);
  EXPECT_EQ(next.authorities, content.authorities);
  EXPECT_EQ(fault_of(next, {"10.0.0.1"}, kToday), "");
}

TEST(RenewedTest, AnOldAuthorityIsTrustedBesideTheNewOneAndServesOnMeanwhile) {
  SecretContent content = fresh();
  const Time late = kToday + kAuthorityLifetime - kAuthorityRenewal + hours(1);
  const Credential server =
      *issue({content.authorities, content.authority_key}, kHosts, late, kServerLifetime);
  content.certificate = server.certificate;
  content.key = server.key;
  const SecretContent next = *renewed(content, kHosts, late);
  EXPECT_NE(next.authority_key, content.authority_key);
  EXPECT_THAT(next.authorities, HasSubstr(content.authorities));
  EXPECT_FALSE(is_signed_by(living_certificates(next.authorities, late).front(), next.certificate));
  EXPECT_EQ(next.certificate, content.certificate) << "nobody trusts the new authority yet";
  EXPECT_EQ(*renewed(next, kHosts, late), next);
  const SecretContent last = *renewed(next, kHosts, late + kServerLifetime - hours(1));
  EXPECT_TRUE(is_signed_by(living_certificates(last.authorities, late).front(), last.certificate));
}

TEST(RenewedTest, WhatIsDamagedIsMadeAnew) {
  for (int part = 0; part < 4; ++part) {
    SecretContent content = fresh();
    std::string* const parts[] = {&content.certificate, &content.key, &content.authorities,
                                  &content.authority_key};
    parts[part]->resize(parts[part]->size() / 2);
    const auto next = renewed(content, kHosts, kToday);
    ASSERT_TRUE(next) << part;
    EXPECT_EQ(fault_of(*next, kHosts, kToday), "") << part;
    EXPECT_TRUE(is_signed_by(next->authorities, next->certificate)) << part;
  }
}

class TlsSecretTest : public testing::Test {
 protected:
  static json secret_of(const json& data) {
    return {{"metadata", {{"name", "tls"}, {"namespace", "n"}, {"resourceVersion", "7"}}},
            {"data", data}};
  }

  testing_support::ScriptedTransport transport_;
  testing_support::ManualClock clock_;
  const kube::Client client_{transport_, clock_, {}};
  const std::unique_ptr<Logger> logger_ = Logger::to_stderr(LogLevel::kError);
  TlsSecret secret_{{&client_, &clock_, logger_.get(), {"n", "tls"}, kHosts}};
};

TEST_F(TlsSecretTest, AnEmptySecretIsFilledOnlyIfNobodyElseHasDoneSo) {
  transport_.answer(200, secret_of(nullptr).dump());
  transport_.answer(200, secret_of(nullptr).dump());
  const auto identity = secret_.refresh();
  ASSERT_TRUE(identity) << identity.error().message;
  const kube::Request request = transport_.last_request();
  EXPECT_EQ(request.method, kube::Method::kPut);
  const json body = json::parse(request.body);
  EXPECT_EQ(body["metadata"]["resourceVersion"], "7");
  EXPECT_EQ(body["stringData"]["tls.crt"], identity->server.certificate);
  EXPECT_EQ(body["stringData"]["tls.key"], identity->server.key);
  EXPECT_EQ(body["stringData"]["ca.crt"], identity->authorities);
  EXPECT_THAT(std::string(body["stringData"]["ca.key"]), StartsWith("-----BEGIN PRIVATE KEY"));
}

/// A Secret as the chart makes it, after leaders of these terms.
class TermTest : public TlsSecretTest {
 protected:
  static json remembering(const json& term, const json& data = nullptr) {
    json secret = secret_of(data);
    secret["metadata"]["annotations"] = {{"of", "somebody else"}, {kTermAnnotation, term}};
    return secret;
  }
  Result<int64_t> taken(const json& secret, int64_t least) {
    transport_.answer(200, secret.dump());
    transport_.answer(200, secret.dump());
    return secret_.take_term(least);
  }
};

TEST_F(TermTest, ATermOfTheLeaseIsRemembered) {
  EXPECT_EQ(*taken(secret_of(nullptr), 3), 3);
  const kube::Request request = transport_.last_request();
  EXPECT_EQ(request.method, kube::Method::kPut);
  const json body = json::parse(request.body);
  EXPECT_EQ(body["metadata"]["annotations"][kTermAnnotation], "3");
  EXPECT_EQ(body["metadata"]["resourceVersion"], "7") << "two who lead at once take two terms";
}

TEST_F(TermTest, ALeaseThatCountsFromNothingAgainEndsNoTerm) {
  EXPECT_EQ(*taken(remembering("41"), 0), 42);
  const json body = json::parse(transport_.last_request().body);
  EXPECT_EQ(body["metadata"]["annotations"],
            json({{"of", "somebody else"}, {kTermAnnotation, "42"}}));
  EXPECT_EQ(*taken(remembering("41"), 41), 42) << "its own leader led in that one";
  EXPECT_EQ(*taken(remembering("41"), 42), 42);
  EXPECT_EQ(*taken(remembering("41"), 50), 50);
}

TEST_F(TermTest, WhatIsNoTermIsNone) {
  for (const json& term : {json("x"), json("7x"), json(""), json("9223372036854775807"), json(7),
                           json("99999999999999999999")}) {
    EXPECT_EQ(*taken(remembering(term), 3), 3) << term;
  }
}

TEST_F(TermTest, SomebodyElsesSecretRemembersNone) {
  EXPECT_EQ(*taken(remembering("41", {{"tls.crt", "bm9uc2Vuc2U="}}), 3), 3);
  EXPECT_EQ(transport_.requests().size(), 1U) << "it is not ours to write";
}

TEST_F(TermTest, ASecretThatMayOnlyBeReadRemembersNone) {
  transport_.answer(200, remembering("41", {{"ca.key", "bm9uc2Vuc2U="}}).dump());
  transport_.answer(403, status_body(403, "Forbidden", "it is for reading"));
  EXPECT_EQ(*secret_.take_term(3), 3);
}

TEST_F(TermTest, ATermThatCouldNotBeWrittenIsNotTaken) {
  transport_.answer(200, remembering("41").dump());
  transport_.answer(409, status_body(409, "Conflict", "somebody was faster"));
  EXPECT_EQ(secret_.take_term(3).error().code, ErrorCode::kConflict);
}

TEST_F(TlsSecretTest, WhoeverWasFasterIsAskedNextTime) {
  transport_.answer(200, secret_of(nullptr).dump());
  transport_.answer(409, status_body(409, "Conflict", "somebody was faster"));
  EXPECT_EQ(secret_.refresh().error().code, ErrorCode::kConflict);
}

TEST_F(TlsSecretTest, SomebodyElsesSecretIsNeverWritten) {
  transport_.answer(200, secret_of({{"tls.crt", "bm9uc2Vuc2U="}, {"tls.key", ""}}).dump());
  const auto identity = secret_.refresh();
  ASSERT_FALSE(identity);
  EXPECT_EQ(identity.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(identity.error().message, HasSubstr("Secret n/tls: tls.crt: found no certificate"));
  EXPECT_EQ(transport_.requests().size(), 1U);
}

TEST_F(TlsSecretTest, OneThatIsMissingIsNamed) {
  transport_.answer(404, status_body(404, "NotFound", "secrets \"tls\" not found"));
  EXPECT_THAT(secret_.refresh().error().message, HasSubstr("Secret n/tls"));
}

}  // namespace
}  // namespace trainyard::stream
