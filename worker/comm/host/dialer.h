#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include "common/base/error.h"
#include "common/base/unique_fd.h"
#include "worker/comm/host/group.h"
#include "worker/comm/host/handshake.h"
#include "worker/comm/host/socket.h"

namespace trainyard::comm {

/// A connection to be made: to whom, with which words, and the socket once that is done.
struct Dial {
  int rank = 0;  ///< global
  SocketAddress address;
  Hello hello;
  UniqueFd fd;
};

/// Makes all connections at the same time; after a failure only for a moment longer, and what was
/// made by then is kept, so that those peers can be told why. Errors, as a failure that names the
/// ranks lost: kPeerLost (refused by its machine, closed, silent until `deadline`, or an answer
/// that no rank gives), kConflict (the peer refuses, with its reason, does not prove that it has
/// the key, or runs another version), kIo. `key`: that of the generation, which both sides then
/// prove to have; empty in an open one.
Status dial_all(std::vector<Dial>& dials, std::span<const std::byte> key,
                std::chrono::steady_clock::time_point deadline, std::vector<int>& lost);

}  // namespace trainyard::comm
