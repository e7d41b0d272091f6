#include "control/policies/progress.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <tuple>
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

/// Whether what a member says of its ranks is news of them.
bool tells(const MemberFact& member) { return member.connected && member.silent <= kStaleNews; }

/// Those that members tell of at present.
std::vector<const RankFact*> told_ranks_of(const StreamFacts& facts) {
  std::vector<const RankFact*> told;
  for (const MemberFact& member : facts.members) {
    if (member.generation != facts.generation || !tells(member)) continue;
    for (const RankFact& rank : member.ranks)
      told.push_back(&rank);
  }
  return told;
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

/// The rank the others wait for: it has made the fewest steps and is the earliest in logical time.
/// Those that wait for it are later. A rank whose process is stopped comes before them: it may have
/// begun to send a message without which another rank stands earlier. Among equals the longest
/// without a beat is to blame.
const RankFact* blamed_of(const std::vector<const RankFact*>& ranks) {
  const auto key = [](const RankFact* rank) {
    return std::tuple(std::min(rank->phase, Phase::kTraining), rank->step, !rank->stopped,
                      rank->arrivals, rank->last_heartbeat_at.value_or(Time::min()), rank->rank);
  };
  const auto found =
      std::min_element(ranks.begin(), ranks.end(),
                       [&](const RankFact* a, const RankFact* b) { return key(a) < key(b); });
  return found == ranks.end() ? nullptr : *found;
}

/// Whether somebody tells of that rank at present.
bool is_told_of(const StreamFacts& facts, const RankFact& rank) {
  return std::any_of(facts.members.begin(), facts.members.end(), [&](const MemberFact& member) {
    if (member.generation != facts.generation) return false;
    return tells(member) &&
           std::any_of(member.ranks.begin(), member.ranks.end(),
                       [&](const RankFact& told) { return told.rank == rank.rank; });
  });
}

/// "Training", as status has it.
std::string title_of(Phase phase) {
  std::string title(contract::name_of(phase));
  title.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(title.front())));
  return title;
}

/// "rank 1 has stood at step 41 in phase Training, instruction 17 (GATHER u2), its process
/// stopped".
std::string position_of(const RankFact& rank) {
  std::string text = "rank " + std::to_string(rank.rank) + " has stood at step " +
                     std::to_string(rank.step) + " in phase " + title_of(rank.phase);
  if (!rank.instruction.empty()) {
    text += ", instruction " + std::to_string(rank.instruction_id) + " (" + rank.instruction + ")";
  }
  if (rank.stopped) text += ", its process stopped";
  return text;
}

std::string in_seconds(Duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(duration).count()) + " s";
}

/// `laggard` has made a step. What stands still is judged in time listened: where nobody was heard
/// nobody stood.
Standstill standstill_of(const RankFact& laggard, const RankFact& blamed,
                         const api::ProgressPolicy& policy, const StreamFacts& facts, Time now) {
  const Time moved = std::max(*laggard.last_step_at, blamed.phase_since.value_or(Time::min()));
  return {listened_since(facts, moved, now), blamed.phase == Phase::kTraining
                                                 ? stall_bound(policy, facts)
                                                 : Duration(policy.max_stall)};
}

/// The rank whose work a step exceeds by most that of the least in its stage of the pipeline, where
/// all of `ranks` tell. `world`: ranks of the generation; those of a stage follow each other.
std::optional<int64_t> slowest_of(const std::vector<const RankFact*>& ranks, int64_t world,
                                  int64_t stages) {
  const bool all = std::all_of(ranks.begin(), ranks.end(),
                               [](const auto* rank) { return rank->work_seconds.has_value(); });
  if (!all || stages < 1 || world % stages != 0) return std::nullopt;
  const auto stage_of = [&](const RankFact* rank) { return rank->rank / (world / stages); };
  std::map<int64_t, std::vector<const RankFact*>> by_stage;
  for (const RankFact* rank : ranks)
    by_stage[stage_of(rank)].push_back(rank);
  const RankFact* slowest = nullptr;
  double most = -1;
  for (const auto& [stage, members] : by_stage) {
    if (members.size() < 2) continue;
    const auto [least, slow] =
        std::minmax_element(members.begin(), members.end(), [](auto* a, auto* b) {
          return std::pair(*a->work_seconds, b->rank) < std::pair(*b->work_seconds, a->rank);
        });
    const double excess = *(*slow)->work_seconds - *(*least)->work_seconds;
    if (excess <= most) continue;
    most = excess;
    slowest = *slow;
  }
  return slowest == nullptr ? std::nullopt : std::optional<int64_t>(slowest->rank);
}

/// The rank that has been stopped for longest before its first step.
const RankFact* stopped_of(const StallInput& input) {
  if (input.facts->generation != input.generation) return nullptr;
  const RankFact* longest = nullptr;
  for (const RankFact* rank : ranks_of(*input.facts)) {
    if (!rank->stopped_since || !is_told_of(*input.facts, *rank)) continue;
    if (longest == nullptr || *rank->stopped_since < *longest->stopped_since) longest = rank;
  }
  return longest;
}

std::string what_is_missing(const StreamFacts& facts) {
  if (!facts.hosted) return "not all pods ready";
  return ranks_of(facts).empty() ? "not all ranks started" : "no first step";
}

