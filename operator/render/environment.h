#pragma once

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/api/pod_places.h"
#include "common/api/training_job.h"
#include "control/pod_spec.h"

namespace trainyard::render {

/// What every pod gets from the operator rather than from its job.
struct PodDefaults {
  /// Image of the container `trainer` where an engine's job names none, and of the agent that is
  /// put into other images.
  std::string worker_image;
  /// Where agents find the control stream ("host:port"); empty: this operator serves none.
  std::string control_address;
  std::string worker_image_pull_policy;  ///< empty: not said
  /// In place of worker_image for trainers of an engine on GPUs; empty: worker_image.
  std::string worker_gpu_image;
  std::string gpu_runtime_class;  ///< of the pods of an engine on GPUs; empty: not said
};

/// Whether the job's pods run an agent, which speaks the control stream.
bool runs_agent(const api::TrainingJobSpec& spec);

/// Where a pod finds what the operator gives it.
using api::kAgentFolder;
using api::kCheckpointFolder;
using api::kControlFolder;
using api::kEngineFolder;
inline constexpr char kEngineFile[] = "engine.json";
inline constexpr char kCheckpointPolicyFile[] = "checkpoint-policy.json";
inline constexpr char kAuthoritiesFile[] = "ca.crt";
inline constexpr char kTokenFile[] = "token";
/// Kubernetes' own place for the last words of a container.
inline constexpr char kTerminationLog[] = "/dev/termination-log";
/// Where an agent in a pod serves its metrics, unless the pod has its node's network.
inline constexpr int kAgentMetricsPort = 9400;

/// The reserved variables of the container `trainer`, as entries of a container's `env`, in an
/// order that does not change: those that hold everywhere (PodSpec::environment), torchrun's and
/// JAX's, the pod's own UID and address, and where configuration and checkpoints are. Where the
/// container's command is started once in each pod and a pod is one rank (numProcPerNode 1), RANK
/// and WORLD_SIZE and their kin are among them, too; otherwise the agent or a launcher in the pod
/// sets them. An agent also gets where its coordinator is, whom to trust, and the port of its
/// metrics (0: any that is free). Source: torchrun's "Environment Variables" and its PET_ options,
/// jax.distributed.initialize.
nlohmann::json environment_of(const api::ObjectMeta& job, const api::TrainingJobSpec& spec,
                              const control::PodSpec& pod, const PodDefaults& defaults,
                              int agent_port = kAgentMetricsPort);

}  // namespace trainyard::render
