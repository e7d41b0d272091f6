#include "worker/rank/agent_link.h"

#include <array>
#include <chrono>
#include <csignal>
#include <memory>
#include <pthread.h>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace trainyard::engine {
namespace {

using std::chrono::seconds;

/// Far beyond what a wake-up takes, and below what the wait would last without one.
constexpr seconds kPrompt{60};

class AgentLinkTest : public ::testing::Test {
 protected:
  AgentLinkTest() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  }

  /// A link, and the agent's end of its socket.
  std::unique_ptr<AgentLink> open(UniqueFd& agent) {
    std::array<int, 2> ends{-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    agent = UniqueFd(ends[1]);
    auto link = AgentLink::open(ends[0]);
    EXPECT_TRUE(link) << link.error().message;
    return *std::move(link);
  }
  static void expect_stopped(AgentLink& link) {
    const auto begin = std::chrono::steady_clock::now();
    const auto start = link.wait_start(2 * kPrompt);
    ASSERT_FALSE(start);
    EXPECT_EQ(start.error().code, ErrorCode::kAborted) << start.error().message;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kPrompt);
    EXPECT_TRUE(link.stop_requested());
  }
};

TEST_F(AgentLinkTest, AStopEndsTheWaitForTheStart) {
  // Again and again, as the stop may come at any point of the wait's beginning.
  for (int i = 0; i < 20; ++i) {
    UniqueFd agent;
    const auto link = open(agent);
    const std::string line = contract::encode(contract::Stop{}) + "\n";
    ASSERT_EQ(::write(agent.get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
    expect_stopped(*link);
  }
}

TEST_F(AgentLinkTest, SigtermEndsTheWaitForTheStart) {
  UniqueFd agent;
  const auto link = open(agent);
  ASSERT_EQ(::kill(::getpid(), SIGTERM), 0);
  expect_stopped(*link);
}

/// What the agent reads until the link is closed.
std::string told_to(const UniqueFd& agent) {
  std::string told;
  char byte = 0;
  while (::read(agent.get(), &byte, 1) == 1)
    told.push_back(byte);
  return told;
}

TEST_F(AgentLinkTest, TellsOfASigtermThatTheAgentDidNotSend) {
  UniqueFd agent;
  auto link = open(agent);
  ASSERT_EQ(::kill(::getpid(), SIGTERM), 0);
  expect_stopped(*link);
  link.reset();
  EXPECT_EQ(told_to(agent), contract::encode(contract::AskedToEnd{}));
}

TEST_F(AgentLinkTest, TheAgentKnowsOfItsOwn) {
  UniqueFd agent;
  std::array<int, 2> ends{-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  agent = UniqueFd(ends[1]);
  const pid_t rank = ::fork();
  if (rank == 0) {
    auto link = AgentLink::open(ends[0]);
    (void)(*link)->send("ready");
    (void)(*link)->wait_start(2 * kPrompt);
    link->reset();
    ::_exit(0);
  }
  ::close(ends[0]);
  std::string told(6, ' ');
  ASSERT_EQ(::recv(agent.get(), told.data(), told.size(), MSG_WAITALL), 6);
  ASSERT_EQ(::kill(rank, SIGTERM), 0);
  EXPECT_EQ(told_to(agent), "");
  EXPECT_EQ(::waitpid(rank, nullptr, 0), rank);
}

TEST_F(AgentLinkTest, AnAgentThatIsGoneEndsTheWaitForTheStart) {
  UniqueFd agent;
  const auto link = open(agent);
  agent.reset();
  expect_stopped(*link);
}

}  // namespace
}  // namespace trainyard::engine
