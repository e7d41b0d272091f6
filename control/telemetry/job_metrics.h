#pragma once

#include <span>

#include "common/api/training_job.h"
#include "common/base/time.h"
#include "common/metrics/exposition.h"

/// The series about a job as a whole, made of its status: the same from `trainyard run` (of its one
/// job) and from the operator (of every job). docs/reference/metrics.md lists them.
namespace trainyard::control {

/// Every family that add_job_metrics may show.
std::span<const metrics::Family> job_families();

/// Shows the job that `out` is about, as it is at `now`. All series are there from the start, as
/// zeros.
void add_job_metrics(metrics::Exposition& out, const api::TrainingJobSpec& spec,
                     const api::TrainingJobStatus& status, Time now);

}  // namespace trainyard::control
