// Strangers without a token at the control port, over TLS: what they can take is bounded, and an
// agent is let in while they go on.
#include <arpa/inet.h>
#include <atomic>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <memory>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>
#include <zlib.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "common/io/open_files.h"
#include "common/proto/coordination.pb.h"
#include "control/coordinator/grpc_channel.h"
#include "control/coordinator/grpc_port_transport.h"
#include "operator/stream/admitted_transport.h"
#include "tests/support/extent.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_authority.h"
#include "tests/support/tls_client.h"

namespace trainyard::stream {
namespace {

using control::ChannelSecurity;
using control::GrpcChannel;
using control::GrpcPortTransport;
using testing_support::kSanitized;
using testing_support::runs_everything;
using testing_support::TlsClient;

/// For what comes in any case.
constexpr std::chrono::seconds kPatience{120};
/// Agents come from another address than these, as in a cluster.
constexpr char kStranger[] = "127.0.0.2";
/// Half of what the chart lets the operator have.
constexpr int64_t kMemoryBytes = 256 << 20;
constexpr char kPodToken[] = "of-a-pod";

bool await(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  file >> total >> resident;
  return resident * ::getpagesize();
}

/// From here on peak_bytes() is the most that this process has had. What it has now.
int64_t begin_peak() {
  std::ofstream("/proc/self/clear_refs") << '5';
  return resident_bytes();
}

int64_t peak_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == "VmHWM:" && file >> kib) return kib << 10;
  }
  return 0;
}

// ---- HTTP/2, as RFC 9113 writes it -------------------------------------------------------------

constexpr uint8_t kData = 0;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kReset = 3;
constexpr uint8_t kSettings = 4;
constexpr uint8_t kContinuation = 9;
constexpr uint8_t kEndHeaders = 4;

std::string frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  const auto size = static_cast<uint32_t>(payload.size());
  std::string head;
  for (const uint32_t byte : {size >> 16, size >> 8, size, uint32_t{type}, uint32_t{flags},
                              stream >> 24, stream >> 16, stream >> 8, stream})
    head += static_cast<char>(byte);
  return head + payload;
}

/// A heartbeat of so many ranks of which nothing is said: two bytes each on the wire.
coordination::FromAgent of_empty_ranks(size_t count) {
  std::string ranks;
  for (size_t i = 0; i < count; ++i)
    ranks += std::string("\x0a\0", 2);
  coordination::FromAgent message;
  message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(
      coordination::FromAgent::kHeartbeatFieldNumber, ranks);
  return message;
}

/// Without Huffman's code and without the table (RFC 7541, section 6.2.2); short texts.
std::string field(const std::string& name, const std::string& value) {
  return std::string(1, '\0') + static_cast<char>(name.size()) + name +
         static_cast<char>(value.size()) + value;
}

std::string greeting() { return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(kSettings, 0, 0, ""); }

