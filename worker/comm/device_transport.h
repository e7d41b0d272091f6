#pragma once

#include <memory>

#include "common/base/error.h"
#include "worker/comm/communicator.h"
#include "worker/comm/groups.h"

namespace trainyard::comm {

/// Makes the groups of a step in the memory of a device, by a library that reaches the peers'
/// devices. It outlives them, and the device outlives it. One thread at a time, that of the device.
class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;
  /// Begins to make one of the ranks of `host`, which outlives it. To be used after open().
  virtual Result<std::unique_ptr<StepCommunicator>> make(Communicator& host, GroupUse use) = 0;
  /// After the last make(): blocks until every group can be used. Collective over the world.
  virtual Status open() = 0;
  /// After the last operation, collective over the world; after a failure each rank by itself.
  /// Blocks until the library has let go of the device, for at most a few deadlines. Errors: what
  /// kept the groups from ending as they should. The second call does nothing.
  virtual Status close() = 0;
  /// A call into the library does not return: nothing of the device can be freed, and the process
  /// should end without trying to.
  virtual bool is_stuck() const = 0;
};

}  // namespace trainyard::comm
