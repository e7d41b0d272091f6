#pragma once

#include <cstdint>
#include <optional>

#include "common/api/training_job.h"

namespace trainyard::api {

/// The bytes that the manifest lets the container `trainer` of a pod have (resources.limits.memory
/// of its template); nothing where it sets no limit.
std::optional<int64_t> trainer_memory_limit(const TrainingJobSpec& spec);

}  // namespace trainyard::api
