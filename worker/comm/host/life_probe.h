#pragma once

#include <map>
#include <span>

#include "common/base/unique_fd.h"
#include "worker/comm/host/socket.h"

namespace trainyard::comm {

/// Tells whether ranks that have not connected yet are still there. A rank listens from before its
/// address is in the rank table until its process ends, so an address that refuses a connection, or
/// resets one, is that of a process that is gone; one that answers nothing may only be slow. Holds
/// at most one connection a rank, on which it says nothing. Not thread-safe.
class LifeProbe {
 public:
  /// `addresses` by global rank; outlives this.
  explicit LifeProbe(std::span<const SocketAddress> addresses) : addresses_(addresses) {}

  /// True if the process of this rank is known to be gone. Never blocks.
  bool gone(int rank);

 private:
  const std::span<const SocketAddress> addresses_;
  std::map<int, UniqueFd> connections_;
};

}  // namespace trainyard::comm
