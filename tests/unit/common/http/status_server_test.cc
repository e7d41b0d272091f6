#include "common/http/status_server.h"

#include <atomic>
#include <chrono>
#include <fcntl.h>
#include <mutex>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/http_client.h"

namespace trainyard::http {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::HasSubstr;
using testing_support::connect_to;
using testing_support::http_get;
using testing_support::http_request;
using testing_support::HttpAnswer;
using testing_support::read_to_end;
using testing_support::send_text;

/// Far beyond what anything here takes, far below a test's time limit.
constexpr seconds kLong{60};

class StatusServerTest : public testing::Test {
 protected:
  void start(ServerLimits limits = {}, const std::string& address = "127.0.0.1:0") {
    std::vector<Page> pages = status_pages(
        [this](const ServerCounters& counters) {
          const std::lock_guard lock(mutex_);
          seen_ = counters;
          return std::string("x_level 1\n");
        },
        [this] {
          return ready_ ? Health{true, "ok"} : Health{false, "starting"};
        });
    pages.push_back({"/large", [](const ServerCounters&) {
                       return Response{.body = std::string(kLargeBytes, 'x')};
                     }});
    auto server =
        StatusServer::start({.address = address, .pages = std::move(pages), .limits = limits});
    ASSERT_TRUE(server) << server.error().message;
    server_ = *std::move(server);
  }
  const std::string& address() const { return server_->address(); }
  /// What the server had counted when it was asked last. Asks again where a short exchange time
  /// cuts the question off.
  ServerCounters counters() {
    int status = 0;
    for (const auto deadline = steady_clock::now() + kLong;
         status != 200 && steady_clock::now() < deadline;)
      status = http_get(address(), "/metrics").status;
    EXPECT_EQ(status, 200);
    const std::lock_guard lock(mutex_);
    return seen_;
  }

  /// More than both ends' socket buffers hold.
  static constexpr size_t kLargeBytes = 64 << 20;
  std::atomic<bool> ready_{true};
  std::mutex mutex_;
  ServerCounters seen_;  ///< guarded by mutex_
  std::unique_ptr<StatusServer> server_;
};

TEST_F(StatusServerTest, ServesMetricsWithTheirContentType) {
  start();
  const HttpAnswer answer = http_get(address(), "/metrics?x=1");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "x_level 1\n");
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(answer.head, HasSubstr("Content-Length: 10"));
  EXPECT_THAT(answer.head, HasSubstr("Connection: close"));
}

TEST_F(StatusServerTest, ReadinessFollowsWhatItIsTold) {
  start();
  EXPECT_EQ(http_get(address(), "/readyz").status, 200);
  ready_ = false;
  const HttpAnswer answer = http_get(address(), "/readyz");
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.body, "starting\n");
  EXPECT_EQ(http_get(address(), "/healthz").body, "ok\n");
}

TEST_F(StatusServerTest, RefusesOtherPathsAndMethods) {
  start();
  EXPECT_EQ(http_get(address(), "/").status, 404);
  EXPECT_EQ(http_get(address(), "/metrics/").status, 404);
  EXPECT_EQ(http_get(address(), "/../metrics").status, 404);
  EXPECT_EQ(http_request(address(), "DELETE", "/nothing").status, 404);
  const HttpAnswer answer = http_request(address(), "POST", "/metrics");
  EXPECT_EQ(answer.status, 405);
  EXPECT_THAT(answer.head, HasSubstr("Allow: GET, HEAD"));
}

TEST_F(StatusServerTest, HeadHasNoBodyButItsLength) {
  start();
  const HttpAnswer answer = http_request(address(), "HEAD", "/metrics");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "");
  EXPECT_THAT(answer.head, HasSubstr("Content-Length: 10"));
}

TEST_F(StatusServerTest, AnswersLargerThanASocketBufferArrive) {
  start();
  EXPECT_EQ(http_get(address(), "/large").body.size(), kLargeBytes);
}

TEST_F(StatusServerTest, GarbageIsABadRequest) {
  start();
  for (const std::string& garbage :
       {std::string("nonsense\r\n\r\n"), std::string("GET / HTTP/9.9\r\n\r\n"),
        std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 15),
        std::string("GET /metrics HTTP/1.1\r\nbad header\r\n\r\n"),
        std::string("GET /metrics HTTP/1.1\r\nContent-Length: minus one\r\n\r\n")}) {
    const UniqueFd fd = connect_to(address());
    ASSERT_TRUE(send_text(fd.get(), garbage));
    EXPECT_THAT(read_to_end(fd.get(), kLong), HasSubstr("HTTP/1.1 400 ")) << garbage;
  }
  EXPECT_EQ(counters().answers[1], 5);
}

