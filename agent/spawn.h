#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

#include "common/base/error.h"

namespace trainyard::agent {

/// A program to start.
struct SpawnRequest {
  std::vector<std::string> argv;         ///< argv[0] is looked up in PATH unless it has a slash
  std::vector<std::string> environment;  ///< NAME=value; nothing else is inherited
  int stdout_fd = -1;
  int stderr_fd = -1;
  std::vector<int> inherited_fds;  ///< become 3, 4, ... in the program; all others are closed
};

/// First descriptor number that inherited_fds get.
inline constexpr int kFirstInheritedFd = 3;

/// Forks and executes. The child dies with the calling *thread* (PR_SET_PDEATHSIG): call it on one
/// that lives as long as the process. It stays in the caller's process group, has default signal
/// handlers (an ignored SIGHUP stays ignored), an empty signal mask and /dev/null as standard
/// input. Between fork and exec only async-signal-safe calls are made: other threads may hold any
/// lock. Errors: kInvalidConfig when there is no such program or it cannot be executed (the message
/// names it); kIo.
Result<pid_t> spawn(const SpawnRequest& request);

}  // namespace trainyard::agent
