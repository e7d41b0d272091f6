#pragma once

#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "common/api/training_job.h"
#include "control/observed.h"

namespace trainyard::cluster {

/// Whether pods of several nodes will write to the claim of `checkpointPolicy.storage`.
bool needs_shared_storage(const api::TrainingJobSpec& spec);

/// StorageNotShared for a PersistentVolumeClaim that pods of one node alone may write to; nullopt
/// for one that all may, and for an object that does not say.
std::optional<control::Refusal> judge_claim(const nlohmann::json& claim,
                                            const api::TrainingJobSpec& spec);

}  // namespace trainyard::cluster
