#pragma once

#include <chrono>
#include <memory>

#include "common/base/error.h"
#include "worker/comm/device_transport.h"
#include "worker/comm/nccl_api.h"
#include "worker/device/device.h"

namespace trainyard::comm {

struct NcclOptions {
  /// A call into the library may take so long, an operation that has begun twice that.
  std::chrono::milliseconds deadline{30'000};
  /// For the host's groups to name a lost peer before an error of the library counts.
  std::chrono::milliseconds grace{2'000};
  /// Instead of the library that the machine has; not owned.
  const nccl::Api* api = nullptr;
};

/// A communicator of NCCL on CTAs of the GPU: as many at most, so that those of one rank fit beside
/// each other on GPUs with 32 multiprocessors or more.
inline constexpr int kNcclCollectiveCtas = 16;
inline constexpr int kNcclMessageCtas = 4;

/// Groups by NCCL: collectives one after another on one stream, each group of messages on one of
/// its own, ahead of the device's other work. Sums of integers have the bits of any transport;
/// NCCL adds floating point in an order of its own, so such sums fail with kInvalidConfig. A step
/// has none.
///
/// Blocks until all ranks of `world`, which outlives it as does `device`, have come. Errors:
/// kInvalidConfig where the library is missing or too old; kUnavailable (its own); kDeadline; those
/// of the world, which any error aborts, so that all ranks know it.
Result<std::unique_ptr<DeviceTransport>> make_nccl_transport(engine::Device& device,
                                                             Communicator& world,
                                                             const NcclOptions& options);

}  // namespace trainyard::comm
