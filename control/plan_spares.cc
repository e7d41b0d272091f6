// Pods that stand ready, and take the index of one that is lost.
#include <algorithm>
#include <iterator>

#include "control/plan_look.h"
#include "control/plan_status.h"
#include "control/policies/avoid.h"

namespace trainyard::control {
namespace {

using api::ConditionType;

/// Between two times that spares are asked for, beyond those that the job begins with: pods that
/// end at once are not to be made without end.
constexpr std::chrono::seconds kRefillPause{30};
/// In which spares that were asked for are usually ready.
constexpr std::chrono::seconds kReadyWithin{60};

bool is_lost(const ObservedPod& spare) {
  return !is_alive(spare) || spare.terminating || is_node_lost(spare);
}

}  // namespace

/// Written in one with the generation, so that whoever looks next carries it out.
void Planner::promote_spares(const std::vector<policies::Loss>& losses) {
  std::vector<const ObservedPod*> ready;
  std::copy_if(sets_.parked.begin(), sets_.parked.end(), std::back_inserter(ready),
               [&](const ObservedPod* spare) { return may_be_promoted(*spare); });
  // Where a node may be at fault, another is better.
  const std::vector<std::string> avoided = policies::avoided_nodes(next_, now_);
  const auto is_elsewhere = [&](const ObservedPod* spare) {
    return std::count(avoided.begin(), avoided.end(), spare->node) == 0 &&
           std::none_of(losses.begin(), losses.end(), [&](const policies::Loss& loss) {
             return !loss.node.empty() && loss.node == spare->node;
           });
  };
  std::stable_partition(ready.begin(), ready.end(), is_elsewhere);
  auto next = ready.begin();
  for (const int index : look_at_gang().missing) {
    if (next == ready.end() || next_.membership.promoted.size() >= api::kMaxPromoted) break;
    const ObservedPod& spare = **next++;
    next_.membership.promoted.push_back({index, spare.uid});
    std::erase(next_.spares->parked, *spare.spare);
    ++next_.restarts.promotions;
    tell(EventType::kNormal, "SparePromoted",
         "pod " + spare.name + " takes index " + std::to_string(index));
  }
  sort();
}

/// Whether ranks can start in it at once: not where its agent is silent, nor on a node that is
/// about to be drained.
bool Planner::may_be_promoted(const ObservedPod& spare) const {
  const bool stands = spare.phase == PodPhase::kRunning && !spare.terminating &&
                      spare.node_state == NodeState::kReady && !spare.node_closed;
  if (!stands || disruption_of(spare) != nullptr) return false;
  if (!observed_.facts.hosted) return spare.ready;
  return std::any_of(
      observed_.facts.spares.begin(), observed_.facts.spares.end(), [&](const MemberFact& agent) {
        return agent.pod_uid == spare.uid && agent.connected && agent.stays && agent.says_joined;
      });
}

/// Of members that the restart keeps.
std::vector<api::Promotion> Planner::promotions_that_last(
    const policies::RestartScope& scope) const {
  std::vector<api::Promotion> lasting;
  for (const api::Promotion& promotion : next_.membership.promoted) {
    const auto is_it = [&](const ObservedPod* pod) { return pod->uid == promotion.pod_uid; };
    const bool there = std::any_of(sets_.members.begin(), sets_.members.end(), is_it);
    const bool replaced =
        std::any_of(scope.replaced.begin(), scope.replaced.end(),
                    [&](const auto* loss) { return loss->pod_uid == promotion.pod_uid; });
    if (there && !replaced) lasting.push_back(promotion);
  }
  return lasting;
}

/// As many as the spec wants, while the gang runs.
void Planner::keep_spares() {
  if (spec_.spares.count == 0 && !next_.spares) return;
  drop_lost_spares();
  park_new_spares();
}

void Planner::drop_lost_spares() {
  if (!next_.spares) return;
  std::vector<int64_t>& parked = next_.spares->parked;
  const size_t before = parked.size();
  for (const ObservedPod* spare : sets_.parked) {
    if (is_lost(*spare)) std::erase(parked, *spare->spare);
  }
  parked.resize(std::min(parked.size(), static_cast<size_t>(spec_.spares.count)));
  if (parked.size() == before) return;
  ahead_ = true;
  sort();
}

/// Their numbers are written down before their pods are made: a pod has one name, whoever makes it.
void Planner::park_new_spares() {
  if (!is_true(next_, ConditionType::kRunning) || observed_.refusal || is_edited()) return;
  api::SparesStatus spares = next_.spares.value_or(api::SparesStatus());
  const int64_t lacking = spec_.spares.count - std::ssize(spares.parked);
  if (lacking <= 0) return;
  if (spares.made >= spec_.spares.count && spares.last_made_time) {
    const Duration left = *spares.last_made_time + kRefillPause - now_;
    // More than the whole pause is left where the clock was set back.
    if (left > Duration::zero() && left <= kRefillPause) return look_in(left);
  }
  for (int64_t i = 0; i < lacking; ++i)
    spares.parked.push_back(++spares.made);
  spares.last_made_time = now_;
  next_.spares = std::move(spares);
  ahead_ = true;
}

void Planner::create_parked() {
  if (!next_.spares || observed_.refusal || is_edited()) return;
  for (const int64_t number : next_.spares->parked) {
    const bool there =
        std::any_of(sets_.parked.begin(), sets_.parked.end(),
                    [&](const ObservedPod* spare) { return spare->spare == number; });
    if (there) continue;
    plan_.create_spares.push_back(as_of_now(make_spare_spec(
        observed_.metadata, spec_, number, next_.membership.generation, next_.nodes.target)));
  }
}

/// The job ends, or stops.
void Planner::give_up_spares() {
  if (!next_.spares || next_.spares->parked.empty()) return;
  next_.spares->parked.clear();
  ahead_ = true;
  sort();
}

/// Whether the job wants spares and none is ready, though they had their time or are used up.
bool Planner::spares_are_exhausted() {
  if (spec_.spares.count == 0 || !next_.spares || next_.nodes.spare > 0) return false;
  const bool used_up = std::ssize(next_.spares->parked) < spec_.spares.count;
  if (used_up || lacks_spares(next_)) return true;
  const Duration left = next_.spares->last_made_time.value_or(now_) + kReadyWithin - now_;
  if (left <= Duration::zero()) return true;
  look_in(left);
  return false;
}

}  // namespace trainyard::control
