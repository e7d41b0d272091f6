#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "common/base/unique_fd.h"

namespace trainyard::http {

/// A listening socket and the address that it got.
struct Listening {
  UniqueFd fd;
  std::string address;  ///< "127.0.0.1:9100", "[::1]:9100"
};

/// Listens at `address`: "127.0.0.1:9100", "[::1]:9100", "localhost:9100" (IPv4 and IPv6) or
/// ":9100" (all addresses of both). Port 0: one that is free, the same for both families. A family
/// that the machine lacks is left out where the other one works. Sockets are non-blocking and
/// close-on-exec. Errors: kInvalidConfig for text that is no such address; kUnavailable when the
/// port is taken or the address is not this machine's.
Result<std::vector<Listening>> listen_at(std::string_view address);

}  // namespace trainyard::http
