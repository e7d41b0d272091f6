#include "control/coordinator/grpc_transport.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <poll.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "common/proto/coordination.grpc.pb.h"
#include "common/proto/coordination.pb.h"
#include "control/coordinator/grpc_channel.h"

namespace trainyard::control {
namespace {

using coordination::FromAgent;
using coordination::ToAgent;
using std::chrono::seconds;

constexpr seconds kDeadline{60};

class GrpcTransportTest : public ::testing::Test {
 protected:
  GrpcTransportTest() {
    std::string pattern = ::testing::TempDir() + "/grpc_test_XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    listen();
  }
  ~GrpcTransportTest() override {
    transport_.reset();
    std::filesystem::remove_all(directory_);
  }

  void listen() {
    auto transport = GrpcTransport::listen_on_unix_socket(directory_ / "control.sock");
    ASSERT_TRUE(transport) << transport.error().message;
    transport_ = *std::move(transport);
  }

  /// Events of the coordinator's end until there are `count`.
  std::vector<ServerEvent> server_events(size_t count) {
    std::vector<ServerEvent> all;
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (all.size() < count && std::chrono::steady_clock::now() < deadline) {
      for (ServerEvent& event : transport_->take(seconds(1)))
        all.push_back(std::move(event));
    }
    EXPECT_EQ(all.size(), count);
    return all;
  }

  static std::vector<ChannelEvent> channel_events(ControlChannel& channel, size_t count) {
    std::vector<ChannelEvent> all;
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (all.size() < count && std::chrono::steady_clock::now() < deadline) {
      pollfd fd{channel.wake_fd(), POLLIN, 0};
      ::poll(&fd, 1, 1000);
      for (ChannelEvent& event : channel.take())
        all.push_back(std::move(event));
    }
    EXPECT_EQ(all.size(), count);
    return all;
  }

  static FromAgent numbered(int64_t number) {
    FromAgent message;
    message.mutable_fence()->set_term(number);
    return message;
  }

  std::filesystem::path directory_;
  std::unique_ptr<GrpcTransport> transport_;
};

TEST_F(GrpcTransportTest, CarriesMessagesBothWaysInOrder) {
  GrpcChannel channel(transport_->address());
  channel.open();
  ASSERT_EQ(channel_events(channel, 1).at(0).kind, ChannelEvent::Kind::kOpened);
  constexpr int64_t kMessages = 500;
  for (int64_t i = 0; i < kMessages; ++i)
    ASSERT_TRUE(channel.send(numbered(i)));
  const auto events = server_events(kMessages + 1);
  ASSERT_EQ(events.size(), kMessages + 1u);
  EXPECT_EQ(events[0].kind, ServerEvent::Kind::kOpened);
  for (int64_t i = 0; i < kMessages; ++i) {
    EXPECT_EQ(events[static_cast<size_t>(i) + 1].message->fence().term(), i);
    ToAgent answer;
    answer.mutable_fence()->set_term(i);
    ASSERT_TRUE(transport_->send(events[0].connection, answer));
  }
  const auto answers = channel_events(channel, kMessages);
  ASSERT_EQ(answers.size(), static_cast<size_t>(kMessages));
  for (int64_t i = 0; i < kMessages; ++i)
    EXPECT_EQ(answers[static_cast<size_t>(i)].message->fence().term(), i);
}

/// Agents get one message, and what they share is held once until the last has received it.
TEST_F(GrpcTransportTest, WhatManyAgentsAreToldIsHeldOnce) {
  std::vector<std::unique_ptr<GrpcChannel>> channels;
  for (int i = 0; i < 3; ++i) {
    channels.push_back(std::make_unique<GrpcChannel>(transport_->address()));
    channels.back()->open();
    channel_events(*channels.back(), 1);
  }
  std::vector<ConnectionId> connections;
  for (const ServerEvent& event : server_events(3))
    connections.push_back(event.connection);
  ToAgent shared;
  for (int rank = 0; rank < 100; ++rank)
    shared.mutable_rank_table()->add_ranks()->set_rank(rank);
  auto tail = std::make_shared<const std::string>(shared.SerializeAsString());
  const std::weak_ptr<const std::string> kept = tail;
  for (size_t i = 0; i < connections.size(); ++i) {
    ToAgent own;
    own.mutable_fence()->set_term(static_cast<int64_t>(i) + 1);
    ASSERT_TRUE(transport_->send_with_tail(connections[i], own, tail));
  }
  tail.reset();
  std::vector<int64_t> terms;
  for (auto& channel : channels) {
    const auto told = channel_events(*channel, 1);
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0].message->rank_table().ranks_size(), 100);
    EXPECT_EQ(told[0].message->rank_table().ranks(99).rank(), 99);
    terms.push_back(told[0].message->fence().term());
  }
  EXPECT_THAT(terms, ::testing::UnorderedElementsAre(1, 2, 3));
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (!kept.expired() && std::chrono::steady_clock::now() < deadline)
    transport_->take(std::chrono::milliseconds(10));
  EXPECT_TRUE(kept.expired());
}

