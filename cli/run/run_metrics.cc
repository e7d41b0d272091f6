#include "cli/run/run_metrics.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "common/api/enum_names.h"
#include "common/api/job_size.h"
#include "control/telemetry/job_metrics.h"
#include "control/telemetry/rank_metrics.h"
#include "control/telemetry/server_metrics.h"

namespace trainyard::cli {
namespace {

using metrics::Exposition;
using metrics::Family;
using metrics::Kind;

constexpr Family kInfo{
    "trainyard_run_info", Kind::kGauge, "Always 1; tells the version that runs.", {"version"}};
constexpr std::array kFamilies = {kInfo};

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
  Exposition out(facts.job->metadata.name, facts.job->metadata.namespace_name);
  out.add(kInfo, {TRAINYARD_VERSION}, 1);
  control::add_job_metrics(out, facts.job->spec, status, now);
  control::KnownCheckpoint known_checkpoint;
  if (status.checkpoint) {
    known_checkpoint = {status.checkpoint->last_step, status.checkpoint->last_time};
  }
  const std::vector<control::RankReading> told =
      facts.readings->empty() ? silent_ranks(api::ranks_of(facts.job->spec)) : *facts.readings;
  control::add_rank_metrics(out, told, known_checkpoint, now);
  control::add_server_metrics(out, server);
  return out.text();
}

http::Health run_readiness(const RunFacts& facts) {
  const bool running = facts.status->phase == api::JobPhase::kRunning;
  return {running, running ? "ok" : "phase " + std::string(api::name_of(facts.status->phase))};
}

}  // namespace trainyard::cli
