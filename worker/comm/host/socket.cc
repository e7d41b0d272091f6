#include "worker/comm/host/socket.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

namespace trainyard::comm {
namespace {

Status wait_for(int fd, short events, std::chrono::steady_clock::time_point deadline) {
  while (true) {
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, poll_timeout_ms(deadline, 60'000));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return io_error("poll", errno);
    if (std::chrono::steady_clock::now() >= deadline) {
      return Error{ErrorCode::kDeadline, "no answer in time"};
    }
  }
}

}  // namespace

Result<SocketAddress> make_address(const std::string& host, uint16_t port) {
  SocketAddress address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.length = sizeof(sockaddr_in);
    return address;
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.length = sizeof(sockaddr_in6);
    return address;
  }
  return Error{ErrorCode::kInvalidConfig, "'" + host + "' is not a numeric IPv4 or IPv6 address"};
}

Result<SocketAddress> parse_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  const Error malformed{ErrorCode::kInvalidConfig,
                        "address '" + text + "': wanted host:port, IPv6 hosts in brackets"};
  if (colon == std::string::npos || colon == 0) return malformed;
  std::string host = text.substr(0, colon);
  if (host.front() == '[') {
    if (host.back() != ']') return malformed;
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    return malformed;
  }
  uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, port);
  if (error != std::errc{} || stop != end || port == 0) return malformed;
  return make_address(host, port);
}

std::string to_string(const SocketAddress& address) {
  char host[INET6_ADDRSTRLEN] = {};
  if (address.family() == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
    std::string text = "[";
    text += host;
    text += "]:";
    return text += std::to_string(ntohs(v6->sin6_port));
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
  ::inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
  return std::string(host) + ":" + std::to_string(ntohs(v4->sin_port));
}

void set_no_delay(int fd) {
  const int on = 1;
  // Fails on a connection that is dying, which the next read reports.
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

bool stays_on_host(int fd) {
  SocketAddress own;
  SocketAddress peer;
  own.length = peer.length = sizeof(own.storage);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own.storage), &own.length) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer.storage), &peer.length) != 0 ||
      own.family() != peer.family()) {
    return false;
  }
  if (own.family() == AF_INET6) {
    return std::memcmp(&reinterpret_cast<const sockaddr_in6*>(&own.storage)->sin6_addr,
                       &reinterpret_cast<const sockaddr_in6*>(&peer.storage)->sin6_addr,
                       sizeof(in6_addr)) == 0;
  }
  return own.family() == AF_INET &&
         reinterpret_cast<const sockaddr_in*>(&own.storage)->sin_addr.s_addr ==
             reinterpret_cast<const sockaddr_in*>(&peer.storage)->sin_addr.s_addr;
}

void bound_local_buffer(int fd) {
  // The system doubles it. Measured on loopback (messages of up to 64 KiB each): with half of it
  // two messages barely fit, with a quarter each waits for a delayed acknowledgement; with twice as
  // much 128 MB take 10 % longer, unbounded 30 %.
  constexpr int kBytes = 128 * 1024;
  (void)::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kBytes, sizeof(kBytes));
}

int poll_timeout_ms(std::chrono::steady_clock::time_point deadline, int limit_ms) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, limit_ms));
}

Status read_exactly(int fd, std::span<std::byte> data,
                    std::chrono::steady_clock::time_point deadline) {
  while (!data.empty()) {
    const ssize_t got = ::recv(fd, data.data(), data.size(), MSG_DONTWAIT);
    if (got > 0) {
      data = data.subspan(static_cast<size_t>(got));
    } else if (got == 0 || means_peer_gone(errno)) {
      return Error{ErrorCode::kPeerLost, "the connection was closed"};
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      TRAINYARD_TRY(wait_for(fd, POLLIN, deadline));
    } else if (errno != EINTR) {
      return io_error("receive", errno);
    }
  }
  return {};
}

Status write_exactly(int fd, std::span<const std::byte> data,
                     std::chrono::steady_clock::time_point deadline) {
  while (!data.empty()) {
    const ssize_t put = ::send(fd, data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put >= 0) {
      data = data.subspan(static_cast<size_t>(put));
    } else if (means_peer_gone(errno)) {
      return Error{ErrorCode::kPeerLost, "the connection was closed"};
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      TRAINYARD_TRY(wait_for(fd, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return io_error("send", errno);
    }
  }
  return {};
}

bool means_peer_gone(int error_number) {
  return error_number == ECONNRESET || error_number == EPIPE || error_number == ECONNREFUSED ||
         error_number == ETIMEDOUT || error_number == ECONNABORTED ||
         error_number == EHOSTUNREACH || error_number == ENETUNREACH || error_number == ENETRESET;
}

}  // namespace trainyard::comm
