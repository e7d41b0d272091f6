#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/error.h"

namespace trainyard::http {

/// Bounds of one fetch.
struct FetchLimits {
  std::chrono::milliseconds timeout{5000};  ///< for all of it
  int64_t bytes_max = 64 << 20;             ///< of the answer, head included
};

/// The body of http://HOST:PORT/PATH by one GET; `address` is "host:port" ("[::1]:9100"), `path`
/// begins with a slash. Errors: kInvalidConfig for an address that is none; kUnavailable when
/// nobody answers there; kDeadline; kInvalidData for an answer that is no HTTP, too large, or not
/// 200.
Result<std::string> fetch(const std::string& address, const std::string& path,
                          const FetchLimits& limits = {});

}  // namespace trainyard::http
