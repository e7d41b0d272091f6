#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "common/worker_contract.h"
#include "control/coordinator/job_run.h"

/// What a rank's counters come to. Pure.
namespace trainyard::cli {

/// One rank's figures between two states.
struct RankFigures {
  double tokens_per_second = 0;                         ///< trained by this rank alone
  double step_s = 0;                                    ///< mean of the steps between
  std::array<double, contract::kStages> stage_share{};  ///< of the loop's time; sum 1, or all 0
};

/// Between `before` and `now`, or since the rank's process began where `before` is nullptr, of
/// another process, or no step lies between.
RankFigures figures_of(const control::RankReading& now, const control::RankReading* before);

/// Memory in use on the rank's GPU; 0: it has none, or it is not known.
int64_t gpu_bytes(const control::RankReading& rank);

/// The stage of the pipeline that a rank has, of so many ranks; nullopt: no pipeline, or ranks that
/// are not known. The ranks of a stage follow each other.
std::optional<int64_t> pipeline_stage(int64_t rank, int64_t ranks, int64_t stages);

}  // namespace trainyard::cli
