#include "common/http/listen_address.h"

#include <arpa/inet.h>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <netinet/in.h>
#include <optional>
#include <sys/socket.h>
#include <utility>

namespace trainyard::http {
namespace {

/// Connections that the kernel holds until they are accepted; scrapers are few.
constexpr int kBacklog = 64;
/// A free port of one family may be taken in the other.
constexpr int kPortTries = 16;

/// A socket address of either family.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  sockaddr* raw() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

Error bad_address(std::string_view text) {
  return {ErrorCode::kInvalidConfig,
          "address: found \"" + std::string(text) +
              "\", wanted HOST:PORT with a numeric host (127.0.0.1:9100, [::1]:9100), "
              "localhost:PORT or :PORT; port 0 takes a free one"};
}

Address ipv4(in_addr host, uint16_t port) {
  Address address;
  auto& in = reinterpret_cast<sockaddr_in&>(address.storage);
  in.sin_family = AF_INET;
  in.sin_addr = host;
  in.sin_port = htons(port);
  address.size = sizeof in;
  return address;
}

Address ipv6(const in6_addr& host, uint16_t port) {
  Address address;
  auto& in = reinterpret_cast<sockaddr_in6&>(address.storage);
  in.sin6_family = AF_INET6;
  in.sin6_addr = host;
  in.sin6_port = htons(port);
  address.size = sizeof in;
  return address;
}

std::optional<uint16_t> parse_port(std::string_view text) {
  unsigned port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || port > 65535) {
    return std::nullopt;
  }
  return static_cast<uint16_t>(port);
}

/// What is to be listened at, with the port in each.
Result<std::vector<Address>> parse(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad_address(text);
  const std::optional<uint16_t> port = parse_port(text.substr(colon + 1));
  if (!port) return bad_address(text);
  const std::string_view host = text.substr(0, colon);
  if (host.empty()) return std::vector{ipv6(in6addr_any, *port), ipv4({INADDR_ANY}, *port)};
  if (host == "localhost") {
    return std::vector{ipv4({htonl(INADDR_LOOPBACK)}, *port), ipv6(in6addr_loopback, *port)};
  }
  if (host.front() == '[' && host.back() == ']') {
    in6_addr number{};
    const std::string inner(host.substr(1, host.size() - 2));
    if (::inet_pton(AF_INET6, inner.c_str(), &number) != 1) return bad_address(text);
    return std::vector{ipv6(number, *port)};
  }
  in_addr number{};
  if (::inet_pton(AF_INET, std::string(host).c_str(), &number) != 1) return bad_address(text);
  return std::vector{ipv4(number, *port)};
}

uint16_t port_of(const Address& address) {
  if (address.family() == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address.storage).sin_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_port);
}

void set_port(Address& address, uint16_t port) {
  if (address.family() == AF_INET) {
    reinterpret_cast<sockaddr_in&>(address.storage).sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6&>(address.storage).sin6_port = htons(port);
  }
}

std::string text_of(const Address& address) {
  char host[INET6_ADDRSTRLEN] = {};
  if (address.family() == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address.storage);
    ::inet_ntop(AF_INET, &in.sin_addr, host, sizeof host);
    return std::string(host) + ":" + std::to_string(port_of(address));
  }
  const auto& in = reinterpret_cast<const sockaddr_in6&>(address.storage);
  ::inet_ntop(AF_INET6, &in.sin6_addr, host, sizeof host);
  return "[" + std::string(host) + "]:" + std::to_string(port_of(address));
}

/// Sets `port` to the one it got. The error is errno's number.
tl::expected<Listening, int> listen_one(Address address, uint16_t& port) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return tl::unexpected(errno);
  const int on = 1;
  // A run that has just ended leaves connections in TIME_WAIT; they must not keep its port.
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.family() == AF_INET6) {
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  }
  if (port != 0) set_port(address, port);
  if (::bind(fd.get(), address.raw(), address.size) != 0) return tl::unexpected(errno);
  if (::listen(fd.get(), kBacklog) != 0) return tl::unexpected(errno);
  if (::getsockname(fd.get(), address.raw(), &address.size) != 0) return tl::unexpected(errno);
  port = port_of(address);
  return Listening{std::move(fd), text_of(address)};
}

bool family_missing(int error_number) {
  return error_number == EAFNOSUPPORT || error_number == EADDRNOTAVAIL;
}

}  // namespace

Result<std::vector<Listening>> listen_at(std::string_view address) {
  TRAINYARD_ASSIGN(const std::vector<Address> wanted, parse(address));
  int failure = 0;
  for (int attempt = 0; attempt < kPortTries; ++attempt) {
    std::vector<Listening> opened;
    uint16_t port = port_of(wanted.front());
    const bool any_port = port == 0;
    bool port_taken = false;
    for (const Address& one : wanted) {
      auto listening = listen_one(one, port);
      if (listening) {
        opened.push_back(*std::move(listening));
        continue;
      }
      failure = listening.error();
      port_taken = failure == EADDRINUSE;
      if (!family_missing(failure)) break;
    }
    const bool whole = opened.size() == wanted.size() || family_missing(failure);
    if (!opened.empty() && !port_taken && whole) return opened;
    if (!any_port || !port_taken) break;
  }
  return Error{ErrorCode::kUnavailable, "listen at " + std::string(address) + ": " +
                                            std::strerror(failure) +
                                            "; use another port, or port 0 for one that is free"};
}

}  // namespace trainyard::http
