#include "control/telemetry/rank_metrics.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <string>
#include <vector>

namespace trainyard::control {
namespace {

using metrics::Exposition;
using metrics::Family;
using metrics::Kind;

// What the model has come to, as the lowest rank tells it.
constexpr Family kStep{"trainyard_step", Kind::kGauge,
                       "Optimizer steps completed; falls back when a restart repeats steps."};
constexpr Family kStepTarget{"trainyard_step_target", Kind::kGauge,
                             "Optimizer steps the job is to complete; 0 before it is known."};
constexpr Family kSamples{"trainyard_consumed_samples", Kind::kGauge,
                          "Position in the data order: samples behind the model's state."};
constexpr Family kTokens{"trainyard_consumed_tokens", Kind::kGauge,
                         "Position in the data order: tokens behind the model's state."};
// Checkpoints, whole.
constexpr Family kCheckpointStep{"trainyard_checkpoint_step", Kind::kGauge,
                                 "Step of the newest committed checkpoint; -1 before the first."};
constexpr Family kCheckpointTime{
    "trainyard_checkpoint_timestamp_seconds", Kind::kGauge,
    "When the newest checkpoint was committed, Unix time; 0 while that is not known."};
constexpr Family kCheckpointAge{
    "trainyard_checkpoint_age_seconds", Kind::kGauge,
    "Time since the newest checkpoint was committed; 0 while that is not known."};

constexpr Family kCheckpointDuration{
    "trainyard_checkpoint_duration_seconds", Kind::kGauge,
    "From the snapshot of the newest checkpoint to its commit, on the slowest rank."};
constexpr Family kCheckpointSize{"trainyard_checkpoint_size_bytes", Kind::kGauge,
                                 "Bytes of the newest checkpoint, over the ranks shown here."};
constexpr Family kCheckpoints{"trainyard_checkpoints_total",
                              Kind::kCounter,
                              "Checkpoints of these processes by how they ended.",
                              {"result"}};

// Over all ranks of the endpoint.
constexpr Family kStepDuration{
    "trainyard_step_duration_seconds", Kind::kHistogram,
    "Optimizer steps of the ranks, evaluation and checkpoints left out."};
constexpr Family kStageDuration{
    "trainyard_stage_duration_seconds",
    Kind::kHistogram,
    "Time of the training loop's turns by stage, one observation per turn that met the stage.",
    {"stage"}};

// By rank.
constexpr Family kRankPhase{"trainyard_rank_phase",
                            Kind::kGauge,
                            "1 for the phase of its life that the rank is in, 0 for the others.",
                            {"rank", "phase"}};
constexpr Family kRankStep{
    "trainyard_rank_step", Kind::kGauge, "Optimizer steps the rank has completed.", {"rank"}};
constexpr Family kRankGeneration{"trainyard_rank_generation",
                                 Kind::kGauge,
                                 "Generation of the membership that the rank belongs to.",
                                 {"rank"}};
constexpr Family kRankInstruction{"trainyard_rank_instruction",
                                  Kind::kGauge,
                                  "Index in the step program of the instruction now running.",
                                  {"rank"}};
constexpr Family kRankSteps{"trainyard_rank_steps_total",
                            Kind::kCounter,
                            "Optimizer steps done by the rank's process, repeated ones too.",
                            {"rank"}};
constexpr Family kRankSkipped{
    "trainyard_rank_skipped_steps_total",
    Kind::kCounter,
    "Steps that left the parameters as they were: a gradient sum overflowed, or no target counted.",
    {"rank"}};
constexpr Family kRankTokens{
    "trainyard_rank_tokens_total",
    Kind::kCounter,
    "Tokens that the rank's process counts, repeated ones too: of a pipeline those of its first "
    "stage alone, so that sums over ranks are right.",
    {"rank"}};
constexpr Family kRankStepTime{"trainyard_rank_smoothed_step_seconds",
                               Kind::kGauge,
                               "Step time of the rank, exponentially weighted mean.",
                               {"rank"}};
constexpr Family kRankStage{
    "trainyard_rank_stage_seconds_total",
    Kind::kCounter,
    "Time of the rank's training thread by stage; data_wait, collective_wait and pipeline_wait are "
    "waits, checkpoint is the stall.",
    {"rank", "stage"}};
constexpr Family kRankCollectives{"trainyard_rank_collectives_total",
                                  Kind::kCounter,
                                  "Collectives of the training group that have ended.",
                                  {"rank", "operation"}};
constexpr Family kRankCollectiveTime{
    "trainyard_rank_collective_seconds_total",
    Kind::kCounter,
    "Time from a collective's begin to its end, the wait for slower ranks included; it may run "
    "beside compute.",
    {"rank", "operation"}};
constexpr Family kRankCollectiveSent{"trainyard_rank_collective_sent_bytes_total",
                                     Kind::kCounter,
                                     "Payload that the rank sent in collectives.",
                                     {"rank", "operation"}};
constexpr Family kRankCollectiveReceived{"trainyard_rank_collective_received_bytes_total",
                                         Kind::kCounter,
                                         "Payload that the rank received in collectives.",
                                         {"rank", "operation"}};
constexpr Family kRankMemory{"trainyard_rank_memory_bytes",
                             Kind::kGauge,
                             "Memory that the engine planned and holds, by purpose.",
                             {"rank", "purpose"}};
constexpr Family kRankResident{"trainyard_rank_resident_memory_bytes",
                               Kind::kGauge,
                               "Memory that the rank's process occupies.",
                               {"rank"}};
constexpr Family kRankGpuMemory{
    "trainyard_rank_gpu_memory_bytes",
    Kind::kGauge,
    "Memory in use on the rank's GPU, that of other programs included; 0 where it "
    "is not known.",
    {"rank"}};

constexpr Family kRankStall{
    "trainyard_rank_checkpoint_stall_seconds_total",
    Kind::kCounter,
    "Time that training paused for checkpoints: the wait for the previous one, and the copy.",
    {"rank"}};

constexpr std::array kOwnFamilies = {kStep,
                                     kStepTarget,
                                     kSamples,
                                     kTokens,
                                     kCheckpointStep,
                                     kCheckpointTime,
                                     kCheckpointAge,
                                     kCheckpointDuration,
                                     kCheckpointSize,
                                     kCheckpoints,
                                     kStepDuration,
                                     kStageDuration,
                                     kRankPhase,
                                     kRankStep,
                                     kRankGeneration,
                                     kRankInstruction,
                                     kRankSteps,
                                     kRankSkipped,
                                     kRankTokens,
                                     kRankStepTime,
                                     kRankStage,
                                     kRankCollectives,
                                     kRankCollectiveTime,
                                     kRankCollectiveSent,
                                     kRankCollectiveReceived,
                                     kRankStall,
                                     kRankMemory,
                                     kRankResident,
                                     kRankGpuMemory};

constexpr int kPhases = static_cast<int>(contract::kPhaseNames.size());
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

double number(int64_t value) { return static_cast<double>(value); }
double unix_s(Time time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }
double seconds(int64_t nanoseconds) { return number(nanoseconds) / 1e9; }

Family family_of(const contract::Figure& figure) {
  return {figure.family, Kind::kGauge, figure.description};
}

/// Of the lowest rank.
void add_model(Exposition& out, const RankReading& told) {
  out.add(kStep, {}, number(told.step));
  out.add(kStepTarget, {}, number(told.total_steps));
  out.add(kSamples, {}, number(told.samples_consumed));
  out.add(kTokens, {}, number(told.tokens_consumed));
  const contract::KnownFigures known = known_figures(told);
  contract::visit_figures(
      [&](const contract::Figure& figure, const std::optional<double>& value) {
        if (!figure.family.empty()) out.add(family_of(figure), {}, value.value_or(figure.unknown));
      },
      known);
}

/// A figure that a rank made up may be anything.
double at_least_zero(double value) { return value > 0 && value < 1e18 ? value : 0; }

void add_checkpoints(Exposition& out, std::span<const RankReading> ranks,
                     const KnownCheckpoint& known, Time now) {
  int64_t step = known.step;
  double committed_s = known.committed_at ? unix_s(*known.committed_at) : 0;
  double duration_s = 0;
  double bytes = 0;
  for (const RankReading& rank : ranks) {
    const contract::CheckpointFigures& figures = rank.checkpoints;
    step = std::max(step, rank.checkpoint_step);
    committed_s = std::max(committed_s, at_least_zero(figures.committed_unix_s));
    duration_s = std::max(duration_s, at_least_zero(figures.commit_s));
    bytes += at_least_zero(number(figures.bytes));
  }
  const contract::CheckpointFigures nothing;
  const auto& lowest = ranks.empty() ? nothing : ranks.front().checkpoints;
  out.add(kCheckpointDuration, {}, duration_s);
  out.add(kCheckpointSize, {}, bytes);
  out.add(kCheckpoints, {"committed"}, at_least_zero(number(lowest.commits)));
  out.add(kCheckpoints, {"failed"}, at_least_zero(number(lowest.failures)));
  out.add(kCheckpointStep, {}, number(step));
  out.add(kCheckpointTime, {}, committed_s);
  out.add(kCheckpointAge, {}, committed_s > 0 ? std::max(0.0, unix_s(now) - committed_s) : 0);
}

/// Of all ranks together; seconds, because nanoseconds of many ranks and years pass 63 bits.
struct DurationSum {
  std::array<int64_t, contract::kDurationBuckets> buckets{};
  double seconds = 0;

