#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "worker/job/plan.h"

/// The plan of a job, and whether it fits where its ranks are to run.
namespace trainyard::engine {

/// Where the ranks of a job run, as far as it decides what they hold.
struct JobPlace {
  int64_t ranks = 1;     ///< of the job
  bool one_host = true;  ///< all of them
  int threads = 1;       ///< of each rank
  bool writes_checkpoints = true;
};

/// The plan of a complete spec at its own ZeRO stage. Errors: kInvalidConfig naming the field, for
/// ranks that cannot share the job and for sizes beyond what is counted here.
Result<Plan> plan_job(const api::EngineSpec& spec, const JobPlace& place);

/// What the ranks on one machine may hold.
struct MemoryRoom {
  int64_t machine_bytes = std::numeric_limits<int64_t>::max();
  /// Of the control group around this process, where that is less than the machine has; else what
  /// the kernel says is available now (MemAvailable of /proc/meminfo).
  int64_t bytes = std::numeric_limits<int64_t>::max();
  bool limited = false;                                         ///< by a control group
  int64_t process_bytes = std::numeric_limits<int64_t>::max();  ///< RLIMIT_AS, of each rank
};
MemoryRoom memory_room();

/// Whether `ranks` of the plan fit into the room together. Under memoryCheck Warn what does not fit
/// is returned as a warning; empty: all fits. Errors, under Refuse: kInvalidConfig for what the
/// machine or its limits can never hold, kUnavailable for what they cannot hold now; both name the
/// sizes and what to change.
Result<std::string> check_memory(const Plan& plan, layout::Range ranks, const api::EngineSpec& spec,
                                 const MemoryRoom& room);

/// Whether each rank's part of a checkpoint may be as large as it will be (RLIMIT_FSIZE). Errors:
/// kInvalidConfig naming both sizes.
Status check_file_size(const Plan& plan);

}  // namespace trainyard::engine
