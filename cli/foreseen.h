#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "common/api/training_job.h"
#include "common/base/error.h"

namespace trainyard::cli {

/// What is known of a job before it runs.
struct Foreseen {
  std::string doubt;             ///< a warning; empty: none
  std::string cut;               ///< how a pipeline is cut; empty: there is none
  std::optional<double> bubble;  ///< of a pipeline
  std::string rates;             ///< the learning rates of a complete run that is trained further
};

/// Of a job that is to run in `run_dir`, with a trace or without. Its ranks may find so many
/// `gpus`. Errors: what they would refuse, before the run directory says anything of it; with
/// device Auto, memory that is too small only where there are no GPUs.
Result<Foreseen> foresee(const api::TrainingJob& job, const std::filesystem::path& run_dir,
                         bool traces, int64_t gpus);

}  // namespace trainyard::cli
