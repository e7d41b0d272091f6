#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "operator/kube/config.h"
#include "operator/kube/transport.h"

namespace trainyard::kube {

struct HttpLimits {
  int64_t body_bytes_max =
      16 << 20;  ///< a page of 500 pods of 30 KB; parsed it is several times that
  int64_t line_bytes_max = 8 << 20;  ///< an object of etcd's 1.5 MB, escaped
};

/// HTTP/1.1 over TLS 1.2 or newer, or over plain TCP without an identity (docs/adr/0008). Calls
/// share connections; a watch has its own. A 401 leads to one more try where the token file holds
/// another token by then. TLS errors say what was refused, whom we trust and until when. Network
/// thread: one for the whole process, made by the first call. `clock` outlives the transport.
/// Errors: kInvalidConfig for a server, certificate or key that cannot be used.
Result<std::unique_ptr<Transport>> make_http_transport(const ServerConfig& config,
                                                       const Clock& clock,
                                                       const std::string& user_agent,
                                                       const HttpLimits& limits = {});

/// Before a process ends: waits, at most `limit`, until the network thread has put away the
/// requests that have ended or were given up; whether they have. What is left to them would be a
/// race while static objects go, and to a leak checker a leak.
bool await_network_idle(Duration limit);

}  // namespace trainyard::kube
