// What ranks say of each other when one fails while they meet: the one that failed is named, and
// nobody takes its fault for one of their own.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/worker/comm/world.h"
#include "worker/comm/host/control_frame.h"
#include "worker/comm/host/dialer.h"
#include "worker/comm/host/shared_memory_setup.h"
#include "worker/comm/host/socket.h"

namespace trainyard::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::make_world;
using ::testing::Not;

using Clock = std::chrono::steady_clock;

/// For what takes milliseconds; deadlines that must not count are twice as long.
constexpr seconds kPatience{60};

std::vector<std::byte> abort_frame(ErrorCode code, const std::string& why) {
  ControlFrame frame;
  frame.kind = ControlKind::kAbort;
  frame.failure = Failure(Error{code, why});
  return encode(frame);
}

std::vector<std::byte> offer_of(const std::string& name) {
  ControlFrame frame;
  frame.kind = ControlKind::kSharedMemory;
  frame.address = name;
  return encode(frame);
}

/// Both ends of a control connection.
struct Wire {
  Wire() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    real.reset(ends[0]);
    tests.reset(ends[1]);
  }
  UniqueFd real;
  UniqueFd tests;
};

/// One member of three that shares memory, the others played by the test.
class Sharing {
 public:
  Sharing(int member, milliseconds patience) {
    identity_.global_ranks = {0, 1, 2};
    identity_.member = member;
    std::vector<UniqueFd> control(3);
    for (int other = 0; other < 3; ++other) {
      if (other != member) control[static_cast<size_t>(other)] = std::move(wire(other).real);
    }
    thread_ = std::jthread([this, control = std::move(control), patience] {
      const auto segment = share_memory(identity_, control, Clock::now() + patience);
      EXPECT_FALSE(segment.has_value());
      if (!segment) error_ = segment.error();
    });
  }
  Wire& wire(int other) { return wires_[static_cast<size_t>(other)]; }
  void say(int other, const std::vector<std::byte>& words) {
    EXPECT_TRUE(write_exactly(wire(other).tests.get(), words, Clock::now() + kPatience));
  }
  const Error& error() {
    if (thread_.joinable()) thread_.join();
    return error_;
  }

 private:
  GroupIdentity identity_{.job_uid = "test"};
  std::array<Wire, 3> wires_;
  Error error_;
  std::jthread thread_;
};

/// A socket like the one where the leader hands out memory.
UniqueFd listen_at(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  EXPECT_EQ(::listen(fd.get(), 8), 0);
  return fd;
}

void expect_rank_2_is_named(const Error& error) {
  EXPECT_EQ(error.code, ErrorCode::kPeerLost) << error.message;
  EXPECT_THAT(error.message,
              AllOf(HasSubstr("rank 0 gave up"), HasSubstr("rank 2: the connection was closed"),
                    Not(HasSubstr("instead of handing out"))));
}