/// As gzip writes it: a thousandth.
std::string packed_zeros(size_t count) {
  constexpr size_t kPieceBytes = 1 << 20;
  std::string zeros(kPieceBytes, '\0');
  std::string out(count / 500, '\0');
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  for (size_t done = 0; done < count; done += kPieceBytes) {
    stream.next_in = reinterpret_cast<Bytef*>(zeros.data());
    stream.avail_in = kPieceBytes;
    deflate(&stream, done + kPieceBytes < count ? Z_NO_FLUSH : Z_FINISH);
  }
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string request(uint32_t stream, const std::string& token, uint8_t flags = kEndHeaders,
                    const std::string& more = "") {
  return frame(kHeaders, flags, stream,
               field(":method", "POST") + field(":scheme", "https") +
                   field(":path", "/trainyard.coordination.Coordination/Connect") +
                   field(":authority", "operator") + field("te", "trailers") +
                   field("content-type", "application/grpc") +
                   field("authorization", "Bearer " + token) + more);
}

// ---- The port ----------------------------------------------------------------------------------

class PortAttackTest : public testing::Test {
 protected:
  PortAttackTest() {
    raise_open_file_limit();
    ::signal(SIGPIPE, SIG_IGN);  // strangers are cut off
    write("ca.crt", authority_.pem());
    client_ = std::make_unique<TlsClient>(folder_.path() / "ca.crt");
    const auto identity = authority_.issue({.names = {"IP:127.0.0.1"}});
    const Status shown = port_.show({identity.certificate, identity.key});
    EXPECT_TRUE(shown) << shown.error().message;
    AdmittedTransport::Options options;
    options.inner = &port_;
    options.logger = logger_.get();
    options.clock = &clock_;
    // Tokens are names of pods, but for the forged ones that claim nothing.
    options.claims = [](const std::string& token) -> Result<TokenOwner> {
      if (token.starts_with("forged")) return Error{ErrorCode::kInvalidConfig, "forged"};
      return TokenOwner{"n", token, token};
    };
    options.review = [this](const std::string& token) -> Result<TokenOwner> {
      ++reviews_;
      if (!token.starts_with(kPodToken)) return Error{ErrorCode::kInvalidConfig, "unknown"};
      return TokenOwner{"n", token, token};
    };
    options.job_of = [](const TokenOwner&) { return std::string("job"); };
    options.on_admitted = [this](control::ConnectionId stream) { port_.admit(stream); };
    admitted_ = std::make_unique<AdmittedTransport>(std::move(options));
    taking_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested())
        admitted_->take(std::chrono::milliseconds(50));
    });
    resident_before_ = resident_bytes();
  }

  void TearDown() override {
    EXPECT_LE(bytes_max(), control::FrontBounds{}.bytes_of_all + (64 << 10));
    const int64_t grown = resident_bytes() - resident_before_;
    RecordProperty("grown_bytes", std::to_string(grown));
    if (kSanitized) return;
    EXPECT_LT(grown, kMemoryBytes) << "strangers' memory included";
  }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.path() / name, std::ios::trunc) << text;
  }

  std::unique_ptr<TlsClient::Link> stranger() const {
    return client_->connect(port_.port(), kStranger);
  }
  /// A connection on which nothing is said.
  UniqueFd silent_stranger() const {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, kStranger, &address.sin_addr);
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    address.sin_port = htons(static_cast<uint16_t>(port_.port()));
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  }
  /// It takes so much of it; a stranger does not wait for more.
  static void say(TlsClient::Link& link, const std::string& bytes) {
    auto& connection = link.connection();
    ::fcntl(connection.descriptor(), F_SETFL, O_NONBLOCK);
    (void)connection.write(bytes);
  }

  std::unique_ptr<GrpcChannel> agent(const std::string& name = "") const {
    const std::string file = "token" + name;
    write(file, kPodToken + name);
    return std::make_unique<GrpcChannel>(
        "127.0.0.1:" + std::to_string(port_.port()),
        ChannelSecurity{folder_.path() / "ca.crt", folder_.path() / file});
  }

  /// Whether an agent is let in while `attack` is made again and again, which was made once before.
  bool lets_agent_in(const std::function<void()>& attack) {
    attack();
    std::jthread attacking([&](const std::stop_token& stop) {
      while (!stop.stop_requested())
        attack();
    });
    return lets_agent_in();
  }
  /// As an agent, this one comes again where it is cut off.
  bool lets_agent_in(int64_t admitted = 1) {
    const auto channel = agent();
    channel->open();
    return await([&] {
      for (const control::ChannelEvent& event : channel->take()) {
        if (event.kind == control::ChannelEvent::Kind::kClosed) channel->open();
      }
      return admitted_->counts().admitted >= admitted;
    });
  }
  static bool closes(GrpcChannel& channel) {
    for (const control::ChannelEvent& event : channel.take()) {
      if (event.kind == control::ChannelEvent::Kind::kClosed) return true;
    }
    return false;
  }
  int64_t bytes_max() const { return port_.connections().bytes_max; }

  const testing_support::TemporaryDirectory folder_;
  const testing_support::TestAuthority authority_;
  const SystemClock clock_;
  const std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  std::unique_ptr<TlsClient> client_;
  std::atomic<int> reviews_ = 0;
  GrpcPortTransport port_{{.address = "127.0.0.1:0", .memory_bytes = kMemoryBytes}};
  std::unique_ptr<AdmittedTransport> admitted_;
  int64_t resident_before_ = 0;
  std::jthread taking_;
};

