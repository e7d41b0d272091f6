// Any bytes as what a stranger says to a rank's port in a generation with a key: nobody is let in,
// and what is answered is a challenge or a number. The first byte says how the rest is cut, and
// whether it stands for the whole conversation or for what follows a Hello that fits.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <sys/socket.h>
#include <vector>

#include "common/base/unique_fd.h"
#include "tests/fuzz/require.h"
#include "worker/comm/factory.h"
#include "worker/comm/host/handshake.h"
#include "worker/comm/host/hub.h"
#include "worker/comm/host/socket.h"

namespace {

namespace comm = trainyard::comm;

/// Of rank 1 of two. One for all inputs: what one leaves behind, the next one meets.
class Server {
 public:
  Server() {
    identity_.generation = 7;
    identity_.rank = 1;
    identity_.world_size = 2;
    identity_.key.assign(32, std::byte{5});
    // OpenSSL cleans up at exit after this object only if it is used before: else what the hub's
    // thread has of it leaks.
    (void)comm::prove(identity_.key, comm::Side::kConnects, {}, {});
    auto listener = comm::Listener::bind("127.0.0.1");
    TRAINYARD_REQUIRE(listener.has_value(), "no port");
    address_ = *comm::parse_address(listener->address());
    auto hub = comm::Hub::start(*std::move(listener), identity_);
    TRAINYARD_REQUIRE(hub.has_value(), "no hub");
    hub_ = *std::move(hub);
  }

  /// A Hello that knows all but the key.
  comm::Hello hello() const {
    comm::Hello hello;
    hello.version = identity_.version();
    hello.generation = identity_.generation;
    hello.target = identity_.rank;
    hello.world_size = identity_.world_size;
    return hello;
  }

  trainyard::UniqueFd connect() const {
    trainyard::UniqueFd fd(::socket(address_.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(fd.get(), address_.raw(), address_.length) != 0) return {};
    return fd;
  }

  bool has_accepted(const comm::Hello& hello) const {
    return hub_->state()
        ->take(hello.group, static_cast<int>(hello.rank), hello.channel,
               std::chrono::steady_clock::now())
        .valid();
  }

 private:
  comm::HandshakeIdentity identity_;
  comm::SocketAddress address_;
  std::unique_ptr<comm::Hub> hub_;
};

/// All that is answered before the other side closes.
std::vector<std::byte> conversation(const trainyard::UniqueFd& fd, std::span<const std::byte> words,
                                    size_t step) {
  for (size_t at = 0; at < words.size(); at += step) {
    const auto piece = words.subspan(at, std::min(step, words.size() - at));
    if (::send(fd.get(), piece.data(), piece.size(), MSG_NOSIGNAL) < 0) break;
  }
  ::shutdown(fd.get(), SHUT_WR);
  std::vector<std::byte> heard;
  std::array<std::byte, 256> piece{};
  for (ssize_t got = 0; (got = ::recv(fd.get(), piece.data(), piece.size(), 0)) > 0;)
    heard.insert(heard.end(), piece.begin(), piece.begin() + got);
  return heard;
}

void check_answers(std::span<const std::byte> heard) {
  if (heard.size() >= comm::kChallengeBytes &&
      comm::decode_challenge(heard.first<comm::kChallengeBytes>()))
    heard = heard.subspan(comm::kChallengeBytes);
  if (heard.empty()) return;
  TRAINYARD_REQUIRE(heard.size() == comm::kWelcomeBytes, "more than a number is said");
  const auto welcome =
      comm::decode_welcome(heard.first<comm::kWelcomeBytes>(), comm::kKeyedHandshake);
  TRAINYARD_REQUIRE(welcome.has_value(), "an answer that is none");
  TRAINYARD_REQUIRE(welcome->refusal != comm::Refusal::kNone, "a stranger is let in");
  TRAINYARD_REQUIRE(welcome->rank == UINT32_MAX, "a stranger learns the rank");
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Server server;
  if (size == 0) return 0;
  const bool says_hello = data[0] % 2 == 1;
  const size_t step = 1 + data[0] / 2;
  comm::Hello hello = server.hello();
  std::vector<std::byte> words;
  if (says_hello) {
    const auto wire = encode(hello);
    words.assign(wire.begin(), wire.end());
  }
  const auto rest = std::as_bytes(std::span(data + 1, size - 1));
  words.insert(words.end(), rest.begin(), rest.end());
  if (!says_hello && rest.size() >= comm::kHelloBytes) {
    const auto said = comm::decode_hello(rest.first<comm::kHelloBytes>(), comm::kKeyedHandshake);
    if (said) hello = *said;
  }
  const trainyard::UniqueFd fd = server.connect();
  if (!fd.valid()) return 0;  // out of ports, for a while
  check_answers(conversation(fd, words, step));
  TRAINYARD_REQUIRE(!server.has_accepted(hello), "a stranger is kept");
  return 0;
}
