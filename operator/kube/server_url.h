#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/error.h"

namespace trainyard::kube {

enum class Scheme { kHttp, kHttps };

/// Where an API server is.
struct ServerUrl {
  Scheme scheme = Scheme::kHttps;
  std::string host;  ///< a name or address; IPv6 without brackets
  uint16_t port = 443;
  std::string prefix;  ///< put before every path, without '/' at its end; often empty

  /// "https://host:port/prefix".
  std::string text() const;
};

/// Reads "https://host[:port][/prefix]". Errors: kInvalidConfig says what is wrong with the text.
Result<ServerUrl> parse_server_url(std::string_view text);

}  // namespace trainyard::kube
