#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "common/base/error.h"
#include "common/layout/layout.h"
#include "worker/comm/communicator.h"
#include "worker/device/device.h"

namespace trainyard::engine {

/// One tensor of the states, front to back, to rank 0 of the world alone, in pieces of whole rows
/// and about 8 MiB, from the ranks that Layout::owners() names. These call it, and rank 0; it does
/// nothing on others. `own`: what the caller owns of the tensor, in the memory of `device`.
/// `buffer` may be kept from call to call. Errors: those of the communicator and the device.
using UsePiece = std::function<void(std::span<const float> piece)>;
Status gather_pieces(comm::Communicator& world, const layout::Layout& layout, int param,
                     Device& device, std::span<const float> own, std::vector<float>& buffer,
                     const UsePiece& use);

/// A message from rank 0 to others of the world, which wait for it for up to an hour while rank 0
/// works; a lost rank ends the wait at once. Errors: those of the communicator; kDeadline.
Status tell(comm::Communicator& world, std::span<const int> ranks, std::span<std::byte> message);
Status tell_all(comm::Communicator& world, std::span<std::byte> message);
Status hear(comm::Communicator& world, std::span<std::byte> message);

}  // namespace trainyard::engine
