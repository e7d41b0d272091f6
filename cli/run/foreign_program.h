#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/api/training_job.h"
#include "common/base/error.h"

/// What a job's pod template says of the program that a local run starts instead of the engine's.
/// Pure.
namespace trainyard::cli {

/// The container whose program the ranks run: `trainer`, or the only one; nullptr where there is
/// none.
const api::Container* trainer_container(const api::TrainingJobSpec& spec);

/// The argv of a foreign job's container: its command and arguments; empty with engine.
/// Errors: kInvalidConfig when there is neither engine nor command.
Result<std::vector<std::string>> foreign_command(const api::TrainingJobSpec& spec);

/// The variables that the same container sets; none with engine. One whose value comes from the
/// cluster (valueFrom) is not among them: it stays what it is for `trainyard run`. Errors:
/// kInvalidConfig where `is_set_here` says that it is nothing there, and it must be something.
Result<std::map<std::string, std::string>> foreign_environment(
    const api::TrainingJobSpec& spec,
    const std::function<bool(const std::string& name)>& is_set_here);

}  // namespace trainyard::cli
