#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/base/check.h"
#include "common/base/unique_fd.h"

namespace trainyard::testing_support {

/// A TCP port of this machine that nobody listens on now.
inline int free_port() {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  TRAINYARD_CHECK(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  TRAINYARD_CHECK(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return ntohs(address.sin_port);
}

}  // namespace trainyard::testing_support
