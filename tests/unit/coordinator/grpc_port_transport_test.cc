#include "control/coordinator/grpc_port_transport.h"

#include <chrono>
#include <fstream>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <iterator>
#include <poll.h>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/proto/coordination.pb.h"
#include "control/coordinator/grpc_channel.h"
#include "control/coordinator/grpc_log.h"
#include "tests/support/tcp_forwarder.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_authority.h"

namespace trainyard::control {
namespace {

using coordination::FromAgent;
using testing::HasSubstr;
using testing_support::Identity;
using testing_support::TestAuthority;

/// For what comes in any case.
constexpr std::chrono::seconds kPatience{60};

class GrpcPortTransportTest : public testing::Test {
 protected:
  void SetUp() override {
    write("ca.crt", authority_.pem());
    write("token", "the token\n");
    show(authority_);
  }

  void show(const TestAuthority& authority, const std::string& name = "IP:127.0.0.1") {
    const Identity identity = authority.issue({.names = {name}});
    const Status shown = transport_.show({identity.certificate, identity.key});
    ASSERT_TRUE(shown) << shown.error().message;
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.path() / name, std::ios::trunc) << text;
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(transport_.port()); }
  ChannelSecurity security() const { return {folder_.path() / "ca.crt", folder_.path() / "token"}; }

  static ChannelEvent next(ControlChannel& channel) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < deadline) {
      pollfd fd{channel.wake_fd(), POLLIN, 0};
      ::poll(&fd, 1, 1000);
      std::vector<ChannelEvent> events = channel.take();
      if (!events.empty()) return std::move(events.front());
    }
    ADD_FAILURE() << "nothing happened";
    return {};
  }
  ServerEvent next_of_server() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < deadline) {
      std::vector<ServerEvent> events = transport_.take(std::chrono::seconds(1));
      if (!events.empty()) return std::move(events.front());
    }
    ADD_FAILURE() << "nothing happened";
    return {};
  }

  const testing_support::TemporaryDirectory folder_;
  const TestAuthority authority_;
  GrpcPortTransport transport_{{.address = "127.0.0.1:0"}};
};

