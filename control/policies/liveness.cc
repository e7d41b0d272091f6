#include "control/policies/liveness.h"

#include <algorithm>

#include "control/policies/progress.h"

namespace trainyard::control::policies {
namespace {

/// The moment the newest mass loss ended, if there was one.
std::optional<Time> mass_loss_at(const StreamFacts& facts) {
  std::vector<Time> lost;
  for (const MemberFact& fact : facts.members) {
    if (!fact.connected) lost.push_back(fact.since);
  }
  std::sort(lost.begin(), lost.end());
  const size_t more_than_half = facts.members.size() / 2 + 1;
  std::optional<Time> newest;
  for (size_t last = more_than_half; last <= lost.size(); ++last) {
    const Time from = lost[last - more_than_half];
    const Time to = lost[last - 1];
    if (to - from <= kMassLossWindow) newest = to;
  }
  return newest;
}

const PeerReport* report_against(const LivenessInput& input, const ObservedPod& pod,
                                 const MemberFact& fact) {
  for (const PeerReport& report : input.facts->peer_reports) {
    if (report.generation != input.generation) continue;
    if (!report.lost_pod_uid.empty()) {
      if (report.lost_pod_uid == pod.uid) return &report;
      continue;
    }
    const bool runs_rank = std::any_of(fact.ranks.begin(), fact.ranks.end(),
                                       [&](const auto& r) { return r.rank == report.lost_rank; });
    if (runs_rank) return &report;
  }
  return nullptr;
}

/// Whether steps speak against members that are silent, `fact` one of them.
bool steps_stand_still(const LivenessInput& input, const MemberFact& fact) {
  const StreamFacts& facts = *input.facts;
  const bool anybody_tells =
      std::any_of(facts.members.begin(), facts.members.end(), [&](const MemberFact& member) {
        return member.connected && member.generation == facts.generation;
      });
  if (anybody_tells && !facts.same_machine) {
    const auto standstill = standstill_of_connected(*input.policy, facts, input.now);
    return standstill && standstill->still >= standstill->bound;
  }
  const Time moved = min_step_moved_at(facts).value_or(fact.since);
  return listened_since(facts, moved, input.now) >= stall_bound(*input.policy, facts);
}

std::optional<std::string> second_sign(const LivenessInput& input, const ObservedPod& pod,
                                       const MemberFact& fact) {
  if (pod.node_state == NodeState::kNotReady) return "its node is not ready";
  if (pod.node_state == NodeState::kGone) return "its node is gone";
  if (const PeerReport* report = report_against(input, pod, fact)) {
    return "rank " + std::to_string(report->reporter_rank) + " waits for rank " +
           std::to_string(report->lost_rank) + ": " + report->message;
  }
  if (steps_stand_still(input, fact)) return "no step since it went silent";
  return std::nullopt;
}

std::string in_seconds(Duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(duration).count()) + " s";
}

void look_in(Liveness& liveness, Duration wait) {
  liveness.look_again = std::min(liveness.look_again.value_or(Duration::max()), wait);
}

/// A coordinator that began after the agent did knows of no stream that could have ended: as where
/// a node took its leader along, or where `trainyard run` was started anew beside a stopped agent.
void judge_unheard(const LivenessInput& input, const ObservedPod& pod, Liveness& liveness) {
  std::string sign;
  Duration limit = kReconnectTime;
  if (pod.node_state == NodeState::kGone) {
    sign = ", and its node is gone";
  } else if (pod.node_state == NodeState::kNotReady) {
    sign = ", and its node is not ready";
  } else if (input.facts->same_machine && input.scheduled_at &&
             *input.scheduled_at < input.facts->listens_since) {
    limit = std::max(limit, stall_bound(*input.policy, *input.facts));
    sign = " within " + in_seconds(limit);
  }
  if (!input.ran || sign.empty()) return;
  const Duration listened = listened_since(*input.facts, input.facts->listens_since, input.now);
  if (listened < limit) return look_in(liveness, limit - listened);
  liveness.lost.push_back({&pod, "a new coordinator received nothing from it" + sign});
}

/// Adds kept members whose streams have ended to those that are late: a restart keeps no pod beside
/// one that it cannot reach.
void add_unreachable(const JoiningInput& input, const MembersByPod& told, Liveness& liveness) {
  for (const ObservedPod* pod : *input.members) {
    const auto found = told.find(pod->uid);
    if (found == told.end() || pod->created_generation >= input.generation) continue;
    const MemberFact& fact = *found->second;
    if (fact.connected) continue;
    if (listened_since(*input.facts, fact.since, input.now) <= kStreamGrace) continue;
    const bool is_late = std::any_of(liveness.lost.begin(), liveness.lost.end(),
                                     [&](const LostMember& lost) { return lost.pod == pod; });
    if (!is_late)
      liveness.lost.push_back({pod, "its agent has no stream, and another agent is late"});
  }
}

}  // namespace

