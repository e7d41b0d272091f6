#pragma once

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/api/training_job.h"
#include "control/pod_spec.h"

namespace trainyard::render {

/// Where a pod finds what the operator gives it.
inline constexpr char kEngineFolder[] = "/etc/trainyard";
inline constexpr char kEngineFile[] = "engine.json";
inline constexpr char kCheckpointPolicyFile[] = "checkpoint-policy.json";
inline constexpr char kCheckpointFolder[] = "/var/lib/trainyard/checkpoints";

/// The reserved variables of the container `trainer`, as entries of a container's `env`, in an
/// order that does not change: those that hold everywhere (PodSpec::environment), torchrun's and
/// JAX's, the pod's own UID and address, and where configuration and checkpoints are. Where the
/// container's command is started once in each pod and a pod is one rank (numProcPerNode 1), RANK
/// and WORLD_SIZE and their kin are among them, too; otherwise a launcher in the pod sets them.
/// Source: torchrun's "Environment Variables" and its PET_ options, jax.distributed.initialize.
nlohmann::json environment_of(const api::ObjectMeta& job, const api::TrainingJobSpec& spec,
                              const control::PodSpec& pod);

/// Folder of the job's checkpoints in its pods; empty where the job names no storage.
std::string checkpoint_folder(const api::ObjectMeta& job, const api::TrainingJobSpec& spec);

}  // namespace trainyard::render