TEST_F(PortAttackTest, RequestsThatAreTakenBackAgainAndAgain) {
  constexpr uint32_t kPerConnection = 1000;
  const int connections = runs_everything() ? 100 : 10;
  std::string attack = greeting();
  for (uint32_t i = 0; i < kPerConnection; ++i)
    attack += request(2 * i + 1, "forged") + frame(kReset, 0, 2 * i + 1, std::string(4, '\0'));
  EXPECT_TRUE(lets_agent_in([&] {
    for (int i = 0; i < connections; ++i) {
      if (const auto link = stranger()) say(*link, attack);
    }
  }));
  EXPECT_TRUE(await([&] { return port_.connections().cut >= connections; }));
  EXPECT_LE(admitted_->counts().refused, port_.connections().accepted)
      << "one stream per connection, whatever is said";
}

TEST_F(PortAttackTest, HeadersThatDoNotEnd) {
  constexpr int kConnections = 64;
  std::string attack = greeting() + request(1, "forged", 0);
  for (int i = 0; i < 256; ++i)
    attack += frame(kContinuation, 0, 1, std::string(16 << 10, 'x'));
  EXPECT_TRUE(lets_agent_in([&] {
    std::vector<std::unique_ptr<TlsClient::Link>> links;
    for (int i = 0; i < kConnections; ++i) {
      links.push_back(stranger());
      if (links.back()) say(*links.back(), attack);
    }
  }));
  EXPECT_TRUE(await([&] { return port_.connections().cut >= kConnections; }));
  EXPECT_EQ(admitted_->counts().refused, 0) << "gRPC has seen none";
}

TEST_F(PortAttackTest, MessagesThatAreHalfSent) {
  constexpr int kConnections = 64;
  constexpr uint32_t kStreams = 4;
  const std::string piece = frame(kData, 0, 1, std::string(16 << 10, 'x'));
  std::string attack = greeting() + request(1, "forged");
  attack += frame(kData, 0, 1, std::string("\0\0\x40\0\0", 5));  // 4 MiB are to come
  for (int i = 0; i < 256; ++i)
    attack += piece;
  for (uint32_t stream = 3; stream < 2 * kStreams; stream += 2)
    attack += request(stream, "forged");
  EXPECT_TRUE(lets_agent_in([&] {
    std::vector<std::unique_ptr<TlsClient::Link>> links;
    for (int i = 0; i < kConnections; ++i) {
      links.push_back(stranger());
      if (links.back()) say(*links.back(), attack);
    }
  }));
  EXPECT_GT(bytes_max(), 0);
  EXPECT_LE(bytes_max(), kConnections * ((256 << 10) + (32 << 10)));
}

TEST_F(PortAttackTest, ConnectionsOnWhichNothingIsSaid) {
  const int count = runs_everything() ? 3000 : 500;
  std::vector<UniqueFd> idle;
  for (int i = 0; i < count; ++i)
    idle.push_back(silent_stranger());
  EXPECT_TRUE(await([&] { return port_.connections().now.waiting > 0; }));
  EXPECT_TRUE(lets_agent_in());
  const auto now = port_.connections().now;
  EXPECT_LE(now.connections - now.waiting - now.admitted, 64 + 1)
      << "the others are not read; the agent's may not be counted as admitted yet, or no more";
  if (!runs_everything()) return;
  EXPECT_TRUE(await([&] { return port_.connections().now.connections <= 1; }))
      << "none is kept that shows no token";
}

