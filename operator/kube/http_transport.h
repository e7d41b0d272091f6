#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "operator/kube/config.h"
#include "operator/kube/transport.h"

namespace trainyard::kube {

struct HttpLimits {
  int64_t body_bytes_max = 64 << 20;  ///< a page of 500 pods of 100 KB
  int64_t line_bytes_max = 8 << 20;   ///< etcd stores objects of 1.5 MB
};

/// HTTP/1.1 over TLS 1.2 or newer with the config's authority alone, or over plain TCP. Connections
/// are reused; calls and watches have their own. A 401 leads to one more try where the token file
/// holds another token by then. TLS errors name host, authority and what its certificates say.
/// `clock` outlives it. Errors: kInvalidConfig for a server, certificate or key that cannot be
/// used.
Result<std::unique_ptr<Transport>> make_http_transport(const ServerConfig& config,
                                                       const Clock& clock,
                                                       const std::string& user_agent,
                                                       const HttpLimits& limits = {});

}  // namespace trainyard::kube
