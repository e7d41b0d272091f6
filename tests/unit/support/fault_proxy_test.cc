// What tests of the operator rely on: that a fault is what it is called, and that nothing else
// changes on the way.
#include "tests/support/fault_proxy.h"

#include <array>
#include <atomic>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/answer_framing.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tls_client.h"

namespace trainyard::testing_support {
namespace {

using Kind = Fault::Kind;
using testing::HasSubstr;
using testing::StartsWith;

TEST(RequestLineTest, TellsWhatIsMeant) {
  const auto resource = [](const std::string& target) {
    return parse_request_line("GET " + target + " HTTP/1.1").resource;
  };
  EXPECT_EQ(resource("/api/v1/pods?limit=5"), "pods");
  EXPECT_EQ(resource("/api/v1/namespaces/a/pods/b"), "pods");
  EXPECT_EQ(resource("/api/v1/namespaces/a"), "namespaces");
  EXPECT_EQ(resource("/apis/trainyard.dev/v1alpha1/namespaces/a/trainingjobs/b/status"),
            "trainingjobs/status");
  EXPECT_EQ(resource("/version"), "");
}

TEST(RequestLineTest, TellsWritesListsAndWatches) {
  const auto kind = [](const std::string& line) {
    const ProxiedRequest request = parse_request_line(line + " HTTP/1.1");
    return std::string(request.write > 0 ? "write" : "") + (request.list > 0 ? "list" : "") +
           (request.watch > 0 ? "watch" : "");
  };
  EXPECT_EQ(kind("GET /api/v1/pods"), "list");
  EXPECT_EQ(kind("GET /api/v1/namespaces/a/pods/b"), "");
  EXPECT_EQ(kind("GET /api/v1/pods?watch=true&timeoutSeconds=300"), "watch");
  EXPECT_EQ(kind("POST /api/v1/namespaces/a/pods"), "write");
  EXPECT_EQ(kind("POST /api/v1/namespaces/a/pods?dryRun=All"), "");
  EXPECT_EQ(kind("DELETE /api/v1/namespaces/a/pods/b"), "write");
}

/// Bytes of the first of two answers, given in pieces of `size`.
size_t first_answer(const std::string& bytes, size_t size) {
  AnswerFraming framing;
  size_t taken = 0;
  for (size_t at = 0; at < bytes.size() && !framing.complete(); at += size)
    taken += framing.take(std::string_view(bytes).substr(at, size));
  EXPECT_TRUE(framing.complete());
  return taken;
}

TEST(AnswerFramingTest, FindsTheEndHoweverTheBytesCome) {
  const std::string next = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx";
  for (const std::string& answer :
       {std::string("HTTP/1.1 200 OK\r\nContent-Length: 7\r\nA: b\r\n\r\n1234567"),
        std::string("HTTP/1.1 204 No Content\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                    "a\r\n0123456789\r\n1\r\n\n\r\n0\r\n\r\n")}) {
    for (size_t size = 1; size <= answer.size() + 5; ++size)
      EXPECT_EQ(first_answer(answer + next, size), answer.size()) << answer << " by " << size;
  }
}

/// A proxy in front of a server that answers each request with its number.
class FaultProxyTest : public testing::Test {
 protected:
  FaultProxyTest() {
    server_ = std::make_unique<LoopbackServer>(
        [this](LoopbackConnection& connection) {
          while (const auto request = connection.read_request()) {
            const int number = ++served_;
            if (!connection.answer(200, std::to_string(number) + " " + request->body +
                                            request->header("Authorization")))
              return;
          }
        },
        LoopbackServer::Options{.identity = authority_.issue({.names = {"IP:127.0.0.1"}})});
    const std::string url = server_->url();
    proxy_ = std::make_unique<FaultProxy>(FaultProxy::Options{
        std::stoi(url.substr(url.rfind(':') + 1)), written("server.crt", authority_.pem())});
    client_ = std::make_unique<TlsClient>(written("proxy.crt", proxy_->authority()));
  }

  std::filesystem::path written(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.path() / name) << text;
    return folder_.path() / name;
  }

  std::unique_ptr<TlsClient::Link> link() const {
    const std::string url = proxy_->url();
    return client_->connect(std::stoi(url.substr(url.rfind(':') + 1)));
  }

  /// What the client reads of the answer until it is complete or the connection ends; nothing
  /// where there is no connection.
  std::optional<std::string> ask(const std::string& line, const std::string& body = "") const {
    const auto made = link();
    if (!made) return std::nullopt;
    LoopbackConnection& connection = made->connection();
    connection.write(line + " HTTP/1.1\r\nAuthorization: token\r\nContent-Length: " +
                     std::to_string(body.size()) + "\r\n\r\n" + body);
    AnswerFraming framing;
    std::string answer;
    std::array<char, 4096> buffer{};
    while (!framing.complete()) {
      const int count = connection.read_some(buffer.data(), buffer.size());
      if (count <= 0) break;
      const std::string_view bytes(buffer.data(), static_cast<size_t>(count));
      framing.take(bytes);
      answer += bytes;
    }
    return answer;
  }

  void all_meet(const Fault& fault) {
    proxy_->script([fault](const ProxiedRequest&) { return fault; });
  }

  const TemporaryDirectory folder_;
  const TestAuthority authority_;
  std::atomic<int> served_ = 0;
  std::unique_ptr<LoopbackServer> server_;
  std::unique_ptr<FaultProxy> proxy_;
  std::unique_ptr<TlsClient> client_;
};

TEST_F(FaultProxyTest, PassesRequestsAndAnswersAsTheyAre) {
  EXPECT_THAT(*ask("POST /api/v1/pods", "body "), HasSubstr("\r\n\r\n1 body token"));
  EXPECT_EQ(proxy_->faults(), 0);
}

TEST_F(FaultProxyTest, NumbersWhatItSees) {
  std::vector<int64_t> writes;
  proxy_->script([&](const ProxiedRequest& request) {
    writes.push_back(request.write);
    return Fault::none();
  });
  for (const char* line : {"GET /api/v1/pods", "POST /api/v1/pods", "DELETE /api/v1/pods/a"})
    ask(line);
  const std::vector<ProxiedRequest> seen = proxy_->requests();
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].list, 1);
  EXPECT_THAT(writes, testing::ElementsAre(0, 1, 2));
}

TEST_F(FaultProxyTest, ALostRequestIsNotServedALostAnswerIs) {
  all_meet(Fault::of(Kind::kLoseRequest));
  EXPECT_EQ(ask("POST /api/v1/pods"), "");
  EXPECT_EQ(served_, 0);
  all_meet(Fault::of(Kind::kLoseAnswer));
  EXPECT_EQ(ask("POST /api/v1/pods"), "");
  EXPECT_EQ(served_, 1);
  EXPECT_EQ(proxy_->faults(), 1);
}

TEST_F(FaultProxyTest, KillsBeforeOrAfterTheServer) {
  std::atomic<int> served_at_crash = -1;
  proxy_->on_crash([&] { served_at_crash = served_.load(); });
  all_meet(Fault::of(Kind::kCrashBefore));
  EXPECT_EQ(ask("POST /api/v1/pods"), "");
  EXPECT_EQ(served_at_crash, 0);
  EXPECT_EQ(served_, 0);
  all_meet(Fault::of(Kind::kCrashAfter));
  EXPECT_EQ(ask("POST /api/v1/pods"), "");
  EXPECT_EQ(served_at_crash, 1);
}

TEST_F(FaultProxyTest, AnswersInTheServersPlace) {
  all_meet(Fault::answer(429, "TooManyRequests", std::chrono::seconds(3)));
  const std::string refused = *ask("POST /api/v1/pods");
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 429 "));
  EXPECT_THAT(refused, HasSubstr("Retry-After: 3\r\n"));
  EXPECT_THAT(refused, HasSubstr(R"("reason":"TooManyRequests")"));
  EXPECT_EQ(served_, 0);
  all_meet(Fault::answer_after(504, "Timeout"));
  EXPECT_THAT(*ask("POST /api/v1/pods"), StartsWith("HTTP/1.1 504 "));
  EXPECT_EQ(served_, 1);
}

TEST_F(FaultProxyTest, CutsWhereItIsTold) {
  all_meet(Fault::cut(10));
  EXPECT_EQ(ask("GET /api/v1/pods"), "HTTP/1.1 2");
  all_meet(Fault::slow(7, std::chrono::milliseconds(1)));
  EXPECT_THAT(*ask("GET /api/v1/pods"), HasSubstr("\r\n\r\n2 token"));
}

TEST_F(FaultProxyTest, WhatIsHeldReachesTheServerWhenItsClientIsGone) {
  all_meet(Fault::of(Kind::kHold));
  std::jthread client([&] { EXPECT_EQ(ask("POST /api/v1/pods", "late "), ""); });
  while (proxy_->held() == 0)
    std::this_thread::yield();
  proxy_->go_down(Greeting::kReset);
  client.join();
  EXPECT_EQ(served_, 0);
  const std::vector<LateRequest> late = proxy_->release();
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(late[0].request.resource, "pods");
  EXPECT_EQ(late[0].status, 200);
  EXPECT_EQ(served_, 1);
  EXPECT_EQ(proxy_->held(), 0);
}

TEST_F(FaultProxyTest, AnOldListIsTheFirstOne) {
  all_meet(Fault::of(Kind::kStale));
  EXPECT_THAT(*ask("GET /api/v1/pods"), HasSubstr("\r\n\r\n1 ")) << "there is no older one";
  EXPECT_EQ(proxy_->faults(), 0);
  EXPECT_THAT(*ask("GET /api/v1/pods"), HasSubstr("\r\n\r\n1 "));
  EXPECT_THAT(*ask("GET /api/v1/nodes"), HasSubstr("\r\n\r\n2 "));
  EXPECT_EQ(proxy_->faults(), 1);
}

TEST_F(FaultProxyTest, AnExpiredWatchIsToldByAnEvent) {
  all_meet(Fault::of(Kind::kExpire));
  EXPECT_THAT(*ask("GET /api/v1/pods?watch=true"), HasSubstr(R"({"type":"ERROR","object")"));
  EXPECT_EQ(served_, 0);
}

TEST_F(FaultProxyTest, WhileDownServesNobody) {
  const auto open = link();
  for (const Greeting greeting : {Greeting::kReset, Greeting::kRefuseTls}) {
    proxy_->go_down(greeting);
    EXPECT_EQ(link(), nullptr);
    EXPECT_EQ(proxy_->turned_away(), 1);
  }
  open->connection().wait_until_gone();
  proxy_->come_up();
  EXPECT_THAT(*ask("GET /api/v1/pods"), HasSubstr("\r\n\r\n1 "));
}

}  // namespace
}  // namespace trainyard::testing_support
