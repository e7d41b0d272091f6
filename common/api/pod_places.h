#pragma once

#include <string>

#include "common/api/training_job.h"

/// Where the operator mounts something of its own into the container `trainer`.
namespace trainyard::api {

class FaultList;

inline constexpr char kEngineFolder[] = "/etc/trainyard";
inline constexpr char kControlFolder[] = "/var/run/trainyard/control";
/// Where the agent lies in the pods of other images, with all that it needs to run there.
inline constexpr char kAgentFolder[] = "/var/run/trainyard/agent";
inline constexpr char kCheckpointFolder[] = "/var/lib/trainyard/checkpoints";
inline constexpr char kShmFolder[] = "/dev/shm";

/// Folder of the job's checkpoints in its pods; empty where the job names no storage.
std::string checkpoint_folder(const ObjectMeta& job, const TrainingJobSpec& spec);

/// Refuses a template that puts something of its own where pods of the job find what the operator
/// gives them, or that takes from the operator's mounts what they are for: a job whose checkpoints
/// go to a volume of the template believes that they are in its storage. A template may bring its
/// own /dev/shm, if it can be written to. `path`: of the template.
void check_pod_places(const TrainingJob& job, const std::string& path, FaultList& faults);

}  // namespace trainyard::api
