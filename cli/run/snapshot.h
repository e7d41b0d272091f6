#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/run/run_view.h"
#include "common/api/training_job.h"
#include "common/base/time.h"
#include "common/worker_contract.h"
#include "control/coordinator/job_run.h"

/// What a run shows, made from what brain and coordinator know. Pure but for bits_per_byte.
namespace trainyard::cli {

/// What is known of a run at one moment.
struct RunFacts {
  const api::TrainingJob* job = nullptr;
  const api::TrainingJobStatus* status = nullptr;
  const std::vector<control::RankReading>* readings = nullptr;
  std::optional<contract::RunResult> result;
  bool stop_requested = false;
};

Snapshot make_snapshot(const RunFacts& facts, Time now);

/// `exit_code` and `outcome`: 0 complete; 64, 65 and 70 as the rank by whose end the job failed,
/// also where that used up a restart budget; 1 otherwise failed; 75 stopped.
Summary make_summary(const RunFacts& facts, Time now);

/// The condition of that type is True.
bool has_condition(const api::TrainingJobStatus& status, api::ConditionType type);

/// Validation loss in bits per byte of text: what the shards' headers say about tokens and bytes;
/// nullopt when they cannot be read.
std::optional<double> bits_per_byte(const std::vector<std::string>& shards, double loss);

}  // namespace trainyard::cli
