#include <chrono>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/io/file.h"
#include "tests/support/loopback_server.h"
#include "tests/support/test_authority.h"
#include "tests/unit/operator/kube/http_transport_fixture.h"

namespace trainyard::kube {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::Identity;
using testing_support::LoopbackConnection;
using testing_support::LoopbackServer;
using testing_support::ReceivedRequest;
using testing_support::TestAuthority;

/// TLS: the server shows `identity_`; the client trusts `authority_`.
class TlsTest : public HttpTransportTest {
 protected:
  LoopbackServer::Handler hello() {
    return each([](LoopbackConnection& connection, const ReceivedRequest&) {
      connection.answer(200, "hello");
    });
  }
  Pem trusted() { return {authority_.pem(), "test-authority.pem", {}}; }
  /// The body, or the error's message.
  std::string say(ServerConfig config) {
    if (config.authority.empty()) config.authority = trusted();
    const auto http = transport(std::move(config));
    const auto answer = http->send({Method::kGet, "/", "", "", ""}, kPatient);
    if (answer) return answer->body;
    EXPECT_EQ(answer.error().code, ErrorCode::kUnavailable);
    return answer.error().message;
  }

  TestAuthority authority_{"kubernetes"};
  TestAuthority other_{"somebody-else"};
  Identity identity_ =
      authority_.issue({.common_name = "server", .names = {"IP:127.0.0.1", "DNS:localhost"}});
};

TEST_F(TlsTest, TrustsTheAuthorityAndItsNames) {
  LoopbackServer server(hello(), {.identity = identity_});
  EXPECT_EQ(say({.server = server.url()}), "hello");
  EXPECT_EQ(say({.server = server.url("localhost")}), "hello");
}

TEST_F(TlsTest, RefusesAnotherAuthorityAndSaysWhichItTrusts) {
  LoopbackServer server(hello(), {.identity = identity_});
  const std::string words =
      say({.server = server.url(), .authority = {other_.pem(), "wrong-ca.pem", {}}});
  EXPECT_THAT(words, AllOf(HasSubstr(server.url()), HasSubstr("unable to get local issuer"),
                           HasSubstr("wrong-ca.pem (CN=somebody-else, valid until 20")));
}

TEST_F(TlsTest, RefusesAnotherName) {
  const Identity elsewhere = authority_.issue({.common_name = "127.0.0.1", .names = {"DNS:else"}});
  LoopbackServer server(hello(), {.identity = elsewhere});
  EXPECT_THAT(say({.server = server.url()}),
              AllOf(HasSubstr("IP address mismatch"), HasSubstr("a certificate for 127.0.0.1")));
  EXPECT_THAT(say({.server = server.url("localhost")}),
              AllOf(HasSubstr("ostname mismatch"), HasSubstr("a certificate for localhost")));
}

TEST_F(TlsTest, TheCommonNameIsNoName) {
  const Identity old_style = authority_.issue({.common_name = "localhost", .names = {}});
  LoopbackServer server(hello(), {.identity = old_style});
  EXPECT_THAT(say({.server = server.url("localhost")}), HasSubstr("ostname mismatch"));
}

TEST_F(TlsTest, ExpectsTheNameThatTheConfigGives) {
  const Identity named = authority_.issue({.names = {"DNS:kube.internal"}});
  LoopbackServer server(hello(), {.identity = named});
  EXPECT_EQ(say({.server = server.url(), .tls_server_name = "kube.internal"}), "hello");
  EXPECT_THAT(say({.server = server.url(), .tls_server_name = "other.internal"}),
              HasSubstr("ostname mismatch"));
}

TEST_F(TlsTest, AnIpv6AddressIsAName) {
  const Identity named = authority_.issue({.names = {"IP:::1"}});
  LoopbackServer server(hello(), {.identity = named, .v6 = true});
  EXPECT_EQ(say({.server = server.url()}), "hello");
}

TEST_F(TlsTest, RefusesAnExpiredCertificate) {
  const Identity expired =
      authority_.issue({.names = {"IP:127.0.0.1"}, .valid_for = -std::chrono::minutes(1)});
  LoopbackServer server(hello(), {.identity = expired});
  EXPECT_THAT(say({.server = server.url()}), HasSubstr("certificate has expired"));
}

TEST_F(TlsTest, RefusesTls11) {
  LoopbackServer server(hello(), {.identity = identity_, .tls_1_1_only = true});
  EXPECT_THAT(say({.server = server.url()}), HasSubstr("protocol version"));
}

TEST_F(TlsTest, ShowsItsCertificate) {
  LoopbackServer server(hello(), {.identity = identity_, .client_authority = authority_.pem()});
  const Identity me = authority_.issue({.common_name = "me"});
  EXPECT_EQ(say({.server = server.url(),
                 .client_certificate = {me.certificate, "me.crt", {}},
                 .client_key = {me.key, "me.key", {}}}),
            "hello");
  EXPECT_THAT(say({.server = server.url()}), HasSubstr("certificate required"));
  const Identity stranger = other_.issue({.common_name = "stranger"});
  EXPECT_THAT(say({.server = server.url(),
                   .client_certificate = {stranger.certificate, "stranger.crt", {}},
                   .client_key = {stranger.key, "stranger.key", {}}}),
              AllOf(HasSubstr("alert"), HasSubstr("offered: stranger.crt (CN=stranger")));
}

TEST_F(TlsTest, ReadsRotatedFilesForNewConnections) {
  const std::string file = directory_.path() / "ca.crt";
  ASSERT_TRUE(write_file_atomic(file, other_.pem()).has_value());
  LoopbackServer server(
      [](LoopbackConnection& connection) {
        (void)connection.read_request();
        connection.answer(200, "hello", "Connection: close\r\n");
      },
      {.identity = identity_});
  const auto http = transport({.server = server.url(), .authority = {other_.pem(), file, file}});
  EXPECT_FALSE(http->send({Method::kGet, "/", "", "", ""}, kPatient).has_value());
  ASSERT_TRUE(write_file_atomic(file, authority_.pem()).has_value());
  EXPECT_TRUE(http->send({Method::kGet, "/", "", "", ""}, kPatient).has_value());
  ASSERT_TRUE(write_file_atomic(file, "half written").has_value());
  EXPECT_THAT(http->send({Method::kGet, "/", "", "", ""}, kPatient).error().message,
              HasSubstr("unable to get local issuer"))
      << "back to what was read first";
}

TEST_F(TlsTest, RefusesWhatIsNoCertificateOrKey) {
  const Identity me = authority_.issue({.common_name = "me"});
  const Identity other = authority_.issue({.common_name = "other"});
  const auto refusal = [&](ServerConfig config) {
    config.server = "https://127.0.0.1:1";
    const auto made = make_http_transport(config, clock_, "x");
    EXPECT_FALSE(made.has_value());
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidConfig);
    return made.error().message;
  };
  EXPECT_THAT(refusal({.authority = {"text", "ca.crt", {}}}),
              AllOf(HasSubstr("ca.crt"), HasSubstr("wanted PEM certificates")));
  EXPECT_THAT(refusal({.authority = {authority_.pem() + "-----BEGIN CERTIFICATE-----\nAAAA\n"
                                                        "-----END CERTIFICATE-----\n",
                                     "ca.crt",
                                     {}}}),
              HasSubstr("found 1 certificates and then one that cannot be read"));
  EXPECT_THAT(refusal({.client_certificate = {me.certificate, "me.crt", {}},
                       .client_key = {other.key, "other.key", {}}}),
              HasSubstr("other.key: does not belong to me.crt"));
  EXPECT_THAT(refusal({.client_certificate = {me.certificate, "me.crt", {}},
                       .client_key = {"text", "me.key", {}}}),
              HasSubstr("me.key: no PEM key"));
}

TEST_F(TlsTest, PlainHttpFromATlsServerIsAnError) {
  LoopbackServer server(hello(), {.identity = identity_});
  const auto http = transport({.server = "http" + server.url().substr(5)});
  EXPECT_FALSE(http->send({Method::kGet, "/", "", "", ""}, kPatient).has_value());
}

}  // namespace
}  // namespace trainyard::kube
