#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/api/training_job.h"

/// The objects that stand beside a job's pods. Pure.
namespace trainyard::render {

/// The ownerReferences entry that makes the garbage collector take an object away with its job.
nlohmann::json owner_reference(const api::ObjectMeta& job);

/// Name, namespace, the job's labels and its ownership, of whatever stands beside its pods.
nlohmann::json companion_metadata(const api::ObjectMeta& job, const std::string& name);

/// Who says which addresses are behind a Service.
enum class Addresses {
  kOurs,      ///< the operator, in slices that it writes
  kSelected,  ///< Kubernetes, by the Service's selector
};

/// The headless Service under whose name the pods find each other, ready or not.
nlohmann::json render_service(const api::ObjectMeta& job, const api::TrainingJobSpec& spec,
                              Addresses addresses = Addresses::kOurs);

/// The immutable ConfigMap with the engine's configuration; spec.engine is there.
nlohmann::json render_engine_config(const api::ObjectMeta& job, const api::TrainingJobSpec& spec);

/// The ConfigMap with the authorities (PEM) that the job's agents trust; it may change.
nlohmann::json render_control_config(const api::ObjectMeta& job, const std::string& authorities);

/// The PodDisruptionBudget of a gang of `members` (more than one): one pod may be evicted at a
/// time, since its loss restarts all of them; pods that are not ready may always be.
nlohmann::json render_disruption_budget(const api::ObjectMeta& job, int64_t members);

}  // namespace trainyard::render
