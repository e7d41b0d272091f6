#pragma once

#include <memory>

#include "common/base/error.h"
#include "worker/comm/host/group.h"
#include "worker/comm/host/transport.h"

namespace trainyard::comm {

/// Brings the members of a group together. Thread-safe.
class Connector {
 public:
  virtual ~Connector() = default;

  /// Collective over the members of `group` (at least two): blocks until all have come, at most the
  /// group's deadline, attaches the control plane and the transport to the group, and returns the
  /// transport. Errors: kPeerLost naming who did not come or is lost, kConflict for a peer of
  /// another job, generation or protocol, kIo.
  virtual Result<std::shared_ptr<Transport>> connect(const std::shared_ptr<Group>& group) = 0;
};

}  // namespace trainyard::comm
