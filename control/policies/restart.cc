#include "control/policies/restart.h"

#include <algorithm>
#include <csignal>
#include <set>
#include <utility>

#include "common/worker_contract.h"
#include "control/policies/schedule.h"

namespace trainyard::control::policies {
namespace {

using api::FailureClass;

/// Kept whatever the budget: the back-off counts them, too.
constexpr int64_t kFewestRecentRestarts = 20;
constexpr char kOomKilled[] = "OOMKilled";

bool has_condition(const ObservedPod& pod, const std::string& type, const std::string& status) {
  return std::any_of(pod.conditions.begin(), pod.conditions.end(),
                     [&](const PodCondition& c) { return c.type == type && c.status == status; });
}

bool matches(const api::OnExitCodes& codes, const ContainerExit& exit) {
  if (exit.exit_code == 0) return false;
  if (!codes.container_name.empty() && codes.container_name != exit.container) return false;
  const bool listed =
      std::find(codes.values.begin(), codes.values.end(), exit.exit_code) != codes.values.end();
  return listed == (codes.op == api::ExitCodeOperator::kIn);
}

/// The end of a container that the rule is about; nullptr where there is none. Without a name it is
/// about the container that decides. Of a pod that was asked to end a sidecar's code is no news.
const ContainerExit* matching_exit(const api::OnExitCodes& codes, const ObservedPod& pod) {
  if (pod.exit && matches(codes, *pod.exit)) return &*pod.exit;
  if (codes.container_name.empty() || pod.phase != PodPhase::kFailed || pod.terminating) {
    return nullptr;
  }
  const auto found = std::find_if(pod.sidecar_exits.begin(), pod.sidecar_exits.end(),
                                  [&](const ContainerExit& exit) { return matches(codes, exit); });
  return found == pod.sidecar_exits.end() ? nullptr : &*found;
}

struct Match {
  const api::FailureRule* rule = nullptr;
  const ContainerExit* exit = nullptr;  ///< of a rule about exit codes
};

std::optional<Match> first_match(const api::FailurePolicy& policy, const ObservedPod& pod) {
  for (const api::FailureRule& rule : policy.rules) {
    if (rule.on_exit_codes) {
      const ContainerExit* const exit = matching_exit(*rule.on_exit_codes, pod);
      if (exit != nullptr) return Match{&rule, exit};
      continue;
    }
    const bool holds =
        std::any_of(rule.on_pod_conditions.begin(), rule.on_pod_conditions.end(),
                    [&](const auto& c) { return has_condition(pod, c.type, c.status); });
    if (holds) return Match{&rule, nullptr};
  }
  return std::nullopt;
}

FailureClass class_of(const ObservedPod& pod) {
  if (disruption_of(pod) != nullptr) return FailureClass::kPreemption;
  if (!pod.exit) return FailureClass::kInfrastructure;
  const ContainerExit& exit = *pod.exit;
  if (exit.reason == kOomKilled) return FailureClass::kApplication;
  if (exit.reason == kGpuFailed) return FailureClass::kInfrastructure;
  const bool by_sigterm = exit.signal == SIGTERM || exit.asked.value_or(false);
  if (by_sigterm || exit.exit_code == contract::kExitTerminatedAfterCheckpoint) {
    return FailureClass::kPreemption;
  }
  const bool by_sigkill = exit.signal == SIGKILL || exit.exit_code == 128 + SIGKILL;
  if (by_sigkill || exit.exit_code == contract::kExitPeerLost ||
      exit.exit_code == contract::kExitRetry) {
    return FailureClass::kInfrastructure;
  }
  return FailureClass::kApplication;
}

void describe_exit(const ContainerExit& exit, Loss& loss) {
  loss.container = exit.container;
  loss.rank = exit.rank;
  loss.exit_code = exit.exit_code;
  loss.signal = exit.signal;
  if (!exit.message.empty()) loss.message = exit.message;
}

Loss describe(const ObservedPod& pod) {
  Loss loss;
  loss.pod_name = pod.name;
  loss.pod_uid = pod.uid;
  loss.node = pod.node;
  loss.message = pod.message;
  if (pod.exit) {
    describe_exit(*pod.exit, loss);
    loss.at = pod.exit->finished_at;
  }
  return loss;
}

void apply_rule(const Match& match, const ObservedPod& pod, Loss& loss) {
  const api::FailureRule& rule = *match.rule;
  // Whoever reads why wants to see the end that the rule is about.
  const bool by_sidecar = match.exit != nullptr && !(pod.exit && match.exit == &*pod.exit);
  if (by_sidecar) {
    loss.message.clear();
    describe_exit(*match.exit, loss);
  }
  const std::string name = api::reason::kRulePrefix + rule.name;
  loss.reason = name;
  loss.fatal_reason.reset();
  if (rule.action == api::RuleAction::kFailJob) {
    loss.fatal_reason = name;
  } else {
    loss.counted = rule.action == api::RuleAction::kRestartJob && rule.count_towards_max;
  }
}

api::ClassRestarts* find_class(api::RestartCounts& restarts, FailureClass failure_class) {
  for (api::ClassRestarts& entry : restarts.classes) {
    if (entry.failure_class == failure_class) return &entry;
  }
  return nullptr;
}

}  // namespace

Loss judge_failed_pod(const api::FailurePolicy& policy, const ObservedPod& pod) {
  Loss loss = describe(pod);
  loss.failure_class = class_of(pod);
  loss.reason = pod.exit ? api::reason::kPodFailed : api::reason::kPodLost;
  loss.hardware = pod.exit && pod.exit->reason == kGpuFailed;
  const int code = pod.exit ? pod.exit->exit_code : -1;
  const bool asked = code == contract::kExitTerminatedAfterCheckpoint &&
                     (pod.terminating || disruption_of(pod) != nullptr);
  loss.follows_peer = pod.exit && follows_peer(*pod.exit) && !asked;
  if (code == contract::kExitBadConfig || code == contract::kExitBadData) {
    loss.fatal_reason = api::reason::kFatalExitCode;
  }
  if (const auto match = first_match(policy, pod)) apply_rule(*match, pod, loss);
  return loss;
}

Loss judge_failed_rank(const api::FailurePolicy& policy, const ObservedPod& pod,
                       ContainerExit end) {
  ObservedPod ended = pod;
  ended.phase = PodPhase::kFailed;
  ended.exit = std::move(end);
  return judge_failed_pod(policy, ended);
}

Loss judge_lost_pod(const api::FailurePolicy& policy, const ObservedPod& pod,
                    const std::string& message) {
  Loss loss = describe(pod);
  loss.reason = is_node_lost(pod) ? api::reason::kNodeLost : api::reason::kPodLost;
  loss.failure_class =
      disruption_of(pod) != nullptr ? FailureClass::kPreemption : FailureClass::kInfrastructure;
  loss.message = message;
  if (const auto match = first_match(policy, pod)) apply_rule(*match, pod, loss);
  return loss;
}

bool never_has_image(const std::string& reason) {
  return reason == "ErrImageNeverPull" || reason == "InvalidImageName";
}

std::optional<Duration> time_to_have_image(const ObservedPod& pod, Time now) {
  constexpr std::chrono::seconds kGrace{60};  // somebody may load it onto the node meanwhile
  if (!pod.waiting || !never_has_image(pod.waiting->reason)) return std::nullopt;
  return pod.waiting->since.value_or(pod.created_at.value_or(now)) + kGrace - now;
}

Loss judge_without_image(const api::FailurePolicy& policy, const ObservedPod& pod) {
  Loss loss = describe(pod);
  loss.failure_class =
      disruption_of(pod) != nullptr ? FailureClass::kPreemption : FailureClass::kApplication;
  loss.reason = api::reason::kImagePull;
  loss.container = pod.waiting->container;
  loss.message = text_of(*pod.waiting);
  if (const auto match = first_match(policy, pod)) apply_rule(*match, pod, loss);
  return loss;
}

const Loss& root_cause(const std::vector<Loss>& losses) {
  const auto before = [](const Loss& a, const Loss& b) {
    if (a.fatal_reason.has_value() != b.fatal_reason.has_value()) {
      return a.fatal_reason.has_value();
    }
    if (a.follows_peer != b.follows_peer) return b.follows_peer;
    return a.at.value_or(Time::max()) < b.at.value_or(Time::max());
  };
  return *std::min_element(losses.begin(), losses.end(), before);
}

bool within_budget(const api::FailurePolicy& policy, const api::RestartCounts& restarts,
                   FailureClass failure_class, Time now) {
  const api::RestartBudget budget = api::budget_of(policy, failure_class);
  for (const api::ClassRestarts& entry : restarts.classes) {
    if (entry.failure_class != failure_class) continue;
    const auto used = std::count_if(entry.recent.begin(), entry.recent.end(),
                                    [&](Time at) { return now - at < budget.window; });
    // The window may hold more than are remembered.
    const bool all_within = used == std::ssize(entry.recent);
    const bool may_be_more = all_within && used >= kCrowdedRecentRestarts;
    return (may_be_more ? entry.total : used) < budget.max_restarts;
  }
  return budget.max_restarts > 0;
}

void count_restart(api::RestartCounts& restarts, const api::RestartBudget& budget, bool counted,
                   Time now) {
  ++restarts.total;
  api::ClassRestarts* entry = find_class(restarts, budget.failure_class);
  if (entry == nullptr) {
    restarts.classes.push_back({budget.failure_class, 0, {}});
    entry = &restarts.classes.back();
  }
  ++entry->total;
  if (!counted) return;
  entry->recent.push_back(std::chrono::floor<std::chrono::milliseconds>(now));
  const auto kept = static_cast<size_t>(
      std::clamp<int64_t>(budget.max_restarts, kFewestRecentRestarts, api::kMaxRecentRestarts));
  if (entry->recent.size() > kept) {
    entry->recent.erase(entry->recent.begin(),
                        entry->recent.end() - static_cast<std::ptrdiff_t>(kept));
  }
}

Time committed_at(const api::TrainingJobStatus& status) {
  if (!status.checkpoint || !status.checkpoint->last_time) return Time::min();
  return *status.checkpoint->last_time;
}

Duration backoff_of(const api::FailurePolicy& policy, const api::TrainingJobStatus& status,
                    Time now) {
  const api::RestartBackoff& backoff = policy.backoff;
  const Time committed = committed_at(status);
  // A class of a later version has no budget here.
  const auto counts = [&](const api::OpenWord<FailureClass>& failure_class, Time at) {
    const auto known = failure_class.value();
    return known && at > committed && now - at < api::budget_of(policy, *known).window;
  };
  std::set<int64_t> generations;  // several pods that one restart replaces have an attempt each
  for (const api::Attempt& attempt : status.attempts) {
    if (!attempt.failure_class || !attempt.end_time) continue;
    if (counts(*attempt.failure_class, *attempt.end_time)) generations.insert(attempt.generation);
  }
  int64_t by_windows = 0;
  for (const api::ClassRestarts& entry : status.restarts.classes) {
    by_windows += std::count_if(entry.recent.begin(), entry.recent.end(),
                                [&](Time at) { return counts(entry.failure_class, at); });
  }
  const int64_t restarts = std::max(std::ssize(generations), by_windows);
  // It had come to a new checkpoint: nothing speaks against another try.
  if (restarts == 1 && committed != Time::min()) return Duration::zero();
  Duration wait = restarts > 0 ? Duration(backoff.initial) : Duration::zero();
  for (int64_t i = 1; i < restarts && wait < backoff.max; ++i)
    wait *= 2;
  return std::min<Duration>(wait, backoff.max);
}

}  // namespace trainyard::control::policies
