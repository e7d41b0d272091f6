#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "common/api/engine_spec.h"
#include "common/api/training_job.h"
#include "common/base/error.h"
#include "worker/device/cpu_device.h"
#include "worker/job/memory_plan.h"

/// The plan of a job, and whether it fits where its ranks are to run.
namespace trainyard::engine {

/// Where the ranks of a job run, as far as it decides what they hold.
struct JobPlace {
  int64_t ranks = 1;                                    ///< of the job
  bool one_host = true;                                 ///< all of them
  int64_t kernel_scratch_bytes = cpu_scratch_bytes(1);  ///< of each rank
  bool writes_checkpoints = true;
  bool keeps_states = false;  ///< in memory
  /// Ranks of a node, of whose states the next node keeps copies as well; 0: none does.
  int64_t ranks_with_copies = 0;
  int64_t trace_ring_bytes = 0;  ///< of each track of a rank that keeps its spans; 0: none does
};

/// Whether the ranks of a job keep states in memory.
bool keeps_states(const api::TrainingJobSpec& job);
/// As JobPlace::ranks_with_copies.
int64_t ranks_with_copies(const api::TrainingJobSpec& job);

/// The plan of a complete spec at its own ZeRO stage. Errors: kInvalidConfig naming the field, for
/// ranks that cannot share the job and for sizes beyond what is counted here.
Result<MemoryPlan> plan_job(const api::EngineSpec& spec, const JobPlace& place);

/// What the ranks on one machine may hold.
struct MemoryRoom {
  /// What they can never exceed: the machine's memory, or a control group's limit.
  int64_t limit_bytes = std::numeric_limits<int64_t>::max();
  /// What is left now: the least of what the kernel says is available (MemAvailable of
  /// /proc/meminfo) and of the room in each control group around this process.
  int64_t bytes = std::numeric_limits<int64_t>::max();
  const char* whose = " of memory that this machine has available";  ///< `bytes`, in messages
  int64_t process_bytes = std::numeric_limits<int64_t>::max();       ///< RLIMIT_AS, of each rank
};
/// Reads it. `started`: how many of the ranks run already, each with as much of its own as this
/// process: that is part of their plan and counts as free.
MemoryRoom memory_room(int64_t started = 0);

/// Whether `ranks` of the plan fit into the room together. Under memoryCheck Warn what does not fit
/// is returned as a warning; empty: all fits. Errors, under Refuse: kInvalidConfig for what the
/// machine or its limits can never hold, kUnavailable for what they cannot hold now; both name the
/// sizes and what to change.
Result<std::string> check_memory(const MemoryPlan& plan, layout::Range ranks,
                                 const api::EngineSpec& spec, const MemoryRoom& room);

/// Whether the job's largest rank fits on a GPU of so much memory: as check_memory. The error names
/// what the rank's memory is for.
Result<std::string> check_gpu_memory(const MemoryPlan& plan, const api::EngineSpec& spec,
                                     int64_t memory_bytes);

/// Whether the ranks of each pod fit into what the manifest lets its container `trainer` have,
/// where it sets a limit: as check_memory. `complete`: the engine that was planned.
Result<std::string> check_pod_memory(const MemoryPlan& plan, const api::TrainingJobSpec& job,
                                     const api::EngineSpec& complete);

/// Whether ranks of this job compute on CPUs only where they find no GPU, of which they may find
/// `gpus`: what does not fit on CPUs may fit there.
inline bool may_find_gpus(const api::EngineSpec& engine, int64_t gpus) {
  return engine.device == api::DeviceKind::kAuto && gpus > 0;
}
/// Begins the warning that takes the place of a refusal then.
inline constexpr char kOnCpus[] = "if engine.device: Auto chooses CPUs, the job does not fit: ";

/// Whether they fit.
bool fits_pods(const MemoryPlan& plan, const api::TrainingJobSpec& job);

/// What ZeRO stages 2 and 3 make a pipeline send, where stage 1 fits into `room` as well; empty
/// where that is not so. For people.
std::string sharding_doubt(const MemoryPlan& plan, const MemoryPlan& at_stage_1,
                           const MemoryRoom& room);

/// Whether each rank's part of a checkpoint may be as large as it will be (RLIMIT_FSIZE). Errors:
/// kInvalidConfig naming both sizes.
Status check_file_size(const MemoryPlan& plan);

}  // namespace trainyard::engine
