#include "tests/support/tcp_forwarder.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <netinet/in.h>
#include <poll.h>
#include <stdexcept>
#include <sys/socket.h>
#include <unistd.h>

namespace trainyard::testing_support {
namespace {

/// How soon a cut, a mend or the end is noticed.
constexpr int kLookMs = 20;

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// Writes all of it; false when the other side has gone.
bool write_all(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t written = ::send(fd, data, size, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

/// Moves what is there; false when the connection has ended.
bool move_bytes(int from, int to) {
  std::array<char, 64 << 10> buffer{};
  const ssize_t got = ::recv(from, buffer.data(), buffer.size(), 0);
  return got > 0 && write_all(to, buffer.data(), static_cast<size_t>(got));
}

}  // namespace

TcpForwarder::TcpForwarder(uint16_t port)
    : target_(port), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const bool listens = ::bind(listener_.get(), generic, size) == 0 &&
                       ::listen(listener_.get(), SOMAXCONN) == 0 &&
                       ::getsockname(listener_.get(), generic, &size) == 0;
  if (!listens) throw std::runtime_error("no port of 127.0.0.1 can be had");
  port_ = ntohs(address.sin_port);
  accepting_ = std::jthread([this](const std::stop_token& stop) { accept_all(stop); });
}

TcpForwarder::~TcpForwarder() {
  accepting_.request_stop();
  accepting_.join();
  const std::lock_guard lock(mutex_);
  for (std::jthread& connection : connections_)
    connection.request_stop();
  connections_.clear();
}

void TcpForwarder::accept_all(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    pollfd waiting{listener_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, kLookMs) <= 0) continue;
    UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client.get() < 0) continue;
    const std::lock_guard lock(mutex_);
    connections_.emplace_back(
        [this, client = std::move(client)](const std::stop_token& over) mutable {
          forward(over, std::move(client));
        });
  }
}

void TcpForwarder::forward(const std::stop_token& stop, UniqueFd client) {
  const UniqueFd server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(target_);
  if (::connect(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return;
  }
  while (!stop.stop_requested()) {
    if (cut_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kLookMs));
      continue;
    }
    std::array<pollfd, 2> ends = {{{client.get(), POLLIN, 0}, {server.get(), POLLIN, 0}}};
    if (::poll(ends.data(), ends.size(), kLookMs) <= 0) continue;
    if (cut_) continue;
    if (ends[0].revents != 0 && !move_bytes(client.get(), server.get())) return;
    if (ends[1].revents != 0 && !move_bytes(server.get(), client.get())) return;
  }
}

}  // namespace trainyard::testing_support
