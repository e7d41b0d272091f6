#include "operator/stream/certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/verify_certificate.h"

namespace trainyard::stream {
namespace {

using std::chrono::hours;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing_support::verifies;

const Time kNow{std::chrono::seconds(1'700'000'000)};

TEST(CertificatesTest, AServerIsVouchedForByItsAuthorityAlone) {
  const Credential authority = make_authority("one", kNow, hours(10));
  const Credential other = make_authority("one", kNow, hours(10));
  const auto server = issue(authority, {"control.svc", "127.0.0.1", "::1"}, kNow, hours(5));
  ASSERT_TRUE(server) << server.error().message;
  EXPECT_TRUE(is_signed_by(authority.certificate, server->certificate));
  EXPECT_TRUE(is_signed_by(other.certificate + authority.certificate, server->certificate));
  EXPECT_FALSE(is_signed_by(other.certificate, server->certificate));
  EXPECT_TRUE(is_key_of(server->key, server->certificate));
  EXPECT_FALSE(is_key_of(authority.key, server->certificate));
  const auto facts = read_certificate(server->certificate);
  ASSERT_TRUE(facts);
  EXPECT_THAT(facts->hosts, ElementsAre("control.svc", "127.0.0.1", "::1"));
  EXPECT_EQ(facts->not_after, kNow + hours(5));
}

TEST(CertificatesTest, BesideItsSuccessorAnAuthorityStillVouches) {
  for (int i = 0; i < 8; ++i) {
    const Credential before = make_authority("one", kNow, hours(10));
    const Credential after = make_authority("one", kNow, hours(10));
    for (const std::string& bundle :
         {before.certificate + after.certificate, after.certificate + before.certificate}) {
      for (const Credential& signer : {before, after}) {
        const auto server = issue(signer, {"control.svc"}, kNow, hours(5));
        ASSERT_TRUE(server) << server.error().message;
        EXPECT_TRUE(verifies(bundle, server->certificate, kNow));
      }
    }
    const auto server = issue(before, {"control.svc"}, kNow, hours(5));
    EXPECT_FALSE(verifies(after.certificate, server->certificate, kNow));
  }
}

TEST(CertificatesTest, WhatIsNoHostIsNamed) {
  const Credential authority = make_authority("one", kNow, hours(10));
  for (const char* host : {"", "a,DNS:evil", "white space", "new\nline"}) {
    const auto server = issue(authority, {host}, kNow, hours(5));
    ASSERT_FALSE(server) << host;
    EXPECT_EQ(server.error().code, ErrorCode::kInvalidConfig);
    EXPECT_THAT(server.error().message, HasSubstr(host));
  }
}

TEST(CertificatesTest, NonsenseIsNoCertificate) {
  EXPECT_FALSE(read_certificate(""));
  EXPECT_FALSE(read_certificate("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"));
  EXPECT_FALSE(is_key_of("", ""));
  EXPECT_FALSE(is_signed_by("", ""));
  EXPECT_FALSE(issue({"no", "authority"}, {"a"}, kNow, hours(1)));
}

TEST(CertificatesTest, OnlyTheLivingAreKept) {
  const Credential shorter = make_authority("short", kNow, hours(1));
  const Credential longer = make_authority("long", kNow, hours(9));
  const std::string bundle = shorter.certificate + longer.certificate;
  EXPECT_THAT(living_certificates(bundle, kNow), SizeIs(2));
  EXPECT_THAT(living_certificates(bundle, kNow + hours(2)), ElementsAre(longer.certificate));
}

}  // namespace
}  // namespace trainyard::stream
