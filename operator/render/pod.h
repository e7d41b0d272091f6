#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/api/training_job.h"
#include "control/pod_spec.h"
#include "operator/render/environment.h"

/// From a job and what the brain says of one pod to the Pod that is sent to the API server. Pure.
namespace trainyard::render {

/// The Pod: the job's template, and over it identity, labels, owner, environment and the defaults
/// that docs/reference/pods.md lists. What the template may not say (api/validate.h) is
/// overwritten. `spec` is valid and `pod` made from it (control::make_pod_spec).
nlohmann::json render_pod(const api::ObjectMeta& job, const api::TrainingJobSpec& spec,
                          const control::PodSpec& pod, const PodDefaults& defaults);

/// The labels by which a pod is the member of an index; those of a spare that becomes one.
nlohmann::json member_labels(int node_index);

/// Index in spec.containers of the container whose exit ends the pod: `trainer`, else the first.
size_t trainer_index(const nlohmann::json& pod_spec);

/// Which image of ours a job's pods have: as the trainer's, or as what brings the agent.
enum class WorkerImage { kNone, kCpu, kGpu };
/// `trainer`: of the template.
WorkerImage worker_image_of(const nlohmann::json& trainer, const api::TrainingJobSpec& job);
/// Its name; empty: none.
const std::string& name_of(WorkerImage image, const PodDefaults& defaults);

/// GPUs that the trainer of a pod gets beyond what its template asks for: one for each rank of an
/// engine on `device: Cuda` where the template asks for none in any way.
int64_t added_gpus(const nlohmann::json& trainer, const api::TrainingJobSpec& job);

}  // namespace trainyard::render