TEST_F(GrpcTransportTest, FinishDeliversWhatWasSent) {
  GrpcChannel channel(transport_->address());
  channel.open();
  ASSERT_EQ(channel_events(channel, 1).size(), 1u);
  for (int64_t i = 0; i < 100; ++i)
    ASSERT_TRUE(channel.send(numbered(i)));
  channel.finish(kDeadline);
  EXPECT_EQ(channel.unsent(), 0);
  const auto events = server_events(102);
  ASSERT_EQ(events.size(), 102u);
  EXPECT_EQ(events.back().kind, ServerEvent::Kind::kClosed);
  EXPECT_FALSE(channel.send(numbered(0)));
}

TEST_F(GrpcTransportTest, AnAgentThatDiesIsAClosedConnection) {
  {
    GrpcChannel channel(transport_->address());
    channel.open();
    ASSERT_EQ(channel_events(channel, 1).size(), 1u);
  }
  const auto events = server_events(2);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].kind, ServerEvent::Kind::kClosed);
  EXPECT_FALSE(transport_->send(events[0].connection, ToAgent{}));
}

TEST_F(GrpcTransportTest, NobodyListeningIsAClosedEventAndNotAWait) {
  GrpcChannel channel("unix:" + (directory_ / "nobody.sock").string());
  channel.open();
  const auto events = channel_events(channel, 1);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, ChannelEvent::Kind::kClosed);
  EXPECT_FALSE(events[0].reason.empty());
}

TEST_F(GrpcTransportTest, AChannelFindsTheSuccessorAtTheSameAddress) {
  GrpcChannel channel(transport_->address());
  channel.open();
  ASSERT_EQ(channel_events(channel, 1).size(), 1u);
  transport_.reset();
  ASSERT_EQ(channel_events(channel, 1).at(0).kind, ChannelEvent::Kind::kClosed);
  listen();
  channel.open();
  ASSERT_EQ(channel_events(channel, 1).at(0).kind, ChannelEvent::Kind::kOpened);
  ASSERT_TRUE(channel.send(numbered(1)));
  EXPECT_EQ(server_events(2).size(), 2u);
}

TEST_F(GrpcTransportTest, ClosingTellsTheAgentAfterWhatWasSent) {
  GrpcChannel channel(transport_->address());
  channel.open();
  const auto opened = server_events(1);
  ASSERT_EQ(opened.size(), 1u);
  ASSERT_TRUE(transport_->send(opened[0].connection, ToAgent{}));
  transport_->close(opened[0].connection);
  const auto events = channel_events(channel, 3);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].kind, ChannelEvent::Kind::kMessage);
  EXPECT_EQ(events[2].kind, ChannelEvent::Kind::kClosed);
}

TEST_F(GrpcTransportTest, TheOpeningIsToldBeforeTheFirstMessage) {
  constexpr int kStreams = 50;  // each tells both at almost the same time, from two threads of gRPC
  for (int i = 0; i < kStreams; ++i) {
    GrpcChannel channel(transport_->address());
    channel.open();
    const auto opened = server_events(1);
    ASSERT_EQ(opened.size(), 1u);
    ASSERT_TRUE(transport_->send(opened[0].connection, ToAgent{}));
    const auto events = channel_events(channel, 2);
    ASSERT_EQ(events.size(), 2u);
    ASSERT_EQ(events[0].kind, ChannelEvent::Kind::kOpened) << "stream " << i;
    ASSERT_EQ(events[1].kind, ChannelEvent::Kind::kMessage) << "stream " << i;
    transport_->close(opened[0].connection);
    ASSERT_EQ(server_events(1).size(), 1u);
  }
}