Stall judge_startup(const StallInput& input) {
  Stall stall;
  if (const RankFact* stopped = stopped_of(input)) {
    const Duration bound = input.policy->max_stall;
    const Duration still = listened_since(*input.facts, *stopped->stopped_since, input.now);
    if (still >= bound) {
      stall.kind = Stall::Kind::kHeartbeat;
      stall.rank = stopped->rank;
      stall.message =
          position_of(*stopped) + " for " + in_seconds(still) + ", allowed " + in_seconds(bound);
      return stall;
    }
    stall.look_again = bound - still;
  }
  if (!input.scheduled_at) return stall;
  if (!input.facts->hosted && input.all_ready) return stall;
  const bool current = input.facts->generation == input.generation;
  const bool tells_nothing = ranks_of(*input.facts).empty();
  // Programs of their own make no steps that anybody could count: they have started.
  if (input.facts->hosted && current && input.facts->rank_table_ready && tells_nothing) {
    return stall;
  }
  // A new coordinator knows of no step before the ranks have told it.
  const Duration waited = listened_since(
      *input.facts, std::max(*input.scheduled_at, input.facts->listens_since), input.now);
  const Duration limit = input.policy->startup_timeout;
  if (waited < limit) {
    stall.look_again = std::min<Duration>(limit - waited, stall.look_again.value_or(limit));
    return stall;
  }
  stall.kind = Stall::Kind::kStartup;
  const RankFact* laggard = blamed_of(ranks_of(*input.facts));
  if (laggard != nullptr) stall.rank = laggard->rank;
  stall.message = what_is_missing(*input.facts) + " within " + in_seconds(limit) +
                  " of being scheduled" +
                  (laggard == nullptr ? ""
                                      : "; rank " + std::to_string(laggard->rank) +
                                            " is in phase " + title_of(laggard->phase));
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

Duration listened_since(const StreamFacts& facts, Time since, Time now) {
  Duration listened = now - since;
  for (const DeafTime& deaf : facts.deaf) {
    const Duration missed = std::min(deaf.to, now) - std::max(deaf.from, since);
    listened -= std::max(missed, Duration::zero());
  }
  return listened;
}

std::optional<Time> min_step_moved_at(const StreamFacts& facts) {
  const RankFact* laggard = laggard_of(ranks_of(facts));
  return laggard == nullptr ? std::nullopt : laggard->last_step_at;
}

std::optional<Standstill> standstill_of_connected(const api::ProgressPolicy& policy,
                                                  const StreamFacts& facts, Time now) {
  const std::vector<const RankFact*> told = told_ranks_of(facts);
  const RankFact* laggard = laggard_of(told);
  if (laggard == nullptr || !laggard->last_step_at || laggard->phase == Phase::kDone) {
    return std::nullopt;
  }
  return standstill_of(*laggard, *blamed_of(told), policy, facts, now);
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
  Stall stall;
  if (laggard == nullptr || !laggard->last_step_at) {
    // Nobody tells of its steps; those that are told of show that all have started.
    if (laggard != nullptr && !is_told_of(*input.facts, *laggard) &&
        standstill_of_connected(*input.policy, *input.facts, input.now)) {
      stall.look_again = kStaleNews;
      return stall;
    }
    return judge_startup(input);
  }
  if (laggard->phase == Phase::kDone) return {};

  const RankFact& blamed = *blamed_of(ranks);
  const auto [still, bound] =
      standstill_of(*laggard, blamed, *input.policy, *input.facts, input.now);
  if (still < bound) {
    stall.look_again = bound - still;
    return stall;
  }
  if (!is_told_of(*input.facts, blamed)) {
    stall.look_again = kStaleNews;
    stall.is_known = false;
    return stall;
  }
  const std::optional<Time> beat = blamed.last_heartbeat_at;
  const bool beats = beat && listened_since(*input.facts, *beat, input.now) < bound;
  stall.kind = beats ? Stall::Kind::kNoStep : Stall::Kind::kHeartbeat;
  stall.rank = blamed.rank;
  stall.message = position_of(blamed) + " for " + in_seconds(still) + ", allowed " +
                  in_seconds(bound) + (ranks.size() > 1 ? "; the others wait for it" : "");
  return stall;
}

std::optional<api::ProgressStatus> progress_of(const StreamFacts& facts,
                                               const std::optional<api::ProgressStatus>& shown,
                                               int64_t world_size, int64_t stages) {
  // Ranks train in step: where those that are told of go on, the others do, too. What nobody tells
  // of any more is shown as it was last.
  std::vector<const RankFact*> ranks = told_ranks_of(facts);
  if (ranks.empty()) ranks = ranks_of(facts);
  const RankFact* laggard = laggard_of(ranks);
  if (laggard == nullptr) return shown;
  if (shown && laggard->phase < Phase::kTraining) {
    api::ProgressStatus waiting = *shown;
    waiting.phase = title_of(laggard->phase);
    return waiting;
  }
  const RankFact* first = *std::min_element(
      ranks.begin(), ranks.end(), [](const auto* a, const auto* b) { return a->rank < b->rank; });
  api::ProgressStatus progress;
  progress.step = laggard->step;
  progress.total_steps = laggard->total_steps;
  progress.phase = title_of(laggard->phase);
  progress.last_step_time = laggard->last_step_at;
  progress.loss = first->loss;
  const int64_t world = world_size > 0 ? world_size : std::ssize(ranks_of(facts));
  progress.slowest_rank = slowest_of(ranks, world, stages);
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

Duration progress_period_of(int64_t jobs) {
  return std::clamp<Duration>(std::chrono::seconds(jobs / kProgressWritesPerSecond),
                              kProgressPeriod, kLongestProgressPeriod);
}

bool is_due(const std::optional<api::ProgressStatus>& written, const api::ProgressStatus& next,
            Time now, Duration period) {
  if (!written) return true;
  if (written->step == next.step && written->phase == next.phase) return false;
  return !written->last_step_time || now - *written->last_step_time >= period;
}

bool is_due(const std::optional<api::CheckpointStatus>& written, Time now, Duration period) {
  return !written || !written->last_time || now - *written->last_time >= period;
}

}  // namespace trainyard::control::policies