  void add(const contract::DurationReading& reading) {
    for (size_t i = 0; i < buckets.size(); ++i)
      buckets[i] += reading.buckets[i];
    seconds += reading.seconds();
  }
  metrics::HistogramValue histogram() const {
    return {.bounds = contract::kDurationBounds_s, .counts = buckets, .sum = seconds};
  }
};

void add_durations(Exposition& out, std::span<const RankReading> ranks) {
  DurationSum step;
  std::array<DurationSum, contract::kStages> stages;
  for (const RankReading& rank : ranks) {
    step.add(rank.counters.step);
    for (size_t i = 0; i < stages.size(); ++i)
      stages[i].add(rank.counters.stages[i]);
  }
  out.add(kStepDuration, {}, step.histogram());
  for (size_t i = 0; i < stages.size(); ++i) {
    const auto stage = contract::name_of(static_cast<contract::Stage>(i));
    out.add(kStageDuration, {stage}, stages[i].histogram());
  }
}

void add_collectives(Exposition& out, const std::string& rank,
                     const contract::RankCountersReading& counters) {
  for (size_t i = 0; i < contract::kCollectives; ++i) {
    const contract::CollectiveReading& kind = counters.collectives[i];
    const std::string_view operation = contract::kCollectiveNames[i];
    out.add(kRankCollectives, {rank, operation}, number(kind.operations));
    out.add(kRankCollectiveTime, {rank, operation}, seconds(kind.nanoseconds));
    out.add(kRankCollectiveSent, {rank, operation}, number(kind.bytes_sent));
    out.add(kRankCollectiveReceived, {rank, operation}, number(kind.bytes_received));
  }
}

void add_rank(Exposition& out, const RankReading& reading) {
  const std::string rank = std::to_string(reading.rank);
  const contract::RankCountersReading& counters = reading.counters;
  for (int i = 0; i < kPhases; ++i) {
    const auto phase = static_cast<contract::Phase>(i);
    out.add(kRankPhase, {rank, contract::name_of(phase)}, phase == reading.phase ? 1 : 0);
  }
  out.add(kRankStep, {rank}, number(reading.step));
  out.add(kRankGeneration, {rank}, number(reading.generation));
  out.add(kRankInstruction, {rank}, static_cast<double>(reading.instruction_id));
  out.add(kRankSteps, {rank}, number(counters.step.count()));
  out.add(kRankSkipped, {rank}, number(counters.steps_skipped));
  out.add(kRankTokens, {rank}, number(counters.tokens_trained));
  out.add(kRankStepTime, {rank}, reading.step_seconds);
  for (size_t i = 0; i < contract::kStages; ++i) {
    const auto stage = contract::name_of(static_cast<contract::Stage>(i));
    out.add(kRankStage, {rank, stage}, seconds(counters.stages[i].nanoseconds));
  }
  add_collectives(out, rank, counters);
  for (size_t i = 0; i < contract::kMemoryPurposes; ++i) {
    const auto purpose = contract::name_of(static_cast<contract::MemoryPurpose>(i));
    out.add(kRankMemory, {rank, purpose}, number(counters.memory_bytes[i]));
  }
  out.add(kRankStall, {rank}, at_least_zero(reading.checkpoints.stall_total_s));
  out.add(kRankResident, {rank}, number(counters.resident_bytes));
  out.add(kRankGpuMemory, {rank}, at_least_zero(reading.gpu_memory_bytes));
}

}  // namespace

std::span<const Family> rank_families() {
  static const std::vector<Family> families = [] {
    std::vector<Family> all(kOwnFamilies.begin(), kOwnFamilies.end());
    contract::visit_figures([&](const contract::Figure& figure) {
      if (!figure.family.empty()) all.push_back(family_of(figure));
    });
    return all;
  }();
  return families;
}

void add_rank_metrics(Exposition& out, std::span<const RankReading> ranks,
                      const KnownCheckpoint& known, Time now) {
  for (const Family& family : rank_families())
    out.declare(family);
  add_model(out, ranks.empty() ? RankReading{} : ranks.front());
  add_checkpoints(out, ranks, known, now);
  add_durations(out, ranks);
  for (const RankReading& reading : ranks.first(std::min(ranks.size(), kMaxRankSeries)))
    add_rank(out, reading);
}

}  // namespace trainyard::control