TEST_F(GrpcTransportTest, WhoDoesNotReadIsNeitherHeardNorKeptOnceItIsClosed) {
  const auto channel =
      grpc::CreateChannel(transport_->address(), grpc::InsecureChannelCredentials());
  const auto stub = coordination::Coordination::NewStub(channel);
  grpc::ClientContext context;
  const auto stream = stub->Connect(&context);
  ASSERT_TRUE(stream->Write(numbered(1)));
  const auto opened = server_events(2);
  ASSERT_EQ(opened.size(), 2u);
  ToAgent large;
  large.mutable_stop_ranks()->set_reason(std::string(3 << 20, 'x'));
  for (int i = 0; i < 10; ++i)
    ASSERT_TRUE(transport_->send(opened[0].connection, large));
  transport_->close(opened[0].connection);
  for (int64_t i = 2; i < 100; ++i)
    stream->Write(numbered(i));
  std::vector<ServerEvent> events;
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while ((events.empty() || events.back().kind != ServerEvent::Kind::kClosed) &&
         std::chrono::steady_clock::now() < deadline) {
    for (ServerEvent& event : transport_->take(std::chrono::milliseconds(100)))
      events.push_back(std::move(event));
  }
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, ServerEvent::Kind::kClosed);
  bool open = true;
  while (open && std::chrono::steady_clock::now() < deadline)
    open = stream->Write(numbered(100));
  EXPECT_FALSE(open) << "the end takes a moment to reach the other side";
}

TEST_F(GrpcTransportTest, ReachesASocketWhosePathTheKernelWouldCut) {
  const auto folder = directory_ / std::string(120, 'x') / std::string(120, 'y');
  std::filesystem::create_directories(folder);
  const auto transport = GrpcTransport::listen_on_unix_socket(folder / "control.sock");
  ASSERT_TRUE(transport) << transport.error().message;
  EXPECT_EQ((*transport)->address(), "unix:" + (folder / "control.sock").string());
  GrpcChannel channel((*transport)->address());
  channel.open();
  const auto events = channel_events(channel, 1);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, ChannelEvent::Kind::kOpened) << events[0].reason;
}

TEST_F(GrpcTransportTest, MakesARemovedSocketAgainAndKeepsItsStreams) {
  EXPECT_TRUE(transport_->is_reachable());
  GrpcChannel before(transport_->address());
  before.open();
  const auto first = server_events(1);
  ASSERT_EQ(first.size(), 1u);
  ASSERT_EQ(channel_events(before, 1).size(), 1u);
  std::filesystem::remove_all(directory_);
  EXPECT_FALSE(transport_->is_reachable());
  EXPECT_FALSE(transport_->listen_again()) << "without its folder";
  std::filesystem::create_directory(directory_);
  ASSERT_TRUE(transport_->listen_again());
  EXPECT_TRUE(transport_->is_reachable());

  GrpcChannel after(transport_->address());
  after.open();
  const auto second = server_events(1);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_NE(second[0].connection, first[0].connection);
  for (const auto& [connection, channel] :
       {std::pair(first[0].connection, &before), std::pair(second[0].connection, &after)}) {
    ASSERT_TRUE(transport_->send(connection, ToAgent{}));
    const auto events = channel_events(*channel, channel == &before ? 1 : 2);
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(events.back().kind, ChannelEvent::Kind::kMessage);
  }
}

TEST_F(GrpcTransportTest, RefusesASocketNameThatNothingCanHold) {
  const auto transport =
      GrpcTransport::listen_on_unix_socket((directory_ / std::string(108, 'x')).string());
  ASSERT_FALSE(transport);
  EXPECT_EQ(transport.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(transport.error().message, ::testing::HasSubstr("at most 107"));
}

TEST_F(GrpcTransportTest, InterruptEndsAWait) {
  transport_->interrupt();
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_TRUE(transport_->take(2 * kDeadline).empty());
  EXPECT_LT(std::chrono::steady_clock::now() - begun, kDeadline);
}

TEST_F(GrpcTransportTest, LeavesNoSocketBehind) {
  EXPECT_TRUE(std::filesystem::exists(directory_ / "control.sock"));
  transport_.reset();
  EXPECT_FALSE(std::filesystem::exists(directory_ / "control.sock"));
}

}  // namespace
}  // namespace trainyard::control