TEST(MeetingTest, ALeaderThatGoesForAThirdRankIsNotTheOneLost) {
  const std::string name = "trainyard-meeting-test-" + std::to_string(::getpid());
  Sharing member(1, seconds(60));
  UniqueFd listener = listen_at(name);
  member.say(0, offer_of(name));
  pollfd waits{listener.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&waits, 1, 60'000), 1);
  listener.reset();  // as the leader does before it says why
  member.say(0, abort_frame(ErrorCode::kPeerLost, "rank 2: the connection was closed"));
  expect_rank_2_is_named(member.error());
}

TEST(MeetingTest, ALeaderThatHasGoneForAThirdRankIsNotTheOneLost) {
  Sharing member(1, seconds(60));
  member.say(0, offer_of("trainyard-meeting-test-where-nobody-listens"));
  member.say(0, abort_frame(ErrorCode::kPeerLost, "rank 2: the connection was closed"));
  expect_rank_2_is_named(member.error());
}

TEST(MeetingTest, ALeaderThatIsGoneWithoutAWordIsLost) {
  Sharing member(1, seconds(60));
  member.say(0, offer_of("trainyard-meeting-test-where-nobody-listens"));
  member.wire(0).tests.reset();
  EXPECT_EQ(member.error().code, ErrorCode::kPeerLost);
  EXPECT_THAT(member.error().message, HasSubstr("rank 0: connect to the rank that shares"));
}

TEST(MeetingTest, WhatAMemberGaveUpForIsNoFaultOfTheLeader) {
  Sharing leader(0, seconds(60));
  leader.say(2, abort_frame(ErrorCode::kIo, "map the memory: Cannot allocate memory"));
  EXPECT_EQ(leader.error().code, ErrorCode::kPeerLost);
  EXPECT_THAT(leader.error().message, HasSubstr("rank 2 gave up: map the memory: Cannot"));
}

TEST(MeetingTest, AMemberThatHasGoneForAThirdRankIsNotTheOneLost) {
  GroupIdentity identity{.job_uid = "test", .global_ranks = {0, 1}};
  std::vector<UniqueFd> control(2);
  Wire wire;
  control[1] = std::move(wire.real);
  EXPECT_TRUE(write_exactly(wire.tests.get(),
                            abort_frame(ErrorCode::kPeerLost, "rank 2 is lost: it closed"),
                            Clock::now() + kPatience));
  wire.tests.reset();
  const auto segment = share_memory(identity, control, Clock::now() + seconds(60));
  ASSERT_FALSE(segment.has_value());
  EXPECT_EQ(segment.error().code, ErrorCode::kPeerLost);
  EXPECT_THAT(segment.error().message, HasSubstr("rank 1 gave up: rank 2 is lost: it closed"));
}

TEST(MeetingTest, AllWhoHaveNotMappedAreNamed) {
  Sharing leader(0, milliseconds(50));
  EXPECT_EQ(leader.error().code, ErrorCode::kPeerLost);
  EXPECT_THAT(leader.error().message, HasSubstr("ranks 1 and 2 did not map the memory in time"));
}

/// The real rank 2 of three waits for rank 1, which never comes; the test is rank 0, which has met
/// it and goes on to say `words`, then closes or not.
Error of_rank_2(const std::vector<std::byte>& words, bool closes) {
  auto world = make_world(TransportKind::kShm, 3, 2 * kPatience);
  Error error;
  std::jthread real([&] {
    const auto c = world.connect(2);
    EXPECT_FALSE(c.has_value());
    if (!c) error = c.error();
  });
  std::vector<Dial> dials(1);
  dials[0].rank = 2;
  dials[0].address = *parse_address(world.options[0].endpoints[2].address);
  Hello& hello = dials[0].hello;
  hello.version = kKeyedHandshake;
  hello.job = xxh3_128(std::as_bytes(std::span(world.options[0].job_uid)));
  hello.generation = world.options[0].generation;
  hello.target = 2;
  hello.world_size = 3;
  std::vector<int> lost;
  EXPECT_TRUE(dial_all(dials, world.options[0].key, Clock::now() + kPatience, lost));
  EXPECT_TRUE(write_exactly(dials[0].fd.get(), words, Clock::now() + kPatience));
  if (closes) dials.clear();
  real.join();
  return error;
}

TEST(MeetingTest, AReasonBehindOtherWordsIsHeardAtOnce) {
  auto words = offer_of("where-it-is");
  const auto why = abort_frame(ErrorCode::kIo, "handing out shared memory: rank 1: it is gone");
  words.insert(words.end(), why.begin(), why.end());
  const auto begin = Clock::now();
  const Error error = of_rank_2(words, false);
  EXPECT_LT(Clock::now() - begin, kPatience);
  EXPECT_EQ(error.code, ErrorCode::kPeerLost);
  EXPECT_THAT(error.message, HasSubstr("rank 0 gave up: handing out shared memory: rank 1"));
}

TEST(MeetingTest, AnEndBehindOtherWordsIsSeenAtOnce) {
  const auto begin = Clock::now();
  const Error error = of_rank_2(offer_of("where-it-was"), true);
  EXPECT_LT(Clock::now() - begin, kPatience);
  EXPECT_EQ(error.code, ErrorCode::kPeerLost);
  EXPECT_THAT(error.message, HasSubstr("rank 0 is lost: it closed its connection"));
}

TEST(MeetingTest, ARankThatComesTooLateMeetsNobody) {
  auto world = make_world(TransportKind::kLocal, 3, milliseconds(50));
  std::array<Error, 2> waited;
  testing::for_each_rank(2, [&](int rank) {
    const auto c = world.connect(rank);
    EXPECT_FALSE(c.has_value());
    if (!c) waited[static_cast<size_t>(rank)] = c.error();
  });
  for (const Error& error : waited) {
    EXPECT_EQ(error.code, ErrorCode::kPeerLost);
    EXPECT_THAT(error.message, HasSubstr("rank 2 did not come within 50 ms"));
  }
  // It does not wait for its own deadline, and says why.
  const auto late = world.connect(2);
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, ErrorCode::kPeerLost);
  EXPECT_THAT(late.error().message, HasSubstr("gave up: meeting the peers: rank 2 did not come"));
}

}  // namespace
}  // namespace trainyard::comm
