#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/io/file.h"
#include "operator/kube/config.h"
#include "operator/kube/token_source.h"
#include "tests/support/manual_clock.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::kube {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::ManualClock;
using testing_support::TemporaryDirectory;

/// A kubeconfig with these lines (indented by four) in its one cluster and one user.
std::string kubeconfig(const std::string& cluster, const std::string& user) {
  return "apiVersion: v1\nkind: Config\ncurrent-context: main\n"
         "clusters:\n- name: kind\n  cluster:\n" +
         cluster + "users:\n- name: me\n  user:\n" + user +
         "contexts:\n- name: main\n  context: {cluster: kind, user: me, namespace: team}\n"
         "- name: bare\n  context: {cluster: kind, user: ''}\n"
         "- name: lost\n  context: {cluster: gone, user: me}\n";
}

constexpr char kServer[] = "    server: https://10.0.0.1:6443\n";

Result<ServerConfig> parse(const std::string& text, const std::string& context = "") {
  return parse_kubeconfig(text, "/nowhere", context);
}

TEST(KubeconfigTest, ReadsInlineCertificatesAndToken) {
  const auto config = parse(kubeconfig(
      std::string(kServer) + "    certificate-authority-data: Q0E=\n    tls-server-name: kube\n",
      "    client-certificate-data: Q0VSVA==\n    client-key-data: S0VZ\n    token: secret\n"));
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->server, "https://10.0.0.1:6443");
  EXPECT_EQ(config->tls_server_name, "kube");
  EXPECT_EQ(config->ns, "team");
  EXPECT_EQ(config->authority.text, "CA");
  EXPECT_EQ(config->authority.origin, "certificate-authority-data of cluster \"kind\"");
  EXPECT_TRUE(config->authority.file.empty());
  EXPECT_EQ(config->client_certificate.text, "CERT");
  EXPECT_EQ(config->client_key.text, "KEY");
  EXPECT_EQ(config->token, "secret");
}

TEST(KubeconfigTest, ReadsFilesBesideIt) {
  const TemporaryDirectory directory;
  for (const char* name : {"ca.crt", "me.crt", "me.key"})
    ASSERT_TRUE(write_file_atomic(directory.path() / name, name).has_value());
  const fs::path path = directory.path() / "config";
  ASSERT_TRUE(
      write_file_atomic(
          path, kubeconfig(std::string(kServer) + "    certificate-authority: ca.crt\n",
                           "    client-certificate: me.crt\n    client-key: " +
                               (directory.path() / "me.key").string() + "\n    tokenFile: token\n"))
          .has_value());
  const auto config = load_kubeconfig(path, "");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->authority.text, "ca.crt");
  EXPECT_EQ(config->authority.file, directory.path() / "ca.crt");
  EXPECT_EQ(config->client_certificate.text, "me.crt");
  EXPECT_EQ(config->client_key.text, "me.key");
  EXPECT_EQ(config->token_file, directory.path() / "token");
}

TEST(KubeconfigTest, TakesTheContextAskedFor) {
  const std::string text = kubeconfig(kServer, "    token: t\n");
  const auto bare = parse(text, "bare");
  ASSERT_TRUE(bare.has_value());
  EXPECT_EQ(bare->token, "");
  EXPECT_EQ(bare->ns, "default");
  const auto lost = parse(text, "lost");
  ASSERT_FALSE(lost.has_value());
  EXPECT_THAT(lost.error().message, AllOf(HasSubstr("cluster \"gone\""), HasSubstr("\"kind\"")));
  const auto none = parse(text, "other");
  ASSERT_FALSE(none.has_value());
  EXPECT_THAT(none.error().message, AllOf(HasSubstr("context \"other\""), HasSubstr("\"main\"")));
}

TEST(KubeconfigTest, ReadsJsonToo) {
  const auto config = parse(
      R"({"current-context":"c","contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}],)"
      R"("clusters":[{"name":"k","cluster":{"server":"https://h"}}],)"
      R"("users":[{"name":"u","user":{"token":"t"}}]})");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->token, "t");
}

