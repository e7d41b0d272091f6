#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "common/base/unique_fd.h"

namespace trainyard::testing_support {

/// A connection to "127.0.0.1:PORT" or "[::1]:PORT"; not valid when it could not be made.
UniqueFd connect_to(std::string_view address);

/// Everything that comes until the other side closes or `timeout` is over.
std::string read_to_end(int fd, std::chrono::milliseconds timeout);

/// Sends raw bytes; false when the connection is gone.
bool send_text(int fd, std::string_view text);

struct HttpAnswer {
  int status = 0;  ///< 0: none came
  std::string head;
  std::string body;
};

/// One request with a connection of its own; a body is JSON.
HttpAnswer http_request(std::string_view address, std::string_view method, std::string_view target,
                        std::chrono::milliseconds timeout = std::chrono::seconds(60),
                        std::string_view body = {});
inline HttpAnswer http_get(std::string_view address, std::string_view target) {
  return http_request(address, "GET", target);
}

}  // namespace trainyard::testing_support
