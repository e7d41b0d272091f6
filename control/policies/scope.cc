#include "control/policies/scope.h"

#include <algorithm>

#include "common/worker_contract.h"

namespace trainyard::control::policies {
namespace {

Scope wanted_scope(const ScopeInput& input) {
  if (input.cause->wanted) return *input.cause->wanted;
  switch (input.policy->restart_strategy) {
    case api::RestartStrategy::kRecreateAll:
      return Scope::kAll;
    case api::RestartStrategy::kReplacePod:
      return Scope::kPods;
    case api::RestartStrategy::kInPlace:
      return Scope::kRanks;
  }
  return Scope::kAll;
}

bool fails_again_and_again(const ScopeInput& input, const Loss& loss) {
  if (loss.follows_peer || loss.pod_uid.empty() || input.same_machine) return false;
  if (input.backing == MemoryBacking::kNothing) return false;
  const Duration window = api::budget_of(*input.policy, loss.failure_class).window;
  const auto before = std::count_if(
      input.attempts->begin(), input.attempts->end(), [&](const api::Attempt& attempt) {
        return attempt.in_place.value_or(false) && attempt.pod_uid == loss.pod_uid &&
               attempt.failure_class == loss.failure_class && attempt.end_time &&
               attempt.exit_code != contract::kExitPeerLost &&
               *attempt.end_time > input.committed && input.now - *attempt.end_time < window;
      });
  return before + 1 >= kFailuresOfOnePod;
}

bool is_replaced(const ScopeInput& input, Scope wanted, const Loss& loss) {
  if (!loss.pod_goes_on || loss.hardware || fails_again_and_again(input, loss)) return true;
  return wanted == Scope::kPods && (!loss.follows_peer || &loss == input.cause);
}

}  // namespace

MemoryBacking memory_backing(const api::TrainingJobSpec& spec,
                             const api::TrainingJobStatus& status) {
  const api::CheckpointPolicy& policy = spec.checkpoint_policy;
  const bool keeps = spec.engine && policy.memory_every_steps != 0 &&
                     spec.failure_policy.restart_strategy == api::RestartStrategy::kInPlace;
  if (!keeps) return MemoryBacking::kNoMemory;
  if (policy.memory_replicas > 0 && status.nodes.target > 1) return MemoryBacking::kCopies;
  const bool has_trained = status.progress && status.progress->step > 0;
  return policy.every_steps == 0 && has_trained ? MemoryBacking::kNothing
                                                : MemoryBacking::kCheckpoints;
}

RestartScope judge_scope(const ScopeInput& input) {
  const Scope wanted = wanted_scope(input);
  // Where nobody knows which pod it was, none can be chosen.
  const bool nameless = input.cause->pod_name.empty() && !input.cause->pod_goes_on;
  if (wanted == Scope::kAll || !input.may_keep || nameless) return {};
  RestartScope judged{Scope::kRanks, {}};
  for (const Loss& loss : *input.losses) {
    if (!loss.pod_name.empty() && is_replaced(input, wanted, loss))
      judged.replaced.push_back(&loss);
  }
  if (judged.replaced.size() > kMaxSingleReplacements) return {};
  if (!judged.replaced.empty()) judged.scope = Scope::kPods;
  return judged;
}

}  // namespace trainyard::control::policies