TEST(GrpcLogTest, StrangersWordsMakeNoLineOfTheirOwnAndNoFlood) {
  grpc_init();  // which says from what severity on it speaks
  const testing_support::TemporaryDirectory folder;
  const auto path = folder.path() / "log";
  const std::string forged = "te: x\n{\"level\":\"error\",\"message\":\"forged\"}\x1b[31m";
  {
    const auto logger = Logger::to_file(path, LogLevel::kInfo, LogFormat::kJson);
    ASSERT_TRUE(logger);
    const GrpcLog log(**logger);
    const std::string text = forged + std::string(8192, 'x');
    for (int i = 0; i < 10'000; ++i)
      gpr_log(GPR_ERROR, "%s", text.c_str());
  }
  gpr_log(GPR_ERROR, "after its end nothing is written");
  grpc_shutdown();
  std::ifstream file(path);
  const std::string written{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(written, HasSubstr("te: x"));
  EXPECT_LT(written.size(), 1'000'000u);
  EXPECT_THAT(written, testing::Not(HasSubstr("\n{\"level\":\"error\"")));
  EXPECT_THAT(written, testing::Not(HasSubstr("\x1b")));
  EXPECT_THAT(written, testing::Not(HasSubstr("after its end")));
}

TEST_F(GrpcPortTransportTest, CarriesMessagesAndTellsWhatTheAgentShows) {
  GrpcChannel channel(address(), security());
  channel.open();
  ASSERT_EQ(next(channel).kind, ChannelEvent::Kind::kOpened);
  const ServerEvent opened = next_of_server();
  EXPECT_EQ(opened.kind, ServerEvent::Kind::kOpened);
  EXPECT_EQ(opened.credential, "the token");
  EXPECT_EQ(opened.peer, "127.0.0.1");
  FromAgent message;
  message.mutable_fence()->set_pod_uid("uid");
  ASSERT_TRUE(channel.send(message));
  EXPECT_EQ(next_of_server().message->fence().pod_uid(), "uid");
}

/// As of an agent that waits, for hours perhaps, until the pods of its gang are placed. The machine
/// of the coordinator goes without a word meanwhile.
TEST_F(GrpcPortTransportTest, AStreamOnWhichNothingIsSaidEndsWithThePathToTheCoordinator) {
  testing_support::TcpForwarder path(static_cast<uint16_t>(transport_.port()));
  ChannelSecurity asking = security();
  asking.keepalive = std::chrono::seconds(6);
  GrpcChannel channel("127.0.0.1:" + std::to_string(path.port()), asking);
  bool is_open = false;
  // An answer has 3 s, in which a busy machine may not send it.
  for (int tries = 0; tries < 3 && !is_open; ++tries) {
    channel.open();
    ASSERT_EQ(next(channel).kind, ChannelEvent::Kind::kOpened);
    is_open = true;
    const auto idle_until = std::chrono::steady_clock::now() + std::chrono::seconds(15);
    while (is_open && std::chrono::steady_clock::now() < idle_until) {
      pollfd fd{channel.wake_fd(), POLLIN, 0};
      ::poll(&fd, 1, 500);
      is_open = channel.take().empty();
    }
  }
  ASSERT_TRUE(is_open) << "two answers have come";
  path.cut();
  EXPECT_EQ(next(channel).kind, ChannelEvent::Kind::kClosed) << "the third does not";
}

TEST_F(GrpcPortTransportTest, WhatWaitsToBeTakenHasABoundInBytes) {
  constexpr int64_t kBytes = 200 << 10;
  constexpr int kMessages = 40;
  GrpcChannel channel(address(), security());
  channel.open();
  ASSERT_EQ(next(channel).kind, ChannelEvent::Kind::kOpened);
  const ServerEvent opened = next_of_server();
  ASSERT_EQ(opened.kind, ServerEvent::Kind::kOpened);
  transport_.admit(opened.connection);
  FromAgent message;
  message.mutable_peer_lost()->set_message(std::string(kBytes, 'x'));
  for (int i = 0; i < kMessages; ++i)
    ASSERT_TRUE(channel.send(message));
  int taken = 0;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (taken < kMessages && std::chrono::steady_clock::now() < deadline) {
    // So that more would come if it were let in.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto events = transport_.take(std::chrono::seconds(1));
    EXPECT_LE(static_cast<int64_t>(events.size()) * kBytes, kMaxUntakenBytes + kBytes);
    taken += static_cast<int>(events.size());
  }
  EXPECT_EQ(taken, kMessages) << "reading goes on after what was taken";
}

TEST_F(GrpcPortTransportTest, NobodyTalksToAStranger) {
  const TestAuthority other;
  write("ca.crt", other.pem());
  GrpcChannel channel(address(), security());
  channel.open();
  const ChannelEvent end = next(channel);
  EXPECT_EQ(end.kind, ChannelEvent::Kind::kClosed);
  EXPECT_FALSE(end.reason.empty());
  EXPECT_TRUE(transport_.take(std::chrono::milliseconds(100)).empty());
}

TEST_F(GrpcPortTransportTest, ACertificateForAnotherHostIsAStrangers) {
  show(authority_, "DNS:elsewhere.example");
  GrpcChannel channel(address(), security());
  channel.open();
  EXPECT_EQ(next(channel).kind, ChannelEvent::Kind::kClosed);
}

TEST_F(GrpcPortTransportTest, WithoutTlsNothingIsSaid) {
  GrpcChannel channel(address());
  channel.open();
  EXPECT_EQ(next(channel).kind, ChannelEvent::Kind::kClosed);
}

TEST_F(GrpcPortTransportTest, AFileThatIsMissingIsNamed) {
  ChannelSecurity none = security();
  none.token = folder_.path() / "nowhere";
  GrpcChannel channel(address(), none);
  channel.open();
  const ChannelEvent end = next(channel);
  EXPECT_EQ(end.kind, ChannelEvent::Kind::kClosed);
  EXPECT_THAT(end.reason, HasSubstr("nowhere"));
}

TEST_F(GrpcPortTransportTest, ANewCertificateEndsStreamsAndServesTheNext) {
  GrpcChannel channel(address(), security());
  channel.open();
  ASSERT_EQ(next(channel).kind, ChannelEvent::Kind::kOpened);
  const int port = transport_.port();
  const TestAuthority successor;
  show(successor);
  EXPECT_EQ(transport_.port(), port);
  EXPECT_EQ(next(channel).kind, ChannelEvent::Kind::kClosed);
  write("ca.crt", successor.pem());
  write("token", "another token");
  channel.open();
  EXPECT_EQ(next(channel).kind, ChannelEvent::Kind::kOpened);
}

TEST_F(GrpcPortTransportTest, WhatIsNoCertificateIsRefused) {
  GrpcPortTransport transport({.address = "127.0.0.1:0"});
  EXPECT_FALSE(transport.show({"nonsense", "nonsense"}));
  EXPECT_EQ(transport.port(), 0);
}

}  // namespace
}  // namespace trainyard::control
