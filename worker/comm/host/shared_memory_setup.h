#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "common/base/error.h"
#include "common/base/unique_fd.h"
#include "worker/comm/host/control_frame.h"
#include "worker/comm/host/group.h"
#include "worker/comm/host/memory_segment.h"

namespace trainyard::comm {

/// Reads one frame from a control connection and no byte more. Errors: as read_exactly (socket.h)
/// and decode_control.
Result<ControlFrame> read_control_frame(int fd, std::chrono::steady_clock::time_point deadline);

/// Gives all members one shared memory. Member 0 makes it, as a memfd, and hands the descriptor to
/// the others over a Unix socket of an abstract, random name that it tells them on their control
/// connections; it is gone when all have it. Nothing has a name in a file system at any time.
/// `control` by member, invalid for the own one. Other users who ask for the memory get nothing.
/// Errors: kPeerLost naming the rank lost, or who gave up and why; kIo; as gave_up (group.h).
Result<std::shared_ptr<MemorySegment>> share_memory(const GroupIdentity& identity,
                                                    const std::vector<UniqueFd>& control,
                                                    std::chrono::steady_clock::time_point deadline);

}  // namespace trainyard::comm
