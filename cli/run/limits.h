#pragma once

#include <cstdint>
#include <string>

#include "common/api/training_job.h"
#include "common/base/error.h"
#include "worker/job/memory_plan.h"

namespace trainyard::cli {

/// Whether the system lets this process, its agents and its ranks have what they need whatever
/// they train: open files (the soft limit is raised where the hard one allows it), address space,
/// data, stacks, file size, processes and threads. Beyond such a limit programs end without a word
/// that a user could act on, or wait for threads that never began. Errors: kInvalidConfig naming
/// the limit, what was found, what is wanted and how to raise it.
Status check_limits(const api::TrainingJobSpec& spec);

/// Whether the limit of data leaves a rank `planned_bytes` beside what every process takes. Errors:
/// as check_limits.
Status check_rank_data(const api::TrainingJobSpec& spec, int64_t planned_bytes);

/// Whether the limits let each rank hold and write what `plan` says: file size, for its part of a
/// checkpoint, and data, for the largest. Errors: as check_limits.
Status check_planned(const api::TrainingJobSpec& spec, const engine::MemoryPlan& plan);

/// Of a limit of processor time, which ends each rank that has computed as long and, later, the run
/// itself; empty where none is set.
std::string doubt_of_cpu_time();

}  // namespace trainyard::cli
