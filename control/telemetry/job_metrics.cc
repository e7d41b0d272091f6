#include "control/telemetry/job_metrics.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <string_view>

#include "common/api/enum_names.h"
#include "common/api/job_size.h"
#include "control/goodput/ledger.h"
#include "control/goodput/settle.h"

namespace trainyard::control {
namespace {

using metrics::Exposition;
using metrics::Family;
using metrics::Kind;

constexpr Family kPhase{"trainyard_job_phase",
                        Kind::kGauge,
                        "1 for the phase that the job is in, 0 for the others.",
                        {"phase"}};
constexpr Family kCondition{"trainyard_job_condition",
                            Kind::kGauge,
                            "1 for each condition of the job that is True, 0 for the others.",
                            {"condition"}};
constexpr Family kGeneration{"trainyard_job_generation", Kind::kGauge,
                             "Generation of the membership; rises with every restart and resize."};
constexpr Family kExpectedRanks{"trainyard_job_expected_ranks", Kind::kGauge,
                                "Ranks that the manifest wants; auto counts as one a node."};
constexpr Family kNodes{"trainyard_job_nodes",
                        Kind::kGauge,
                        "Nodes (pods) of the job. target: wanted now; active: neither ended nor "
                        "being deleted; ready: ready, with ranks that have not failed; spare: "
                        "ready to replace one.",
                        {"state"}};
constexpr Family kLayout{"trainyard_job_layout_info",
                         Kind::kGauge,
                         "Always 1; tells how the engine's ranks divide the work in the present "
                         "generation.",
                         {"layout"}};
constexpr Family kPipelineStages{"trainyard_job_pipeline_stages", Kind::kGauge,
                                 "Stages of the job's pipeline, whose ranks follow each other; 1 "
                                 "without one."};
constexpr Family kRestarts{"trainyard_restarts_total",
                           Kind::kCounter,
                           "Restarts of the job by the class of failure that caused them.",
                           {"class"}};
constexpr Family kPromotions{"trainyard_spare_promotions_total", Kind::kCounter,
                             "Spare pods that have taken the index of a lost pod."};
constexpr Family kLostSteps{"trainyard_lost_steps_total", Kind::kCounter,
                            "Steps that failures have undone, over the job's life."};
constexpr Family kWall{"trainyard_wall_seconds_total", Kind::kCounter,
                       "Time since the job's start, suspensions left out: what the categories of "
                       "trainyard_goodput_seconds_total add up to."};
constexpr Family kGoodput{"trainyard_goodput_seconds_total",
                          Kind::kCounter,
                          "Where the time went; category productive advanced the model.",
                          {"category"}};
constexpr Family kGoodputRatio{"trainyard_goodput_ratio", Kind::kGauge,
                               "Productive by wall time, 0 to 1."};
constexpr Family kSlowest{"trainyard_slowest_rank", Kind::kGauge,
                          "Rank that holds the others up most; -1 while none does."};
constexpr std::array kFamilies = {
    kPhase,    kCondition,  kGeneration, kExpectedRanks, kPipelineStages, kNodes,        kLayout,
    kRestarts, kPromotions, kLostSteps,  kWall,          kGoodput,        kGoodputRatio, kSlowest};

double number(int64_t value) { return static_cast<double>(value); }

void add_conditions(Exposition& out, const std::vector<api::Condition>& conditions) {
  for (const auto& entry : api::EnumTable<api::ConditionType>::kNames) {
    const bool holds =
        std::any_of(conditions.begin(), conditions.end(), [&](const api::Condition& condition) {
          return condition.type == entry.value && condition.status == api::ConditionStatus::kTrue;
        });
    out.add(kCondition, {entry.name}, holds ? 1 : 0);
  }
}

void add_restarts(Exposition& out, const api::RestartCounts& restarts) {
  for (const auto& entry : api::EnumTable<api::FailureClass>::kNames) {
    int64_t total = 0;
    for (const api::ClassRestarts& counted : restarts.classes) {
      if (counted.failure_class == entry.value) total = counted.total;
    }
    out.add(kRestarts, {entry.name}, number(std::max<int64_t>(0, total)));
  }
}

void add_goodput(Exposition& out, const api::GoodputStatus& goodput) {
  const auto seconds = [](std::chrono::milliseconds time) {
    return std::max(0.0, std::chrono::duration<double>(time).count());
  };
  const api::Badput& badput = goodput.badput;
  out.add(kLostSteps, {}, number(std::max<int64_t>(0, goodput.lost_steps)));
  out.add(kWall, {}, seconds(goodput.wall));
  out.add(kGoodput, {"productive"}, seconds(goodput.productive));
  out.add(kGoodput, {"queue"}, seconds(badput.queue));
  out.add(kGoodput, {"startup"}, seconds(badput.startup));
  out.add(kGoodput, {"rendezvous"}, seconds(badput.rendezvous));
  out.add(kGoodput, {"restore"}, seconds(badput.restore));
  out.add(kGoodput, {"checkpoint"}, seconds(badput.checkpoint));
  out.add(kGoodput, {"recompute"}, seconds(badput.recompute));
  out.add(kGoodput, {"stall"}, seconds(badput.stall));
  out.add(kGoodput, {"infra"}, seconds(badput.infra));
  out.add(kGoodputRatio, {}, goodput.ratio);
}

/// How long after a container's end it is known for certain. Counters must not go back: what is
/// shown as productive stays behind by as much.
constexpr std::chrono::seconds kEndsAreKnown{60};

/// The ledger of the status. For a program that reports no steps and runs whole it is continued
/// until a minute ago: the status is not written while such a program runs.
api::GoodputStatus goodput_at(Time now, const api::TrainingJobSpec& spec,
                              const api::TrainingJobStatus& status) {
  goodput::Ledger ledger(status.goodput.value_or(api::GoodputStatus{}));
  const bool over =
      status.phase == api::JobPhase::kComplete || status.phase == api::JobPhase::kFailed;
  // Of a whole gang none has failed: those that are counted are kept for their logs.
  const bool whole = std::any_of(status.conditions.begin(), status.conditions.end(),
                                 [](const api::Condition& condition) {
                                   return condition.type == api::ConditionType::kRunning &&
                                          condition.status == api::ConditionStatus::kTrue;
                                 });
  const bool ends = status.nodes.succeeded > 0 || (status.nodes.failed > 0 && !whole);
  const bool reports = spec.engine || (status.progress && status.progress->step > 0);
  if (reports || over || ends || !ledger.is_open()) return ledger.goodput();
  const StreamFacts nothing_told;
  goodput::settle(
      ledger,
      {&status, &nothing_told, /*reports_steps=*/false, /*stalled=*/false, now - kEndsAreKnown},
      std::nullopt);
  return ledger.goodput();
}

}  // namespace

std::span<const Family> job_families() { return kFamilies; }

void add_job_metrics(Exposition& out, const api::TrainingJobSpec& spec,
                     const api::TrainingJobStatus& status, Time now) {
  for (const auto& entry : api::EnumTable<api::JobPhase>::kNames)
    out.add(kPhase, {entry.name}, entry.value == status.phase ? 1 : 0);
  add_conditions(out, status.conditions);
  out.add(kGeneration, {}, number(status.membership.generation));
  out.add(kExpectedRanks, {}, number(api::ranks_of(spec)));
  out.add(kNodes, {"target"}, number(status.nodes.target));
  out.add(kNodes, {"active"}, number(status.nodes.active));
  out.add(kNodes, {"ready"}, number(status.nodes.ready));
  out.add(kNodes, {"spare"}, number(status.nodes.spare));
  const std::string& layout = status.membership.layout;
  if (!layout.empty()) out.add(kLayout, {layout}, 1);
  out.add(kPipelineStages, {}, number(spec.engine ? spec.engine->parallelism.pipeline : 1));
  add_restarts(out, status.restarts);
  out.add(kPromotions, {}, number(std::max<int64_t>(0, status.restarts.promotions)));
  add_goodput(out, goodput_at(now, spec, status));
  const bool known = status.progress && status.progress->slowest_rank;
  out.add(kSlowest, {}, known ? number(*status.progress->slowest_rank) : -1);
}

}  // namespace trainyard::control