TEST_F(StatusServerTest, AHugeHeaderIsRefusedNotRead) {
  start();
  const UniqueFd fd = connect_to(address());
  std::string request = "GET /metrics HTTP/1.1\r\nX: ";
  request.append(1 << 20, 'x');
  send_text(fd.get(), request);  // the server may close before all of it is sent
  const std::string answer = read_to_end(fd.get(), kLong);
  if (!answer.empty()) {
    EXPECT_THAT(answer, HasSubstr("HTTP/1.1 431 "));
  }
  EXPECT_EQ(counters().answers[4], 1);
}

TEST_F(StatusServerTest, ASlowRequestEndsAtItsDeadline) {
  start({.exchange_time = milliseconds(300)});
  const UniqueFd fd = connect_to(address());
  // A byte now and then is no reprieve.
  bool open = true;
  for (const auto deadline = steady_clock::now() + kLong; open && steady_clock::now() < deadline;) {
    open = send_text(fd.get(), "G") && read_to_end(fd.get(), milliseconds(50)).empty();
    char probe = 0;
    open = open && ::recv(fd.get(), &probe, 1, MSG_DONTWAIT) != 0;
  }
  EXPECT_FALSE(open);
  EXPECT_GE(counters().timed_out, 1);
}

TEST_F(StatusServerTest, AReaderThatDoesNotReadIsGivenUp) {
  start({.exchange_time = milliseconds(300)});
  const UniqueFd fd = connect_to(address());
  ASSERT_TRUE(send_text(fd.get(), "GET /large HTTP/1.1\r\nHost: x\r\n\r\n"));
  const auto deadline = steady_clock::now() + kLong;
  while (counters().timed_out == 0 && steady_clock::now() < deadline)
    std::this_thread::sleep_for(milliseconds(20));
  EXPECT_GE(counters().timed_out, 1);
}

TEST_F(StatusServerTest, IdleConnectionsDoNotKeepAScraperOut) {
  // No slot becomes free by itself while anybody waits for one.
  start({.connections_max = 8, .exchange_time = 2 * kLong});
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 200; ++i)
    idle.push_back(connect_to(address()));
  EXPECT_EQ(http_get(address(), "/metrics").status, 200);
  EXPECT_GE(counters().evicted, 200 - 8);
  int open = 0;
  for (const UniqueFd& fd : idle) {
    char byte = 0;
    if (::recv(fd.get(), &byte, 1, MSG_DONTWAIT) != 0) ++open;
  }
  EXPECT_LE(open, 8);
}

/// From another address of this machine than connect_to's.
/// From 127.0.0.(1 + `host`).
UniqueFd connect_from(uint32_t host, const std::string& address) {
  sockaddr_in from{};
  from.sin_family = AF_INET;
  from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + host);
  sockaddr_in to = from;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&from), sizeof from) != 0) return {};
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) return {};
  return fd;
}

