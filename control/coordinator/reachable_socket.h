#pragma once

#include <cstdint>
#include <string>

#include "common/base/error.h"
#include "common/base/unique_fd.h"

namespace trainyard::control {

/// Longest path that sockaddr_un holds with its terminating zero (unix(7)).
inline constexpr int64_t kMaxSocketPathBytes = 107;

/// A Unix socket's path in a form that the system takes. A longer one is reached through a
/// descriptor of its folder, /proc/self/fd/N/NAME, so that a socket may lie in any run directory.
class ReachableSocket {
 public:
  /// Errors: kInvalidConfig for a file name that is itself too long; kIo where the folder of a long
  /// path cannot be opened.
  static Result<ReachableSocket> at(const std::string& path);

  /// What to bind or connect to; good while this object lives, in this process only.
  const std::string& path() const { return path_; }

 private:
  ReachableSocket(std::string path, UniqueFd folder)
      : path_(std::move(path)), folder_(std::move(folder)) {}

  std::string path_;
  UniqueFd folder_;
};

}  // namespace trainyard::control