MembersByPod members_by_pod(const StreamFacts& facts) {
  MembersByPod members;
  members.reserve(facts.members.size());
  for (const MemberFact& fact : facts.members)
    members.emplace(fact.pod_uid, &fact);
  return members;
}

bool have_met(const StreamFacts& facts) {
  return facts.rank_table_ready ||
         std::any_of(facts.members.begin(), facts.members.end(), [&](const MemberFact& member) {
           return member.generation == facts.generation &&
                  std::any_of(member.ranks.begin(), member.ranks.end(), [](const RankFact& rank) {
                    return rank.phase > contract::Phase::kRendezvous;
                  });
         });
}

Liveness judge_liveness(const LivenessInput& input) {
  Liveness liveness;
  if (!input.facts->hosted) return liveness;
  const auto at = input.facts->same_machine ? std::nullopt : mass_loss_at(*input.facts);
  if (at && input.now - *at < kMassLossTruce) {
    liveness.truce = true;
    look_in(liveness, *at + kMassLossTruce - input.now);
    return liveness;
  }
  const MembersByPod facts = members_by_pod(*input.facts);
  Duration longest{};  // silence of those that are lost
  bool more_may_follow = false;
  for (const ObservedPod* pod : *input.members) {
    const auto found = facts.find(pod->uid);
    if (found == facts.end()) {
      judge_unheard(input, *pod, liveness);
      continue;
    }
    const MemberFact* const fact = found->second;
    if (fact->connected) continue;
    const Duration silent = input.now - fact->since;
    if (silent <= kStreamGrace) {
      look_in(liveness, kStreamGrace - silent + std::chrono::milliseconds(1));
      more_may_follow = true;
      continue;
    }
    if (auto sign = second_sign(input, *pod, *fact)) {
      liveness.lost.push_back({pod, "silent for " + in_seconds(silent) + ", and " + *sign});
      longest = std::max(longest, silent);
    } else {
      look_in(liveness, std::chrono::seconds(1));
    }
  }
  // Nodes that lose their power together fall silent one after the other: they are one restart, and
  // one before the last of them is judged would be in vain.
  liveness.waits = more_may_follow && longest <= 2 * kStreamGrace;
  return liveness;
}

Liveness judge_joining(const JoiningInput& input) {
  Liveness liveness;
  const StreamFacts& facts = *input.facts;
  if (!facts.hosted || facts.generation != input.generation || have_met(facts)) return liveness;
  const MembersByPod told = members_by_pod(facts);
  const std::string generation = " generation " + std::to_string(input.generation);
  const std::string late = "its agent has not joined" + generation + " within ";
  const auto judge = [&](const ObservedPod& pod, Time since, Duration most,
                         const std::string& what) {
    const Duration waited = listened_since(facts, since, input.now);
    if (waited < most) return look_in(liveness, most - waited);
    liveness.lost.push_back({&pod, what + in_seconds(most)});
  };
  const Duration limit = input.timeout + kStreamGrace;
  const Time since = std::max(input.began, facts.listens_since);
  std::vector<const ObservedPod*> unheard;
  size_t kept = 0;
  for (const ObservedPod* pod : *input.members) {
    if (pod->created_generation >= input.generation) continue;
    ++kept;
    const auto found = told.find(pod->uid);
    if (found == told.end()) {
      if (pod->started_at) unheard.push_back(pod);
      continue;
    }
    const MemberFact& fact = *found->second;
    if (fact.generation < input.generation) {
      judge(*pod, since, limit, late);
    } else if (fact.joins_since) {
      judge(*pod, *fact.joins_since, limit, late);
    } else if (!fact.connected) {
      judge(*pod, std::max(since, fact.since), limit,
            "its agent has joined" + generation + ", and was not heard for ");
    }
  }
  // They may be about to come back.
  const Duration patience = 2 * unheard.size() > kept ? kMassLossTruce : kReconnectTime;
  for (const ObservedPod* pod : unheard) {
    // The time is of the node's clock, which may be far ahead.
    const Time started = *pod->started_at <= input.now + kReconnectTime ? *pod->started_at : since;
    judge(*pod, std::max(since, started), std::max(limit, patience), late);
  }
  if (!liveness.lost.empty()) add_unreachable(input, told, liveness);
  return liveness;
}

}  // namespace trainyard::control::policies
