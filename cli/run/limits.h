#pragma once

#include "common/api/training_job.h"
#include "common/base/error.h"

namespace trainyard::cli {

/// Whether the system lets this process, its agents and its ranks have what they need whatever
/// they train: open files (the soft limit is raised where the hard one allows it), address space,
/// stacks, file size, processes and threads. Beyond such a limit programs end without a word that a
/// user could act on, or wait for threads that never began. Errors: kInvalidConfig naming the
/// limit, what was found, what is wanted and how to raise it.
Status check_limits(const api::TrainingJobSpec& spec);

}  // namespace trainyard::cli
