// What a rank does with bytes on its sockets that no rank of its job would send.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <poll.h>
#include <random>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/worker/comm/world.h"
#include "tests/support/extent.h"
#include "worker/comm/host/control_frame.h"
#include "worker/comm/host/dialer.h"
#include "worker/comm/host/handshake.h"
#include "worker/comm/host/hub.h"
#include "worker/comm/host/message.h"
#include "worker/comm/host/shared_memory_setup.h"
#include "worker/comm/host/socket.h"

namespace trainyard::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using testing::bytes_of;
using ::testing::ElementsAre;
using testing::for_each_rank;
using ::testing::HasSubstr;
using testing::make_world;
using testing::message_of;

using Clock = std::chrono::steady_clock;

UniqueFd connect_raw(const std::string& address) {
  const auto parsed = parse_address(address);
  EXPECT_TRUE(parsed.has_value());
  UniqueFd fd(::socket(parsed->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(fd.get(), parsed->raw(), parsed->length), 0);
  return fd;
}

TEST(StrangersTest, GarbageSilenceAndHangUpsDoNotDisturbAWorld) {
  for (const TransportKind kind : {TransportKind::kShm, TransportKind::kTcp}) {
    auto world = make_world(kind, 3);
    std::mt19937_64 random(3);
    std::vector<UniqueFd> strangers;
    for (int i = 0; i < 30; ++i) {
      const auto& address = world.options[0].endpoints[static_cast<size_t>(i % 3)].address;
      UniqueFd fd = connect_raw(address);
      std::vector<std::byte> noise(random() % 300);
      for (std::byte& byte : noise)
        byte = static_cast<std::byte>(random() & 0xFF);
      if (!noise.empty()) (void)::send(fd.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
      if (i % 3 != 0) strangers.push_back(std::move(fd));  // others hang up at once
    }
    for_each_rank(3, [&](int rank) {
      auto c = world.connect(rank);
      ASSERT_TRUE(c.has_value()) << c.error().message;
      std::vector<int64_t> data(1000, 1);
      EXPECT_EQ(message_of((*c)->all_reduce(bytes_of(data), DType::kInt64, ReduceOp::kSum)->wait()),
                "");
      EXPECT_EQ(data, std::vector<int64_t>(1000, 3));
    });
  }
}

/// No descriptor more for this process while it lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    // The lowest that is free: all below it are taken.
    const UniqueFd free(::dup(STDIN_FILENO));
    const rlimit none{static_cast<rlim_t>(free.get()), before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

std::chrono::microseconds processor_time() {
  rusage usage{};
  EXPECT_EQ(::getrusage(RUSAGE_SELF, &usage), 0);
  return seconds(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         std::chrono::microseconds(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

TEST(StrangersTest, AHubWithoutDescriptorsWaitsAndThenAnswers) {
  auto listener = Listener::bind("127.0.0.1");
  ASSERT_TRUE(listener.has_value());
  const auto address = *parse_address(listener->address());
  const auto hub = Hub::start(*std::move(listener), HandshakeIdentity{});
  ASSERT_TRUE(hub.has_value());
  const UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto hello = encode(Hello{});
  pollfd answer{fd.get(), POLLIN, 0};
  {
    const NoDescriptors none;
    ASSERT_EQ(::connect(fd.get(), address.raw(), address.length), 0);
    ASSERT_EQ(::send(fd.get(), hello.data(), hello.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(hello.size()));
    const auto before = processor_time();
    EXPECT_EQ(::poll(&answer, 1, 500), 0) << "accepted without a descriptor";
    // A thread that looks again and again takes all 500 ms.
    EXPECT_LT(processor_time() - before, milliseconds(150));
  }
  EXPECT_EQ(::poll(&answer, 1, 60'000), 1) << "the connection is forgotten";
}

/// A hub by itself, as of rank 1 of two, in a generation with or without a key.
class LoneHub {
 public:
  explicit LoneHub(std::vector<std::byte> key = {}) {
    auto listener = Listener::bind("127.0.0.1");
    EXPECT_TRUE(listener.has_value());
    address_ = *parse_address(listener->address());
    identity_.job = xxh3_128(std::as_bytes(std::span(std::string_view("job"))));
    identity_.generation = 7;
    identity_.rank = 1;
    identity_.world_size = 2;
    identity_.key = std::move(key);
    hub_ = *Hub::start(*std::move(listener), identity_);
  }

  /// What a rank 0 says that knows all but the key.
  Hello hello() const {
    Hello hello;
    hello.version = identity_.version();
    hello.job = identity_.job;
    hello.generation = identity_.generation;
    hello.target = 1;
    hello.world_size = 2;
    hello.nonce = 99;
    return hello;
  }

  UniqueFd connect() const {
    UniqueFd fd(::socket(address_.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd.get(), address_.raw(), address_.length), 0);
    return fd;
  }

  /// Sends `words` and reads the answer of `size` bytes.
  template <size_t kSize>
  static std::array<std::byte, kSize> ask(const UniqueFd& fd, std::span<const std::byte> words) {
    std::array<std::byte, kSize> answer{};
    EXPECT_TRUE(write_exactly(fd.get(), words, Clock::now() + seconds(60)));
    EXPECT_EQ(::recv(fd.get(), answer.data(), answer.size(), MSG_WAITALL),
              static_cast<ssize_t>(answer.size()));
    return answer;
  }

  Refusal refusal_of(const Hello& hello) const {
    const UniqueFd fd = connect();
    const auto answer = ask<kWelcomeBytes>(fd, encode(hello));
    char more = 0;
    const auto welcome = decode_welcome(answer, hello.version);
    EXPECT_TRUE(welcome);
    if (welcome->refusal != Refusal::kNone) {
      EXPECT_EQ(::recv(fd.get(), &more, 1, 0), 0) << "more than a number is said";
      EXPECT_EQ(welcome->rank, UINT32_MAX);
    }
    return welcome->refusal;
  }

  std::string refusals() const { return hub_->state()->refusals(); }
  HubState& state() const { return *hub_->state(); }

 private:
  SocketAddress address_;
  HandshakeIdentity identity_;
  std::unique_ptr<Hub> hub_;
};

TEST(StrangersTest, ARefusalIsANumberAndItsValuesStayHere) {
  const LoneHub hub;
  Hello wrong = hub.hello();
  wrong.generation = 3;
  EXPECT_EQ(hub.refusal_of(wrong), Refusal::kGeneration);
  EXPECT_THAT(hub.refusals(), HasSubstr("generation 3, this is generation 7"));
  wrong.job[0] ^= 1;
  EXPECT_EQ(hub.refusal_of(wrong), Refusal::kJob) << "before anything that could be tried out";
  Hello right = hub.hello();
  EXPECT_EQ(hub.refusal_of(right), Refusal::kNone);
}

TEST(StrangersTest, WithoutTheKeyOfTheGenerationNothingIsToldAndNobodyIsAccepted) {
  const LoneHub hub(std::vector<std::byte>(32, std::byte{5}));
  const std::vector<std::byte> guess(32, std::byte{6});
  for (const bool knows_all : {true, false}) {
    Hello hello = hub.hello();
    if (!knows_all) hello.generation = 3;
    const UniqueFd fd = hub.connect();
    const auto challenge = decode_challenge(LoneHub::ask<kChallengeBytes>(fd, encode(hello)));
    ASSERT_TRUE(challenge);
    // What the other side has proven is no proof of this one.
    const Hash256 proofs[] = {challenge->proof,
                              prove(guess, Side::kConnects, hello, challenge->nonce)};
    const auto answer = LoneHub::ask<kWelcomeBytes>(fd, encode_proof(proofs[knows_all ? 0 : 1]));
    EXPECT_EQ(decode_welcome(answer, kKeyedHandshake)->refusal, Refusal::kProof);
  }
  Hello open = hub.hello();
  open.version = kOpenHandshake;
  const UniqueFd fd = hub.connect();
  const auto answer = LoneHub::ask<kWelcomeBytes>(fd, encode(open));
  EXPECT_EQ(decode_welcome(answer, kKeyedHandshake)->refusal, Refusal::kVersion);
  EXPECT_FALSE(hub.state().take(0, 0, ConnectionKind::kControl, Clock::now()).valid());
}

TEST(StrangersTest, AProofIsGoodForItsOwnConnectionOnly) {
  const std::vector<std::byte> key(32, std::byte{5});
  const LoneHub hub(key);
  const Hello hello = hub.hello();
  const auto challenge_on = [&](const UniqueFd& fd) {
    return *decode_challenge(LoneHub::ask<kChallengeBytes>(fd, encode(hello)));
  };
  const UniqueFd first = hub.connect();
  const UniqueFd second = hub.connect();
  const auto proof = encode_proof(prove(key, Side::kConnects, hello, challenge_on(first).nonce));
  (void)challenge_on(second);
  EXPECT_EQ(decode_welcome(LoneHub::ask<kWelcomeBytes>(second, proof), kKeyedHandshake)->refusal,
            Refusal::kProof);
  EXPECT_EQ(decode_welcome(LoneHub::ask<kWelcomeBytes>(first, proof), kKeyedHandshake)->refusal,
            Refusal::kNone);
  EXPECT_TRUE(hub.state().take(0, 0, ConnectionKind::kControl, Clock::now() + seconds(60)).valid());
}

size_t open_descriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    count += entry.is_symlink() ? 1 : 0;
  return count;
}

TEST(StrangersTest, ConnectionsThatCloseDoNotPileUp) {
  const LoneHub hub;
  const size_t before = open_descriptors();
  const int rounds = testing_support::runs_everything() ? 100'000 : 2'000;
  for (int i = 0; i < rounds; ++i) {
    Hello hello = hub.hello();
    hello.group = static_cast<uint64_t>(i) + 1;
    if (i % 4 == 1) hello.generation = 3;
    const UniqueFd fd = hub.connect();
    if (i % 4 == 2) continue;  // says nothing
    // Those who know all are accepted: as long as they are not more at a time than are kept.
    const auto welcome = decode_welcome(LoneHub::ask<kWelcomeBytes>(fd, encode(hello)), 1);
    ASSERT_TRUE(welcome) << i;
    const bool may_be_full = welcome->refusal == Refusal::kFull && i % 4 != 1;
    ASSERT_TRUE(may_be_full ||
                welcome->refusal == (i % 4 == 1 ? Refusal::kGeneration : Refusal::kNone))
        << i << ": " << describe(welcome->refusal);
  }
  const auto deadline = Clock::now() + seconds(60);
  // Of those who know all, as many are kept as two ranks may make.
  const size_t kept_max = before + 2 * 16;
  while (open_descriptors() > kept_max && Clock::now() < deadline)
    std::this_thread::sleep_for(milliseconds(5));
  EXPECT_LE(open_descriptors(), kept_max);
}

/// A connection to a socket of an abstract name; invalid where there is none.
UniqueFd connect_abstract(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) fd.reset();
  return fd;
}

/// What another user gets who asks there: whether that is nothing. Skips the question where this
/// process may not become another user.
bool another_user_gets_nothing(const std::string& name) {
  constexpr int kMayNot = 2;
  if (::geteuid() != 0) return true;
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    char byte = 0;
    if (::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(kMayNot);
    const UniqueFd fd = connect_abstract(name);
    ::_exit(fd.valid() && ::recv(fd.get(), &byte, 1, 0) == 0 ? 0 : 1);
  }
  int status = 0;
  const bool ended = ::waitpid(child, &status, 0) == child && WIFEXITED(status);
  return ended && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == kMayNot);
}

TEST(StrangersTest, WhoAsksForTheSharedMemoryDoesNotDisturbThoseItIsFor) {
  GroupIdentity identity{.job_uid = "test", .global_ranks = {0, 1}};
  const auto deadline = Clock::now() + seconds(60);
  // The wire between the two members passes through the test.
  int to_leader[2];
  int to_member[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, to_leader), 0);
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, to_member), 0);
  const UniqueFd leaders_wire(to_leader[1]);
  const UniqueFd members_wire(to_member[1]);
  std::array<std::string, 2> ended;
  const auto share = [&](int member, int wire) {
    GroupIdentity own = identity;
    own.member = member;
    std::vector<UniqueFd> control(2);
    control[static_cast<size_t>(1 - member)].reset(wire);
    const auto segment = share_memory(own, control, deadline);
    ended[static_cast<size_t>(member)] = segment ? "" : segment.error().message;
  };
  {
    const std::jthread leader([&] { share(0, to_leader[0]); });
    const std::jthread member([&] { share(1, to_member[0]); });
    const auto offer = read_control_frame(leaders_wire.get(), deadline);
    ASSERT_TRUE(offer) << offer.error().message;
    ASSERT_EQ(offer->kind, ControlKind::kSharedMemory);
    EXPECT_TRUE(connect_abstract(offer->address).valid()) << "and gone again";
    EXPECT_TRUE(another_user_gets_nothing(offer->address));
    EXPECT_TRUE(write_exactly(members_wire.get(), encode(*offer), deadline));
    const auto answer = read_control_frame(members_wire.get(), deadline);
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ(answer->kind, ControlKind::kMapped);
    EXPECT_TRUE(write_exactly(leaders_wire.get(), encode(*answer), deadline));
  }
  EXPECT_EQ(ended[0], "");
  EXPECT_EQ(ended[1], "");
}

TEST(StrangersTest, BothAddressFamiliesWork) {
  for (const std::string host : {"127.0.0.1", "::1"}) {
    auto world = make_world(TransportKind::kTcp, 2, seconds(60), host);
    for_each_rank(2, [&](int rank) {
      auto c = world.connect(rank);
      ASSERT_TRUE(c.has_value()) << c.error().message;
      EXPECT_EQ(message_of((*c)->barrier()->wait()), "");
    });
  }
  EXPECT_EQ(Listener::bind("localhost").error().code, ErrorCode::kInvalidConfig);
  EXPECT_EQ(Listener::bind("0.0.0.0").error().code, ErrorCode::kInvalidConfig);
}

/// Plays rank 0 of two to a real rank 1: proper handshakes, then whatever the test sends.
class Impostor {
 public:
  Impostor() : world_(make_world(TransportKind::kTcp, 2)) {}

  /// Runs one int64 all-reduce of 100 elements on the real rank while `wire` is what rank 0 sends
  /// on that channel.
  Error error_for(std::span<const std::byte> wire, bool hangs_up = false,
                  ConnectionKind kind = ConnectionKind::kData) {
    Error error;
    std::thread real([&] {
      auto c = world_.connect(1);
      ASSERT_TRUE(c.has_value()) << c.error().message;
      std::vector<int64_t> data(100, 1);
      const Status status = (*c)->all_reduce(bytes_of(data), DType::kInt64, ReduceOp::kSum)->wait();
      ASSERT_FALSE(status.has_value());
      error = status.error();
      lost_ = (*c)->lost_ranks();
    });
    std::vector<Dial> dials(2);
    for (size_t i = 0; i < 2; ++i) {
      dials[i].rank = 1;
      dials[i].address = *parse_address(world_.options[0].endpoints[1].address);
      Hello& hello = dials[i].hello;
      hello.version = kKeyedHandshake;
      hello.channel = i == 0 ? ConnectionKind::kControl : ConnectionKind::kData;
      hello.job = xxh3_128(std::as_bytes(std::span(world_.options[0].job_uid)));
      hello.generation = world_.options[0].generation;
      hello.target = 1;
      hello.world_size = 2;
    }
    std::vector<int> lost;
    const Status dialled = dial_all(dials, world_.options[0].key, Clock::now() + seconds(60), lost);
    EXPECT_TRUE(dialled.has_value()) << message_of(dialled);
    const int fd = dials[kind == ConnectionKind::kControl ? 0 : 1].fd.get();
    EXPECT_TRUE(write_exactly(fd, wire, Clock::now() + seconds(60)).has_value());
    if (hangs_up) dials.clear();
    real.join();
    return error;
  }

  /// Whom the real rank held lost.
  const std::vector<int>& lost() const { return lost_; }

 private:
  testing::World world_;
  std::vector<int> lost_;
};

MessageHeader right_header() {
  MessageHeader header;
  header.signature = {Operation::kAllReduce, DType::kInt64, ReduceOp::kSum, 0, 100, 0};
  header.generation = 7;
  header.payload_bytes = 800;
  return header;
}

TEST(ImpostorTest, AMessageOfAnOlderGenerationIsRefused) {
  MessageHeader old = right_header();
  old.generation = 6;
  const Error error = Impostor().error_for(encode(old));
  EXPECT_EQ(error.code, ErrorCode::kConflict);
  EXPECT_THAT(error.message, AllOf(HasSubstr("from rank 0"), HasSubstr("generation 6 is refused")));
}

TEST(ImpostorTest, AnotherProtocolVersionIsNamed) {
  WireHeader wire = encode(right_header());
  wire[4] = std::byte{9};
  EXPECT_THAT(Impostor().error_for(wire).message, HasSubstr("version is 9, wanted 2"));
}

TEST(ImpostorTest, APayloadBeyondTheLimitIsNamedAndNotAllocated) {
  MessageHeader huge = right_header();
  huge.payload_bytes = int64_t{1} << 60;
  Impostor impostor;
  const Error error = impostor.error_for(encode(huge));
  EXPECT_EQ(error.code, ErrorCode::kPeerLost);
  EXPECT_THAT(error.message, HasSubstr("payload of 1152921504606846976 bytes"));
  EXPECT_THAT(impostor.lost(), ElementsAre(0));
}

TEST(ImpostorTest, ADamagedWireIsALostPeerAndNotTheUsersData) {
  WireHeader wire = encode(right_header());
  wire[0] = std::byte{'X'};
  Impostor impostor;
  const Error error = impostor.error_for(wire);
  EXPECT_EQ(error.code, ErrorCode::kPeerLost);
  EXPECT_THAT(error.message, HasSubstr("from rank 0: message header: magic"));
  EXPECT_THAT(impostor.lost(), ElementsAre(0));
}

TEST(StrangersTest, AnAddressThatAStrangerAnswersIsALostRank) {
  auto listener = Listener::bind("127.0.0.1");
  ASSERT_TRUE(listener.has_value());
  const std::jthread stranger([&] {
    pollfd entry{listener->fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&entry, 1, 60'000), 1);
    const UniqueFd fd(::accept(listener->fd(), nullptr, nullptr));
    const std::string words = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    EXPECT_GT(::send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL), 0);
    char byte = 0;
    while (::recv(fd.get(), &byte, 1, 0) > 0) {
    }
  });
  std::vector<Dial> dials(1);
  dials[0].rank = 4;
  dials[0].address = *parse_address(listener->address());
  std::vector<int> lost;
  const Status status = dial_all(dials, {}, Clock::now() + seconds(60), lost);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kPeerLost);
  EXPECT_THAT(
      status.error().message,
      AllOf(HasSubstr("rank 4"), HasSubstr("the other side is not a rank of a training job")));
  EXPECT_THAT(lost, ElementsAre(4));
}

TEST(ImpostorTest, AMessageOfAnotherGroupIsNamed) {
  MessageHeader other = right_header();
  other.group = 99;
  const Error error = Impostor().error_for(encode(other));
  EXPECT_EQ(error.code, ErrorCode::kInternal);
  EXPECT_THAT(error.message, HasSubstr("a message of group 99"));
}

TEST(ImpostorTest, WhoWaitsForNobodyOfTheGroupIsLost) {
  for (const int nobody : {2, 500, 65535}) {
    ControlFrame frame;
    frame.kind = ControlKind::kWaiting;
    frame.waiting = {.ranks = {nobody}};
    const Error error = Impostor().error_for(encode(frame), false, ConnectionKind::kControl);
    EXPECT_EQ(error.code, ErrorCode::kPeerLost) << nobody;
    EXPECT_THAT(error.message, AllOf(HasSubstr("rank 0 is lost"),
                                     HasSubstr("waits for rank " + std::to_string(nobody))));
  }
}

TEST(ImpostorTest, HalfAMessageAndAHangUpIsALostPeer) {
  auto wire = encode(right_header());
  const Error error = Impostor().error_for(std::span(wire).first(40), true);
  EXPECT_EQ(error.code, ErrorCode::kPeerLost);
  EXPECT_THAT(error.message, HasSubstr("rank 0 is lost"));
}

}  // namespace
}  // namespace trainyard::comm
