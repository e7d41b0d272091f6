#pragma once

#include "common/log/log.h"

namespace trainyard::engine {

/// The life of one rank process: reads the environment of common/worker_contract.h, meets agent and
/// peers, trains, reports. Returns the process's exit code; every failure is logged with its
/// message. SIGTERM must be blocked in all threads before the call.
int run_rank(Logger& log);

}  // namespace trainyard::engine