struct Bad {
  const char* name;
  std::string cluster;
  std::string user;
  const char* field;
  const char* hint;
};

class BadKubeconfigTest : public testing::TestWithParam<Bad> {};

TEST_P(BadKubeconfigTest, IsRefusedWithItsFieldAndAdvice) {
  const auto config = parse(kubeconfig(GetParam().cluster, GetParam().user));
  ASSERT_FALSE(config.has_value());
  EXPECT_THAT(config.error().message,
              AllOf(HasSubstr(GetParam().field), HasSubstr(GetParam().hint)));
}

INSTANTIATE_TEST_SUITE_P(
    EveryFault, BadKubeconfigTest,
    testing::Values(
        Bad{"Exec", kServer, "    exec: {command: aws}\n", "user \"me\": exec", "ServiceAccount"},
        Bad{"AuthProvider", kServer, "    auth-provider: {name: gcp}\n", "auth-provider", "token"},
        Bad{"Password", kServer, "    username: a\n    password: b\n", "username", "1.19"},
        Bad{"Impersonation", kServer, "    as: admin\n", "user \"me\": as:", "impersonation"},
        Bad{"Groups", kServer, "    as-groups: [a]\n", "as-groups", "impersonation"},
        Bad{"Insecure", std::string(kServer) + "    insecure-skip-tls-verify: true\n", "    {}\n",
            "cluster \"kind\": insecure-skip-tls-verify", "certificate-authority"},
        Bad{"Proxy", std::string(kServer) + "    proxy-url: socks5://p\n", "    {}\n", "proxy-url",
            "without"},
        Bad{"NoServer", "    {}\n", "    {}\n", "cluster \"kind\": server", "wanted https://"},
        Bad{"OddServer", "    server: kube:6443\n", "    {}\n", "server: \"kube:6443\"",
            "wanted https://"},
        Bad{"ServerNumber", "    server: 5\n", "    {}\n", "server: found 5", "wanted a string"},
        Bad{"CaData", std::string(kServer) + "    certificate-authority-data: '!'\n", "    {}\n",
            "certificate-authority-data", "no base64"},
        Bad{"CaFile", std::string(kServer) + "    certificate-authority: gone.crt\n", "    {}\n",
            "certificate-authority", "/nowhere/gone.crt"},
        Bad{"NoKey", kServer, "    client-certificate-data: Q0E=\n", "client-key", "missing"},
        Bad{"NoCertificate", kServer, "    client-key-data: Q0E=\n", "client-certificate",
            "missing"},
        Bad{"PlainToken", "    server: http://h\n", "    token: t\n", "http://h",
            "wanted https://"},
        Bad{"TokenNumber", kServer, "    token: 5\n", "user \"me\": token", "wanted a string"}),
    [](const testing::TestParamInfo<Bad>& test) { return test.param.name; });

TEST(KubeconfigTest, AcceptsEmptyFormsOfWhatItRefuses) {
  EXPECT_TRUE(parse(kubeconfig(std::string(kServer) + "    insecure-skip-tls-verify: false\n"
                                                      "    proxy-url: ''\n",
                               "    exec: null\n    as-groups: []\n    username: ''\n"))
                  .has_value());
}

TEST(KubeconfigTest, RefusesWhatIsNoKubeconfig) {
  for (const char* text :
       {"", "- a", "text", "{", "current-context: x\n", "clusters: []\n",
        "current-context: a\ncurrent-context: b\n", "current-context: a\ncontexts:\n- name: a\n"}) {
    const auto config = parse(text);
    ASSERT_FALSE(config.has_value()) << text;
    EXPECT_EQ(config.error().code, ErrorCode::kInvalidConfig) << text;
    EXPECT_FALSE(config.error().message.empty());
  }
}

class PodTest : public testing::Test {
 protected:
  void SetUp() override {
    write("ca.crt", "CA");
    write("token", "one\n");
    write("namespace", "system\n");
  }
  void write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(write_file_atomic(directory_.path() / name, text).has_value());
  }
  PodEnvironment environment() { return {"10.96.0.1", "443", directory_.path()}; }

  TemporaryDirectory directory_;
  ManualClock clock_;
};

