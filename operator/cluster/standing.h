#pragma once

#include "common/api/training_job.h"

/// Where a job stands, to whoever keeps something beside its pods.
namespace trainyard::cluster {

/// It has ended or is to: no pod is made again unless it is resumed.
bool is_over(const api::TrainingJobStatus& status);

/// Whether somebody has made what stands beside the pods before this process was asked to: a gang
/// is whole only after that, and a second generation follows a first.
bool stand_already(const api::TrainingJobStatus& status);

}  // namespace trainyard::cluster