TEST_F(PortAttackTest, TokensThatAreForged) {
  const int count = runs_everything() ? 10'000 : 300;
  int sent = 0;
  EXPECT_TRUE(lets_agent_in([&] {
    for (int i = 0; i < count / 10; ++i) {
      if (const auto link = stranger()) say(*link, greeting() + request(1, "forged"));
      ++sent;
    }
  }));
  for (; sent < count; ++sent) {
    if (const auto link = stranger()) say(*link, greeting() + request(1, "forged"));
  }
  EXPECT_EQ(reviews_, 1) << "the agent's own";
}

/// They know the UIDs of pods, which is no secret.
TEST_F(PortAttackTest, TokensThatClaimToBeOfPods) {
  const auto started = std::chrono::steady_clock::now();
  int pod = 0;
  EXPECT_TRUE(lets_agent_in([&] {
    for (int i = 0; i < 100; ++i) {
      if (const auto link = stranger())
        say(*link, greeting() + request(1, "pod" + std::to_string(++pod)));
    }
  }));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
  EXPECT_LE(reviews_, AdmittedTransport::kReviewsAtOnce +
                          AdmittedTransport::kReviewsPerSecond * took.count() + 1);
}

/// An empty part takes two bytes on the wire and 130 times as many of memory.
TEST_F(PortAttackTest, AMemberWhoseMessagesAreOfManyEmptyParts) {
  const auto channel = agent();
  channel->open();
  ASSERT_TRUE(await([&] { return admitted_->counts().admitted > 0; }));
  const int64_t before = begin_peak();
  ASSERT_TRUE(channel->send(of_empty_ranks(2'000'000)));
  EXPECT_TRUE(await([&] { return closes(*channel); }));
  if (kSanitized) return;
  EXPECT_LT(peak_bytes() - before, kMemoryBytes / 4);
}

TEST_F(PortAttackTest, AMessageThatGrowsWhenItIsUnpacked) {
  const std::string bomb = packed_zeros(128 << 20);
  std::string message(1, '\1');
  for (const size_t byte : {bomb.size() >> 24, bomb.size() >> 16, bomb.size() >> 8, bomb.size()})
    message += static_cast<char>(byte);
  message += bomb;
  std::string attack =
      greeting() + request(1, kPodToken, kEndHeaders, field("grpc-encoding", "gzip"));
  for (size_t at = 0; at < message.size(); at += 16 << 10)
    attack += frame(kData, 0, 1, message.substr(at, 16 << 10));
  auto link = stranger();
  ASSERT_TRUE(link);
  const int64_t before = begin_peak();
  EXPECT_TRUE(link->connection().write(attack));
  link.reset();  // what was said is read to its end
  EXPECT_TRUE(await([&] { return port_.connections().now.connections == 0; }));
  if (kSanitized) return;
  EXPECT_LT(peak_bytes() - before, kMemoryBytes / 4);
}

/// A field is sent once, then named again by a byte each time (RFC 7541, section 6.1).
TEST_F(PortAttackTest, HeadersThatGrowWhenTheyAreUnpacked) {
  constexpr int kConnections = 64;
  constexpr size_t kValueBytes = 3900;  // the table has 4,096
  const std::string value_size = {'\x7f', static_cast<char>((kValueBytes - 127) % 128 + 128),
                                  static_cast<char>((kValueBytes - 127) / 128)};
  const std::string attack =
      greeting() + request(1, "forged", kEndHeaders,
                           "\x40\x01x" + value_size + std::string(kValueBytes, 'v') +
                               std::string(11 << 10, '\xbe'));
  const int64_t before = begin_peak();
  std::vector<std::unique_ptr<TlsClient::Link>> links;
  EXPECT_TRUE(lets_agent_in([&] {
    for (int i = 0; i < kConnections; ++i) {
      links.push_back(stranger());
      if (links.back()) say(*links.back(), attack);
    }
    if (links.size() > 4 * kConnections) links.clear();
  }));
  if (kSanitized) return;
  EXPECT_LT(peak_bytes() - before, kMemoryBytes / 2);
}

