#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <sys/socket.h>

#include "common/base/error.h"
#include "common/base/unique_fd.h"

/// Small pieces over the socket calls.
namespace trainyard::comm {

/// A numeric address of either family with its port.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// Errors: kInvalidConfig for what is no numeric IPv4 or IPv6 address.
Result<SocketAddress> make_address(const std::string& host, uint16_t port);
/// "127.0.0.1:4711" or "[::1]:4711". Errors: kInvalidConfig.
Result<SocketAddress> parse_address(const std::string& text);
std::string to_string(const SocketAddress& address);

/// Small messages leave at once.
void set_no_delay(int fd);

/// True for a connection between two sockets of this machine.
bool stays_on_host(int fd);

/// Bounds what the system buffers of a connection that stays on this machine, to what its caches
/// keep: more would travel through memory, and no network is there to be kept busy. Costs nothing
/// else; a failure only leaves the buffer as it was.
void bound_local_buffer(int fd);

/// Milliseconds for poll until `deadline`, rounded up, at least 0, at most `limit`.
int poll_timeout_ms(std::chrono::steady_clock::time_point deadline, int limit_ms);

/// Reads exactly data.size() bytes from a non-blocking socket. Errors: kDeadline; kPeerLost when
/// the other side closes; kIo.
Status read_exactly(int fd, std::span<std::byte> data,
                    std::chrono::steady_clock::time_point deadline);

/// Writes all bytes to a non-blocking socket. Errors: as read_exactly.
Status write_exactly(int fd, std::span<const std::byte> data,
                     std::chrono::steady_clock::time_point deadline);

/// True for errno values that mean that the other side is gone.
bool means_peer_gone(int error_number);

}  // namespace trainyard::comm
