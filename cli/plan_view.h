#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/report/timeline.h"
#include "common/base/error.h"
#include "worker/job/job_plan.h"
#include "worker/job/step_timeline.h"

/// What `trainyard plan` shows of a job's plan. Pure.
namespace trainyard::cli {

/// One ZeRO stage beside the others; without a plan where it cannot be had, and why.
struct StagePlan {
  std::optional<engine::MemoryPlan> plan;
  std::string refusal;
};

struct JobPlan {
  std::string name;
  api::EngineSpec spec;
  int64_t ranks = 1;
  std::vector<StagePlan> stages;
  std::string layout;
  std::string doubt;           ///< why this machine does not hold it; empty: it does
  std::string sharding_doubt;  ///< why another ZeRO stage would serve better; empty: none
  std::optional<int64_t> pod_limit;
  std::string pod_doubt;  ///< why that is too little; empty: it is not
  engine::MemoryRoom room;

  int own() const { return static_cast<int>(spec.parallelism.zero_stage); }
  const engine::MemoryPlan& own_plan() const { return *stages[static_cast<size_t>(own())].plan; }
};

/// Bytes of model states per parameter in mixed precision with Adam, none of them divided
/// (Rajbhandari et al. 2020, section 3.1).
inline constexpr int64_t kPublishedStateBytes = 16;

/// Transformer blocks of each stage of the pipeline: neither the embedding nor the head is one.
std::vector<int64_t> blocks_of(const layout::StageMap& stages);
/// What each stage computes, in parts of all.
std::vector<double> shares_of(const engine::MemoryPlan& plan);
/// How a pipeline is cut, in a sentence; empty: there is none.
std::string cut_text(const engine::MemoryPlan& plan);

/// The table of bytes, FLOPs and messages of the largest rank, by ZeRO stage.
std::string plan_text(const JobPlan& job);
/// The table's bytes as a bar chart.
std::string plan_svg(const JobPlan& job);
/// All of it for programs (docs/formats/plan.md). `rank`: whose whole program is listed; nobody's
/// where that is empty.
std::string plan_json(const JobPlan& job, std::optional<int> rank);

/// The schedule of a step as a simulation runs it. Errors: those of simulate().
Result<Timeline> planned_timeline(const engine::MemoryPlan& plan, engine::PassCosts costs);
/// The timeline in letters, with the formula of its bubble.
std::string program_text(const engine::MemoryPlan& plan, engine::PassCosts costs,
                         const Timeline& timeline, int columns);
/// A rank's whole program, one instruction per line.
std::string program_list(const engine::MemoryPlan& plan, int rank);

}  // namespace trainyard::cli