/// Settings, questions and windows are each small and each answered.
TEST_F(PortAttackTest, FramesThatCarryNoMessage) {
  constexpr int kConnections = 16;
  constexpr uint8_t kPing = 6;
  constexpr uint8_t kWindowUpdate = 8;
  std::vector<std::string> attacks;
  for (const std::string& one :
       {frame(kSettings, 0, 0, ""), frame(kSettings, 0, 0, std::string("\0\4\0\0\0\0", 6)),
        frame(kPing, 0, 0, "12345678"), frame(kWindowUpdate, 0, 0, std::string("\0\0\0\1", 4))}) {
    attacks.push_back(greeting());
    while (attacks.back().size() < 256 << 10)
      attacks.back() += one;
  }
  const int64_t before = begin_peak();
  EXPECT_TRUE(lets_agent_in([&] {
    for (int i = 0; i < kConnections; ++i) {
      for (const std::string& attack : attacks) {
        if (const auto link = stranger()) say(*link, attack);
      }
    }
  }));
  if (kSanitized) return;
  EXPECT_LT(peak_bytes() - before, kMemoryBytes / 2);
}

/// The processor time that they cost is in proportion to their bytes; others have their turn.
TEST_F(PortAttackTest, AMemberWhoseFramesCarryNoMessage) {
  constexpr uint8_t kWindowUpdate = 8;
  const auto link = stranger();
  ASSERT_TRUE(link);
  ASSERT_TRUE(link->connection().write(greeting() + request(1, std::string(kPodToken) + "flood")));
  ASSERT_TRUE(await([&] { return admitted_->counts().admitted == 1; }));
  std::string attack;
  while (attack.size() < 64 << 10)
    attack += frame(kWindowUpdate, 0, 0, std::string("\0\0\0\1", 4));
  std::jthread flooding([&](const std::stop_token& stop) {
    while (!stop.stop_requested() && link->connection().write(attack)) {
    }
  });
  EXPECT_TRUE(lets_agent_in(2));
}

TEST_F(PortAttackTest, HandshakesThatAreHalfDone) {
  const int count = runs_everything() ? 3000 : 300;
  const std::string_view hello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);  // of 517 bytes
  std::vector<UniqueFd> half;
  for (int i = 0; i < count; ++i) {
    half.push_back(silent_stranger());
    EXPECT_EQ(::write(half.back().get(), hello.data(), hello.size()), std::ssize(hello));
  }
  EXPECT_TRUE(await([&] { return port_.connections().now.waiting > 0; }));
  EXPECT_TRUE(lets_agent_in());
}

/// As behind one address of a node, when a leader is new.
TEST_F(PortAttackTest, ManyAgentsOfOneAddressAreAllLetIn) {
  const int count = runs_everything() ? 1000 : 100;
  std::vector<std::unique_ptr<GrpcChannel>> agents;
  for (int i = 0; i < count; ++i) {
    agents.push_back(agent(std::to_string(i)));
    agents.back()->open();
  }
  const auto started = std::chrono::steady_clock::now();
  EXPECT_TRUE(await([&] {
    for (const auto& one : agents) {
      for (const control::ChannelEvent& event : one->take()) {
        if (event.kind == control::ChannelEvent::Kind::kClosed) one->open();
      }
    }
    return admitted_->counts().open == count;
  })) << admitted_->counts().open;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
  RecordProperty("seconds", std::to_string(took.count()));
}

}  // namespace
}  // namespace trainyard::stream
