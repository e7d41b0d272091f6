#include "cli/run/run_metrics.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "common/api/enum_names.h"
#include "control/telemetry/rank_metrics.h"
#include "control/telemetry/server_metrics.h"

namespace trainyard::cli {
namespace {

using metrics::Exposition;
using metrics::Family;
using metrics::Kind;

constexpr Family kInfo{
    "trainyard_run_info", Kind::kGauge, "Always 1; tells the version that runs.", {"version"}};
constexpr Family kPhase{"trainyard_job_phase",
                        Kind::kGauge,
                        "1 for the phase that the job is in, 0 for the others.",
                        {"phase"}};
constexpr Family kGeneration{"trainyard_job_generation", Kind::kGauge,
                             "Generation of the membership; rises with every restart and resize."};
constexpr Family kExpectedRanks{"trainyard_job_expected_ranks", Kind::kGauge,
                                "Ranks that the manifest wants."};
constexpr Family kRestarts{"trainyard_restarts_total",
                           Kind::kCounter,
                           "Restarts of the job by the class of failure that caused them.",
                           {"class"}};
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
constexpr std::array kFamilies = {kInfo,      kPhase, kGeneration, kExpectedRanks, kRestarts,
                                  kLostSteps, kWall,  kGoodput,    kGoodputRatio,  kSlowest};

int64_t ranks_of(const api::TrainingJobSpec& spec) {
  return spec.num_nodes * std::max<int64_t>(1, spec.num_proc_per_node);
}

void add_restarts(Exposition& out, const api::RestartCounts& restarts) {
  for (const auto& entry : api::EnumTable<api::FailureClass>::kNames) {
    int64_t total = 0;
    for (const api::ClassRestarts& counted : restarts.classes) {
      if (counted.failure_class == entry.value) total = counted.total;
    }
    out.add(kRestarts, {entry.name}, static_cast<double>(total));
  }
}

void add_goodput(Exposition& out, const api::GoodputStatus& goodput) {
  const auto seconds = [](std::chrono::milliseconds time) {
    return std::chrono::duration<double>(time).count();
  };
  const api::Badput& badput = goodput.badput;
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

/// What ranks say that have said nothing yet.
std::vector<control::RankReading> silent_ranks(int64_t count) {
  std::vector<control::RankReading> silent;
  const auto shown = static_cast<int64_t>(control::kMaxRankSeries);
  for (int64_t rank = 0; rank < std::min(count, shown); ++rank) {
    control::RankReading reading;
    reading.rank = static_cast<int>(rank);
    reading.loss = std::numeric_limits<double>::quiet_NaN();
    reading.validation_loss = reading.loss;
    silent.push_back(reading);
  }
  return silent;
}

}  // namespace

std::span<const Family> run_families() { return kFamilies; }

std::string run_metrics_text(const RunFacts& facts, const http::ServerCounters& server, Time now) {
  const api::TrainingJobStatus& status = *facts.status;
  const int64_t ranks = ranks_of(facts.job->spec);
  Exposition out(facts.job->metadata.name);
  out.add(kInfo, {TRAINYARD_VERSION}, 1);
  for (const auto& entry : api::EnumTable<api::JobPhase>::kNames)
    out.add(kPhase, {entry.name}, entry.value == status.phase ? 1 : 0);
  out.add(kGeneration, {}, static_cast<double>(status.membership.generation));
  out.add(kExpectedRanks, {}, static_cast<double>(ranks));
  add_restarts(out, status.restarts);
  const api::GoodputStatus goodput = status.goodput.value_or(api::GoodputStatus{});
  out.add(kLostSteps, {}, static_cast<double>(goodput.lost_steps));
  add_goodput(out, goodput);
  const bool known = status.progress && status.progress->slowest_rank;
  out.add(kSlowest, {}, known ? static_cast<double>(*status.progress->slowest_rank) : -1);
  control::KnownCheckpoint known_checkpoint;
  if (status.checkpoint) {
    known_checkpoint = {status.checkpoint->last_step, status.checkpoint->last_time};
  }
  const std::vector<control::RankReading> told =
      facts.readings->empty() ? silent_ranks(ranks) : *facts.readings;
  control::add_rank_metrics(out, told, known_checkpoint, now);
  control::add_server_metrics(out, server);
  return out.text();
}

http::Health run_readiness(const RunFacts& facts) {
  const bool running = facts.status->phase == api::JobPhase::kRunning;
  return {running, running ? "ok" : "phase " + std::string(api::name_of(facts.status->phase))};
}

}  // namespace trainyard::cli