TEST_F(PodTest, ReadsItsIdentity) {
  const auto config = in_cluster_config(environment());
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->server, "https://10.96.0.1:443");
  EXPECT_EQ(config->ns, "system");
  EXPECT_EQ(config->authority.text, "CA");
  EXPECT_EQ(config->token_file, directory_.path() / "token");
  PodEnvironment v6 = environment();
  v6.service_host = "fd00::1";
  EXPECT_EQ(in_cluster_config(v6).value().server, "https://[fd00::1]:443");
}

TEST_F(PodTest, SaysWhatIsMissing) {
  EXPECT_EQ(in_cluster_config({}).error().code, ErrorCode::kNotFound);
  fs::remove(directory_.path() / "ca.crt");
  EXPECT_THAT(in_cluster_config(environment()).error().message, HasSubstr("ca.crt"));
}

TEST_F(PodTest, SourcesCountInTheirOrder) {
  const fs::path file = directory_.path() / "config";
  write("config", kubeconfig(kServer, "    token: t\n"));
  EXPECT_EQ(find_config({.kubeconfig = file, .pod = environment()}).value().token, "t");
  EXPECT_EQ(find_config({.kubeconfig_env = file, .pod = environment()}).value().token, "t");
  EXPECT_EQ(find_config({.pod = environment()}).value().ns, "system");
  EXPECT_THAT(find_config({.kubeconfig_env = "a:b"}).error().message, HasSubstr("--kubeconfig"));
  fs::create_directory(directory_.path() / ".kube");
  write(".kube/config", kubeconfig(kServer, "    token: home\n"));
  EXPECT_EQ(find_config({.home = directory_.path()}).value().token, "home");
  const auto nothing = find_config({.home = "/nowhere"});
  EXPECT_EQ(nothing.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(nothing.error().message, AllOf(HasSubstr("KUBECONFIG"), HasSubstr("/nowhere")));
  EXPECT_EQ(find_config({.kubeconfig = "/nowhere/x", .pod = environment()}).error().code,
            ErrorCode::kNotFound)
      << "a file that was asked for is not passed over";
}

TEST_F(PodTest, TokenIsReadAgainAfterAMinute) {
  const auto config = in_cluster_config(environment());
  TokenSource source(*config, clock_);
  EXPECT_EQ(source.token().value(), "one");
  write("token", " two \r\n");
  clock_.advance(TokenSource::kTokenAge - Duration(1));
  EXPECT_EQ(source.token().value(), "one");
  clock_.advance(Duration(1));
  EXPECT_EQ(source.token().value(), "two");
}

TEST_F(PodTest, TokenIsReadAgainWhenRefused) {
  const auto config = in_cluster_config(environment());
  TokenSource source(*config, clock_);
  EXPECT_EQ(source.token().value(), "one");
  EXPECT_FALSE(source.renew("one")) << "the file still holds what was refused";
  write("token", "two");
  EXPECT_TRUE(source.renew("one"));
  EXPECT_EQ(source.token().value(), "two");
  EXPECT_TRUE(source.renew("one")) << "another call has renewed it already";
}

TEST_F(PodTest, TokenOutlivesItsFile) {
  const auto config = in_cluster_config(environment());
  TokenSource source(*config, clock_);
  EXPECT_EQ(source.token().value(), "one");
  write("token", "two words");
  clock_.advance(TokenSource::kTokenAge);
  EXPECT_EQ(source.token().value(), "one");
  fs::remove(directory_.path() / "token");
  clock_.advance(TokenSource::kTokenAge);
  EXPECT_EQ(source.token().value(), "one");
  TokenSource late(*config, clock_);
  EXPECT_EQ(late.token().error().code, ErrorCode::kUnavailable);
}

TEST_F(PodTest, FixedTokenIsNotRenewed) {
  TokenSource fixed({.token = "t"}, clock_);
  EXPECT_EQ(fixed.token().value(), "t");
  EXPECT_FALSE(fixed.renew("t"));
  TokenSource none({}, clock_);
  EXPECT_EQ(none.token().value(), "");
}

}  // namespace
}  // namespace trainyard::kube
