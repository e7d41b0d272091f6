#pragma once

#include <filesystem>
#include <mutex>
#include <string>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "operator/kube/config.h"

namespace trainyard::kube {

/// The bearer token of a config: the fixed one, or a file's, read again when it is older than
/// kTokenAge and when the server has refused it. Thread-safe.
class TokenSource {
 public:
  /// Kubelets write a new token after 80 % of its life (an hour, mostly); client-go reads each
  /// minute.
  static constexpr Duration kTokenAge = std::chrono::seconds(60);

  /// `clock` outlives it.
  TokenSource(const ServerConfig& config, const Clock& clock);

  /// The token; empty: there is none. A file that cannot be read now gives the last token that
  /// could be. Errors: kUnavailable where there never was one.
  Result<std::string> token();

  /// The server answered 401 to `refused`: reads the file now, unless that has happened meanwhile.
  /// Whether there is another token, with which to try again.
  bool renew(const std::string& refused);

 private:
  Status read_locked();

  const Clock& clock_;
  const std::filesystem::path file_;
  std::mutex mutex_;
  std::string token_;  ///< the last that was read, or the fixed one
  MonoTime read_at_{};
};

}  // namespace trainyard::kube
