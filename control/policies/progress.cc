#include "control/policies/progress.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace trainyard::control::policies {
namespace {

using contract::Phase;

std::vector<const RankFact*> ranks_of(const StreamFacts& facts) {
  std::vector<const RankFact*> ranks;
  for (const MemberFact& member : facts.members) {
    if (member.generation != facts.generation) continue;
    for (const RankFact& rank : member.ranks)
      ranks.push_back(&rank);
  }
  return ranks;
}

/// The rank that holds the others up: fewest steps, then longest without one.
const RankFact* laggard_of(const std::vector<const RankFact*>& ranks) {
  const auto behind = [](const RankFact* a, const RankFact* b) {
    if (a->step != b->step) return a->step < b->step;
    return a->last_step_at.value_or(Time::min()) < b->last_step_at.value_or(Time::min());
  };
  const auto found = std::min_element(ranks.begin(), ranks.end(), behind);
  return found == ranks.end() ? nullptr : *found;
}

std::string name_of(Phase phase) {
  switch (phase) {
    case Phase::kStarting:
      return "Starting";
    case Phase::kRendezvous:
      return "Rendezvous";
    case Phase::kRestoring:
      return "Restoring";
    case Phase::kTraining:
      return "Training";
    case Phase::kEvaluating:
      return "Evaluating";
    case Phase::kCheckpointing:
      return "Checkpointing";
    case Phase::kDone:
      return "Done";
  }
  return "Unknown";
}

std::string in_seconds(Duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(duration).count()) + " s";
}

Stall judge_startup(const StallInput& input) {
  Stall stall;
  if (!input.scheduled_at) return stall;
  if (!input.facts->hosted && input.all_ready) return stall;
  const Duration waited = input.now - *input.scheduled_at;
  const Duration limit = input.policy->startup_timeout;
  if (waited < limit) {
    stall.look_again = limit - waited;
    return stall;
  }
  stall.kind = Stall::Kind::kStartup;
  const RankFact* laggard = laggard_of(ranks_of(*input.facts));
  if (laggard != nullptr) stall.rank = laggard->rank;
  stall.message = std::string(input.facts->hosted ? "no first step" : "not all pods ready") +
                  " within " + in_seconds(limit) + " of being scheduled" +
                  (laggard == nullptr ? ""
                                      : "; rank " + std::to_string(laggard->rank) +
                                            " is in phase " + name_of(laggard->phase));
  return stall;
}

}  // namespace

Duration stall_bound(const api::ProgressPolicy& policy, const StreamFacts& facts) {
  if (!facts.p99_step_seconds) return policy.max_stall;
  const double seconds = static_cast<double>(policy.stall_factor) * *facts.p99_step_seconds;
  const double most = static_cast<double>(policy.max_stall.count());
  if (!(seconds < most)) return policy.max_stall;
  const Duration bound(std::llround(seconds * 1e9));
  return std::max<Duration>(bound, policy.min_stall);
}

std::optional<Time> min_step_moved_at(const StreamFacts& facts) {
  const RankFact* laggard = laggard_of(ranks_of(facts));
  return laggard == nullptr ? std::nullopt : laggard->last_step_at;
}

std::optional<int64_t> last_step_seen(const StreamFacts& facts) {
  std::optional<int64_t> newest;
  for (const RankFact* rank : ranks_of(facts)) {
    if (!rank->last_step_at) continue;
    newest = std::max(newest.value_or(rank->step), rank->step);
  }
  return newest;
}

Stall judge_stall(const StallInput& input) {
  if (input.facts->generation != input.generation) return judge_startup(input);
  const std::vector<const RankFact*> ranks = ranks_of(*input.facts);
  const RankFact* laggard = laggard_of(ranks);
  if (laggard == nullptr || !laggard->last_step_at) return judge_startup(input);
  if (laggard->phase == Phase::kDone) return {};

  Stall stall;
  const Duration bound = laggard->phase == Phase::kTraining
                             ? stall_bound(*input.policy, *input.facts)
                             : Duration(input.policy->max_stall);
  const Time moved = std::max(*laggard->last_step_at, laggard->phase_since.value_or(Time::min()));
  const Duration still = input.now - moved;
  if (still < bound) {
    stall.look_again = bound - still;
    return stall;
  }
  const Time beat = laggard->last_heartbeat_at.value_or(Time::min());
  stall.kind = input.now - beat < bound ? Stall::Kind::kNoStep : Stall::Kind::kHeartbeat;
  stall.rank = laggard->rank;
  stall.message = "rank " + std::to_string(laggard->rank) + " has stood at step " +
                  std::to_string(laggard->step) + " in phase " + name_of(laggard->phase) + " for " +
                  in_seconds(still) + ", allowed " + in_seconds(bound);
  return stall;
}

std::optional<api::ProgressStatus> progress_of(const StreamFacts& facts,
                                               const std::optional<api::ProgressStatus>& shown) {
  const std::vector<const RankFact*> ranks = ranks_of(facts);
  const RankFact* laggard = laggard_of(ranks);
  if (laggard == nullptr) return shown;
  if (shown && laggard->phase < Phase::kTraining) {
    api::ProgressStatus waiting = *shown;
    waiting.phase = name_of(laggard->phase);
    return waiting;
  }
  const RankFact* first = *std::min_element(
      ranks.begin(), ranks.end(), [](const auto* a, const auto* b) { return a->rank < b->rank; });
  api::ProgressStatus progress;
  progress.step = laggard->step;
  progress.total_steps = laggard->total_steps;
  progress.phase = name_of(laggard->phase);
  progress.last_step_time = laggard->last_step_at;
  progress.loss = first->loss;
  progress.tokens_per_second = first->tokens_per_second;
  if (progress.total_steps > 0) {
    progress.percentage = std::min<int64_t>(100, progress.step * 100 / progress.total_steps);
  }
  if (laggard->step_seconds && *laggard->step_seconds > 0) {
    progress.step_time_ms = *laggard->step_seconds * 1e3;
    const double left =
        static_cast<double>(std::max<int64_t>(0, progress.total_steps - progress.step));
    progress.eta_s = std::llround(left * *laggard->step_seconds);
  }
  return progress;
}

bool is_due(const std::optional<api::ProgressStatus>& written, const api::ProgressStatus& next,
            Time now) {
  if (!written) return true;
  if (written->step == next.step && written->phase == next.phase) return false;
  return !written->last_step_time || now - *written->last_step_time >= kProgressPeriod;
}

bool is_due(const std::optional<api::CheckpointStatus>& written, Time now) {
  return !written || !written->last_time || now - *written->last_time >= kProgressPeriod;
}

}  // namespace trainyard::control::policies
