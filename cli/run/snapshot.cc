#include "cli/run/snapshot.h"

#include <algorithm>
#include <cmath>

#include "cli/run/format.h"
#include "worker/data/dataset.h"

namespace trainyard::cli {
namespace {

/// `trainyard run` when a budget or deadline ran out.
constexpr int kExitFailed = 1;

std::optional<double> finite(double value) {
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

const api::Condition* find(const api::TrainingJobStatus& status, api::ConditionType type) {
  const auto it = std::find_if(status.conditions.begin(), status.conditions.end(),
                               [&](const api::Condition& c) { return c.type == type; });
  return it == status.conditions.end() ? nullptr : &*it;
}

/// Of the lowest rank; nullptr before the current generation has told anything.
const control::RankReading* first_reading(const RunFacts& facts) {
  if (facts.readings->empty()) return nullptr;
  const control::RankReading& first = facts.readings->front();
  return first.generation == facts.status->membership.generation ? &first : nullptr;
}

std::string activity_of(const RunFacts& facts) {
  if (facts.stop_requested) return "stopping after a checkpoint";
  switch (facts.status->phase) {
    case api::JobPhase::kPending:
    case api::JobPhase::kStarting:
    case api::JobPhase::kRunning:
      break;
    case api::JobPhase::kRestarting:
      return "restarting";
    case api::JobPhase::kResizing:
      return "resizing";
    case api::JobPhase::kStalled:
      return "stalled";
    case api::JobPhase::kSuspended:
      return "suspended";
    case api::JobPhase::kComplete:
      return "complete";
    case api::JobPhase::kFailed:
      return "failed";
  }
  const control::RankReading* first = first_reading(facts);
  if (first != nullptr) return std::string(contract::name_of(first->phase));
  // Nothing but its end is known of a foreign program.
  const bool running = facts.status->phase == api::JobPhase::kRunning && !facts.job->spec.engine;
  return running ? "running" : "starting";
}

/// The exit code of the rank that failed the job, if it was that: of the last end. Ranks that were
/// restarted before are not to blame for what came later, a deadline for instance.
int failure_exit_code(const api::TrainingJobStatus& status, const std::string& reason) {
  const bool by_time =
      reason == api::reason::kDeadlineExceeded || reason == api::reason::kStartupTimeout;
  if (by_time || status.attempts.empty()) return kExitFailed;
  const auto code = status.attempts.back().exit_code.value_or(kExitFailed);
  const bool told = code == contract::kExitBadConfig || code == contract::kExitBadData ||
                    code == contract::kExitBug;
  return told ? static_cast<int>(code) : kExitFailed;
}

void judge(const RunFacts& facts, Summary& summary) {
  const api::TrainingJobStatus& status = *facts.status;
  if (const api::Condition* failed = find(status, api::ConditionType::kFailed);
      failed != nullptr && failed->status == api::ConditionStatus::kTrue) {
    summary.outcome = Summary::Outcome::kFailed;
    summary.exit_code = failure_exit_code(status, failed->reason);
    summary.reason = failed->reason + ": " + failed->message;
  } else if (!has_condition(status, api::ConditionType::kComplete)) {
    summary.outcome = Summary::Outcome::kStopped;
    summary.exit_code = contract::kExitRetry;
  }
}

std::vector<NamedSeconds> shares_of(const api::GoodputStatus& goodput) {
  const auto seconds = [](std::chrono::milliseconds time) {
    return std::chrono::duration<double>(time).count();
  };
  const api::Badput& lost = goodput.badput;
  return {{"productive", seconds(goodput.productive)},
          {"queue", seconds(lost.queue)},
          {"startup", seconds(lost.startup)},
          {"rendezvous", seconds(lost.rendezvous)},
          {"restore", seconds(lost.restore)},
          {"checkpoint", seconds(lost.checkpoint)},
          {"recompute", seconds(lost.recompute)},
          {"stall", seconds(lost.stall)},
          {"infra", seconds(lost.infra)}};
}

double wall_seconds(const api::TrainingJobStatus& status, Time now) {
  if (status.goodput) {
    // The ledger is up to a step and a few seconds behind while the job runs.
    Duration wall = status.goodput->wall;
    const bool runs = !status.completion_time && status.phase != api::JobPhase::kSuspended;
    const std::optional<Time> counted = status.goodput->counted.time;
    if (runs && counted && now > *counted) wall += now - *counted;
    return std::chrono::duration<double>(wall).count();
  }
  if (!status.start_time) return 0;
  return std::chrono::duration<double>(status.completion_time.value_or(now) - *status.start_time)
      .count();
}

std::vector<NamedSeconds> stage_seconds(const control::RankReading& rank) {
  std::vector<NamedSeconds> stages;
  if (rank.counters.step.count() == 0) return stages;
  for (size_t i = 0; i < contract::kStages; ++i) {
    stages.push_back({std::string(contract::name_of(static_cast<contract::Stage>(i))),
                      rank.counters.stages[i].seconds()});
  }
  return stages;
}

/// What the status has counted over the job's life.
void fill_accounts(const api::TrainingJobStatus& status, Time now, Snapshot& snapshot) {
  snapshot.wall_s = wall_seconds(status, now);
  snapshot.restarts = status.restarts.total;
  if (status.goodput) snapshot.lost_steps = status.goodput->lost_steps;
  if (status.goodput && status.goodput->wall.count() > 0) snapshot.goodput = status.goodput->ratio;
  if (status.progress) snapshot.slowest_rank = status.progress->slowest_rank;
}

}  // namespace

bool has_condition(const api::TrainingJobStatus& status, api::ConditionType type) {
  const api::Condition* condition = find(status, type);
  return condition != nullptr && condition->status == api::ConditionStatus::kTrue;
}

Snapshot make_snapshot(const RunFacts& facts, Time now) {
  Snapshot snapshot;
  fill_accounts(*facts.status, now, snapshot);
  snapshot.activity = activity_of(facts);
  snapshot.generation = facts.status->membership.generation;
  snapshot.layout = facts.status->membership.layout;
  if (facts.job->spec.engine) {
    snapshot.total_steps = facts.job->spec.engine->steps;
    snapshot.pipeline_stages = facts.job->spec.engine->parallelism.pipeline;
  }
  if (facts.status->progress) snapshot.step = facts.status->progress->step;
  if (facts.result) snapshot.step = facts.result->step;  // told after the last heartbeat
  if (facts.status->checkpoint) snapshot.checkpoint_step = facts.status->checkpoint->last_step;
  if (first_reading(facts) == nullptr) return snapshot;
  snapshot.ranks = *facts.readings;
  snapshot.stage_seconds = stage_seconds(snapshot.ranks.front());
  const control::RankReading& first = snapshot.ranks.front();
  if (first.total_steps > 0) snapshot.total_steps = first.total_steps;
  snapshot.checkpoint_step = std::max(snapshot.checkpoint_step, first.checkpoint_step);
  snapshot.checkpoint_failures = first.checkpoints.failures;
  static_cast<contract::KnownFigures&>(snapshot) = control::known_figures(first);
  // Before a rank has restored its state its zeros mean nothing.
  if (first.restored_step < 0) return snapshot;
  if (!facts.result) snapshot.step = first.step;
  if (first.step <= first.restored_step) return snapshot;
  if (first.step_seconds > 0 && snapshot.total_steps >= first.step) {
    const auto left = static_cast<double>(snapshot.total_steps - first.step);
    snapshot.eta_s = finite(left * first.step_seconds);
  }
  return snapshot;
}

Summary make_summary(const RunFacts& facts, Time now) {
  const Snapshot last = make_snapshot(facts, now);
  Summary summary;
  summary.ranks = last.ranks;
  summary.world_size = facts.status->membership.world_size;
  summary.pipeline_stages = last.pipeline_stages;
  summary.job_name = facts.job->metadata.name;
  summary.layout = last.layout;
  summary.step = last.step;
  summary.total_steps = last.total_steps;
  summary.final_loss = last.loss;
  summary.validation_loss = last.validation_loss;
  summary.tokens_per_second = last.tokens_per_second;
  summary.model_flops_utilization = last.model_flops_utilization;
  if (!last.ranks.empty()) {
    summary.skipped_steps = last.ranks.front().counters.steps_skipped;
  }
  if (facts.result) {
    summary.step = facts.result->step;
    summary.skipped_steps = facts.result->skipped_steps;
    summary.warnings = facts.result->warnings;
    summary.final_loss = finite(facts.result->final_loss);
    summary.state_hash = facts.result->state_hash;
    summary.peak_memory = facts.result->peak_memory;
    summary.best = facts.result->best;
    summary.stopped_early = facts.result->stopped_early;
    if (std::isfinite(facts.result->validation_loss)) {
      summary.validation_loss = facts.result->validation_loss;
    }
  }
  if (facts.job->spec.engine && summary.validation_loss) {
    summary.validation_bits_per_byte =
        bits_per_byte(facts.job->spec.engine->data.validation, *summary.validation_loss);
  }
  if (last.checkpoint_step >= 0) summary.checkpoint_step = last.checkpoint_step;
  summary.restarts = facts.status->restarts.total;
  summary.goodput = facts.status->goodput;
  if (summary.goodput) {
    summary.lost_steps = summary.goodput->lost_steps;
    summary.time_shares = shares_of(*summary.goodput);
  }
  summary.wall_s = wall_seconds(*facts.status, now);
  judge(facts, summary);
  return summary;
}

std::optional<double> bits_per_byte(const std::vector<std::string>& shards, double loss) {
  if (shards.empty()) return std::nullopt;
  const auto tokens = data::TokenSet::open(std::span<const std::string>(shards));
  return tokens ? tokens->bits_per_byte(loss) : std::nullopt;
}

}  // namespace trainyard::cli
