#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/api/training_job.h"
#include "common/base/error.h"
#include "control/local/local_cluster.h"

/// What a job's pod template says of the program that a local run starts instead of the engine's.
namespace trainyard::cli {

/// The container whose program the ranks run: `trainer`, or the only one; nullptr where there is
/// none.
const api::Container* trainer_container(const api::TrainingJobSpec& spec);

/// The argv of a foreign job's container: its command and arguments, references not expanded; empty
/// with engine. Errors: kInvalidConfig when there is neither engine nor command.
Result<std::vector<std::string>> foreign_command(const api::TrainingJobSpec& spec);

/// A variable of the environment of `trainyard run`; nullopt where it is not set.
using VariableHere = std::function<std::optional<std::string>(const std::string& name)>;
/// The text of a file that stands for a ConfigMap or Secret of envFrom, by that one's name.
using EnvFiles = std::map<std::string, std::string>;

/// The variables that the same container sets, those of envFrom first; none with engine. One whose
/// value comes from the cluster (valueFrom) has the value that it has here. Errors: kInvalidConfig
/// where it has none and must have one, where envFrom names what `files` does not have, and for a
/// line of a file that is no NAME=VALUE.
Result<std::vector<control::local::ProgramVariable>> foreign_environment(
    const api::TrainingJobSpec& spec, const VariableHere& here, const EnvFiles& files);

/// The workingDir of the container of a foreign program; empty where it names none.
std::string foreign_working_dir(const api::TrainingJobSpec& spec);

/// Whether this machine has the folders that the container takes for granted: its workingDir, and
/// where volumes are mounted, which a local run does not do. Errors: kInvalidConfig.
Status check_foreign_folders(const api::TrainingJobSpec& spec);

/// The fields of the template that change what happens in a cluster and that a local run leaves out
/// (other containers, initContainers, lifecycle ...), as paths; none with engine.
std::vector<std::string> unapplied_fields(const api::TrainingJobSpec& spec);

}  // namespace trainyard::cli
