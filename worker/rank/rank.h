#pragma once

#include "common/log/log.h"
#include "worker/device/cuda_device.h"

namespace trainyard::engine {

/// The life of one rank process: reads the environment of common/worker_contract.h, meets agent and
/// peers, trains, reports. Returns the process's exit code; every failure is logged with its
/// message. Blocks signals of the process, so that no other thread may run before the call. `cuda`:
/// null in a program that was built without it.
int run_rank(Logger& log, const CudaSupport* cuda);

}  // namespace trainyard::engine