TEST_F(StatusServerTest, APeerThatOpensManyKeepsOutNobodyButItself) {
  start({.connections_max = 8, .exchange_time = 2 * kLong});
  const UniqueFd probe = connect_from(1, address());
  ASSERT_TRUE(probe.valid());
  std::vector<UniqueFd> flood;
  for (int i = 0; i < 100; ++i)
    flood.push_back(connect_to(address()));
  // Accepted in order: whoever is answered now was accepted after the flood.
  EXPECT_EQ(http_get(address(), "/healthz").status, 200);
  ASSERT_TRUE(send_text(probe.get(), "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_THAT(read_to_end(probe.get(), kLong), HasSubstr("HTTP/1.1 200 "));
}

TEST_F(StatusServerTest, OfPeersWithAsManyTheOldestConnectionGoes) {
  start({.connections_max = 3, .exchange_time = 2 * kLong});
  std::vector<UniqueFd> peers;  // the newest has the lowest address
  for (const uint32_t host : {4, 3, 2, 1})
    peers.push_back(connect_from(host, address()));
  for (size_t i = peers.size(); i-- > 1;) {  // where the last is answered, all were accepted
    ASSERT_TRUE(send_text(peers[i].get(), "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"));
    EXPECT_THAT(read_to_end(peers[i].get(), kLong), HasSubstr("HTTP/1.1 200 ")) << i;
  }
  EXPECT_EQ(read_to_end(peers[0].get(), kLong), "");
}

TEST_F(StatusServerTest, APageIsMadeOnceForAllWhoAskWithinItsTime) {
  int made = 0;
  const auto count = [&](const ServerCounters&) { return std::to_string(++made); };
  for (const auto shared_for : {milliseconds(0), milliseconds(2 * kLong)}) {
    made = 0;
    auto server = StatusServer::start({.address = "127.0.0.1:0",
                                       .pages = status_pages(
                                           count, [] { return Health{}; }, shared_for)});
    ASSERT_TRUE(server) << server.error().message;
    EXPECT_EQ(http_get((*server)->address(), "/metrics").body, "1");
    const std::string second = http_get((*server)->address(), "/metrics").body;
    EXPECT_EQ(second, shared_for > milliseconds(0) ? "1" : "2");
  }
}

TEST_F(StatusServerTest, AFloodOfConnectionsIsSurvived) {
  start({.connections_max = 16});
  std::vector<std::jthread> clients;
  std::atomic<int> answered{0};
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      for (int n = 0; n < 50; ++n) {
        const UniqueFd fd = connect_to(address());
        if (!fd.valid()) continue;
        if (i % 2 == 0) {
          send_text(fd.get(), "GET /metrics HT");  // and away
        } else {
          send_text(fd.get(), "GET /healthz HTTP/1.0\r\n\r\n");
          if (read_to_end(fd.get(), kLong).find(" 200 ") != std::string::npos) ++answered;
        }
      }
    });
  }
  clients.clear();
  EXPECT_GT(answered, 0);
  EXPECT_EQ(http_get(address(), "/healthz").status, 200);
}

TEST_F(StatusServerTest, ListensOnBothFamilies) {
  start({}, "localhost:0");
  const std::vector<std::string> all = server_->addresses();
  for (const std::string& one : all)
    EXPECT_EQ(http_get(one, "/healthz").status, 200) << one;
  if (connect_to("[::1]:1").valid() || all.size() == 2) {
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[0].substr(all[0].rfind(':')), all[1].substr(all[1].rfind(':')));
  }
}

TEST_F(StatusServerTest, AllAddressesMeansBothFamiliesToo) {
  start({}, ":0");
  const std::string port = address().substr(address().rfind(':'));
  EXPECT_EQ(http_get("127.0.0.1" + port, "/healthz").status, 200);
}

/// Descriptors that a program executed now would have.
std::vector<int> inheritable() {
  constexpr int kHighest = 1024;
  std::vector<int> found;
  for (int fd = 0; fd < kHighest; ++fd) {
    const int flags = ::fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) found.push_back(fd);
  }
  return found;
}

TEST_F(StatusServerTest, DescriptorsAreNotInherited) {
  const std::vector<int> before = inheritable();
  start();
  const UniqueFd client = connect_to(address());
  ASSERT_TRUE(send_text(client.get(), "GET"));
  ASSERT_EQ(http_get(address(), "/healthz").status, 200);  // the one before has been accepted
  EXPECT_EQ(inheritable(), before);
}

TEST_F(StatusServerTest, EndsWithConnectionsOpen) {
  start();
  const UniqueFd fd = connect_to(address());
  send_text(fd.get(), "GET /met");
  server_.reset();
  EXPECT_EQ(read_to_end(fd.get(), kLong), "");
}

TEST(ListenAddressTest, NamesWhatIsWrong) {
  for (const std::string bad : {"", "9100", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536",
                                "127.0.0.1:-1", "host.example:9100", "[::1:9100", "1.2.3:9100"}) {
    const auto server = StatusServer::start({.address = bad});
    ASSERT_FALSE(server) << bad;
    EXPECT_EQ(server.error().code, ErrorCode::kInvalidConfig) << bad;
    EXPECT_THAT(server.error().message, HasSubstr("found \"" + bad + "\""));
  }
}

TEST(ListenAddressTest, APortThatIsTakenIsSaid) {
  const auto first = StatusServer::start({.address = "127.0.0.1:0"});
  ASSERT_TRUE(first);
  const auto second = StatusServer::start({.address = (*first)->address()});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(second.error().message, HasSubstr((*first)->address()));
  EXPECT_THAT(second.error().message, HasSubstr("in use"));
}

}  // namespace
}  // namespace trainyard::http
