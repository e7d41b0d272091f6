#include "control/plan_status.h"

#include <algorithm>
#include <utility>

#include "common/api/job_size.h"
#include "common/layout/mesh.h"
#include "common/text/readable.h"
#include "common/text/rfc3339.h"
#include "control/pod_spec.h"
#include "control/policies/elastic.h"
#include "control/status_edit.h"

namespace trainyard::control {
namespace {

using api::ConditionStatus;
using api::ConditionType;

void fill_cause(api::Attempt& attempt, const policies::Loss& loss) {
  attempt.failure_class = loss.failure_class;
  attempt.reason = loss.reason;
  attempt.pod_name = loss.pod_name;
  attempt.pod_uid = loss.pod_uid;
  attempt.container = loss.container;
  attempt.node = loss.node;
  attempt.rank = loss.rank;
  attempt.exit_code = loss.exit_code;
  attempt.signal = loss.signal;
  attempt.message = loss.message;
}

/// Puts an attempt back through push_attempt, which keeps the limits.
void replace_open(api::TrainingJobStatus& status, api::Attempt attempt) {
  std::erase_if(status.attempts, [&](const api::Attempt& other) {
    return other.generation == attempt.generation && !other.end_time;
  });
  push_attempt(status, std::move(attempt));
}

void set_step(api::ProgressStatus& progress, int64_t step) {
  progress.step = step;
  if (progress.total_steps > 0) progress.percentage = 100 * step / progress.total_steps;
}

/// Sets a condition to False for this reason, also one that was False for another.
void end_condition(api::TrainingJobStatus& status, ConditionType type, std::string_view reason,
                   std::string_view message, Time now) {
  if (find_condition(status, type) == nullptr) return;
  set_condition(status, {type, ConditionStatus::kFalse, reason, message}, now);
}

/// True before the pods are made and after: a status write less.
std::string sentence_of(const BackOff& back_off, int64_t restart) {
  using std::chrono::ceil;
  using std::chrono::seconds;
  return " of restart " + std::to_string(restart) + ", which begins at " +
         text::format_time(ceil<seconds>(back_off.ends)) + " after a back-off of " +
         std::to_string(ceil<seconds>(back_off.length).count()) + " s";
}

std::string count_of(int64_t some, int64_t all, std::string_view what) {
  return std::to_string(some) + " of " + std::to_string(all) + " " + std::string(what);
}

void describe_size(api::TrainingJobStatus& status, const api::TrainingJobSpec& spec,
                   bool spares_exhausted, Time now) {
  const int64_t target = status.nodes.target;
  const int64_t wanted = policies::nodes_at_start(spec);
  if (target < wanted) {
    set_condition(status,
                  {ConditionType::kDegraded, ConditionStatus::kTrue, api::reason::kBelowNumNodes,
                   count_of(target, wanted, "nodes")},
                  now);
  } else if (spares_exhausted) {
    // The message may be that of the cluster, which takes none.
    if (lacks_spares(status)) return;
    set_condition(status,
                  {ConditionType::kDegraded, ConditionStatus::kTrue, api::reason::kSparesExhausted,
                   "no spare pod is ready: a lost pod is replaced by a new one"},
                  now);
  } else if (wanted < spec.num_nodes || find_condition(status, ConditionType::kDegraded)) {
    set_condition(status,
                  {ConditionType::kDegraded, ConditionStatus::kFalse, api::reason::kBelowNumNodes,
                   wanted < spec.num_nodes ? policies::not_allowed_text(spec)
                                           : "all wanted nodes are present"},
                  now);
  }
}

/// Until new pods exist, the condition says why the old ones were deleted.
bool has_let_go(const api::TrainingJobStatus& status, const policies::Gang& gang) {
  const api::Condition* scheduled = find_condition(status, ConditionType::kScheduled);
  return scheduled != nullptr && scheduled->reason == api::reason::kGangIncomplete &&
         std::ssize(gang.missing) >= status.nodes.target;
}

/// Why pods that have nodes do not start; false: nothing keeps them from it.
bool describe_trouble(api::TrainingJobStatus& status, const policies::Gang& gang, Time now) {
  if (gang.trouble == nullptr) return false;
  const int64_t target = status.nodes.target;
  const std::string about = ": " + gang.troubled + ": ";
  std::string words = gang.trouble_words;
  Time since = now;
  if (const api::Condition* before = find_condition(status, ConditionType::kRunning)) {
    // The kubelet's words change with every try: the first ones say why.
    const size_t told =
        before->reason == gang.trouble ? before->message.find(about) : std::string::npos;
    if (told != std::string::npos) words = before->message.substr(told + about.size());
  } else if (const api::Attempt* open = open_attempt(status)) {
    // A later time would mean that this generation ran.
    since = open->start_time.value_or(now);
  }
  const std::string count = count_of(gang.troubled_pods, target, target == 1 ? "pod" : "pods");
  set_condition(
      status,
      {ConditionType::kRunning, ConditionStatus::kFalse, gang.trouble, count + about + words},
      since);
  return true;
}

/// Whether what is told of is a checkpoint after the one written down. Ranks that fell back past
/// one that cannot be read commit lower steps than it has; it is of an earlier generation.
bool is_newer(const CheckpointFact& told, const api::TrainingJobStatus& status) {
  if (!status.checkpoint || told.step > status.checkpoint->last_step) return true;
  const api::Attempt* open = open_attempt(status);
  return told.step < status.checkpoint->last_step &&
         told.generation == status.membership.generation && open != nullptr && open->start_time &&
         status.checkpoint->last_time && *status.checkpoint->last_time < *open->start_time;
}

/// Empty of a program of the user's own.
std::string layout_of(const api::TrainingJobSpec& spec, int64_t world) {
  if (!spec.engine) return "";
  const api::ParallelismSpec& parallelism = spec.engine->parallelism;
  const auto mesh = layout::mesh_of(parallelism, static_cast<int>(world));
  return mesh ? layout::describe(parallelism, *mesh) : "";
}

}  // namespace

std::string sentence_of(const policies::Loss& loss, int64_t words_bytes) {
  std::string text;
  if (!loss.pod_name.empty()) text += "pod " + loss.pod_name;
  if (!loss.container.empty()) text += " container " + loss.container;
  if (!loss.node.empty()) text += " on node " + loss.node;
  if (loss.rank) text += (text.empty() ? "rank " : " rank ") + std::to_string(*loss.rank);
  if (loss.signal) {
    text += ": ended by " + signal_text(*loss.signal);
  } else if (loss.exit_code) {
    text += ": exit code " + std::to_string(*loss.exit_code);
  }
  const std::string words = shortened_text(loss.message, words_bytes);
  if (!words.empty()) text += (text.empty() ? "" : ": ") + words;
  return text;
}

void open_generation(api::TrainingJobStatus& status, const api::ObjectMeta& metadata,
                     const api::TrainingJobSpec& spec, int64_t generation, int64_t target,
                     Time now) {
  status.nodes.target = target;
  for (api::Condition& condition : status.conditions) {
    // A later time means that this generation ran; a leader whose clock was ahead may have written
    // one.
    const bool ends = condition.type == ConditionType::kRunning && condition.last_transition_time;
    if (ends) condition.last_transition_time = std::min(*condition.last_transition_time, now);
  }
  std::string worker_image = std::move(status.membership.worker_image);
  // Generations are reserved in blocks only where ranks restart in place.
  status.membership = {.generation = generation,
                       .reserved_up_to = generation,
                       .pods_since = generation,
                       .world_size = target * api::ranks_per_node(spec),
                       .layout = layout_of(spec, target * api::ranks_per_node(spec)),
                       .master = metadata.name + "-0",
                       .configuration = configuration_of(spec),
                       .worker_image = std::move(worker_image)};
  status.completed_indexes.clear();
  // They are made from what the pods of the generation before were made from.
  if (status.spares) status.spares->parked.clear();
  api::Attempt attempt;
  attempt.generation = generation;
  attempt.start_time = now;
  push_attempt(status, std::move(attempt));
}

void close_attempt(api::TrainingJobStatus& status, const AttemptEnd& end, Time now) {
  const int64_t generation = status.membership.generation;
  api::Attempt attempt;
  attempt.generation = generation;
  if (const api::Attempt* open = open_attempt(status)) attempt = *open;
  attempt.end_time = now;
  attempt.end_step = end.last_step;
  // Progress is written seldom; what an attempt reached is not to be told differently beside it.
  if (status.progress && end.last_step && *end.last_step > status.progress->step) {
    set_step(*status.progress, *end.last_step);
  }
  if (end.cause != nullptr) {
    fill_cause(attempt, *end.cause);
    if (end.in_place) attempt.in_place = true;
  } else {
    attempt.reason = end.reason;
    if (end.requested) attempt.requested = true;
  }
  replace_open(status, std::move(attempt));
}

void note_last_step(api::TrainingJobStatus& status, std::optional<int64_t> last_step) {
  for (api::Attempt& attempt : status.attempts) {
    if (attempt.generation != status.membership.generation || !last_step) continue;
    attempt.end_step = std::max(attempt.end_step.value_or(*last_step), *last_step);
  }
}

void note_further_loss(api::TrainingJobStatus& status, const policies::Loss& loss, Time now) {
  api::Attempt attempt;
  attempt.generation = status.membership.generation;
  attempt.end_time = now;
  fill_cause(attempt, loss);
  push_attempt(status, std::move(attempt));
}

void note_facts(api::TrainingJobStatus& status, const StreamFacts& facts) {
  if (!facts.hosted) return;
  if (facts.checkpoint && is_newer(*facts.checkpoint, status)) {
    status.checkpoint = {facts.checkpoint->step, facts.checkpoint->uri, facts.checkpoint->digest,
                         facts.checkpoint->at};
  }
  if (facts.generation != status.membership.generation || !facts.resumed_from_step) return;
  const int64_t resumed_from = *facts.resumed_from_step;
  for (api::Attempt& attempt : status.attempts) {
    if (attempt.generation == facts.generation && !attempt.start_step) {
      attempt.start_step = resumed_from;
    }
    if (attempt.generation >= facts.generation || attempt.resumed_from_step) continue;
    attempt.resumed_from_step = resumed_from;
    // One that ended before it had a state has done nothing that could be lost.
    attempt.lost_steps = std::max<int64_t>(0, attempt.end_step.value_or(0) - resumed_from);
    if (status.goodput) status.goodput->lost_steps += *attempt.lost_steps;
  }
}

void count_pods(api::TrainingJobStatus& status, const api::ObjectMeta& metadata,
                const PodSets& sets, const PodUids& without_ranks) {
  api::NodeCounts nodes;
  nodes.target = status.nodes.target;
  nodes.succeeded = std::ssize(sets.completed);
  for (const ObservedPod* pod : sets.members) {
    if (sets.completed.contains(pod->node_index)) continue;
    if (pod->phase == PodPhase::kSucceeded) {
      ++nodes.succeeded;
    } else if (pod->phase == PodPhase::kFailed) {
      ++nodes.failed;
    } else if (!pod->terminating) {
      ++nodes.active;
      if (pod->ready && !without_ranks.contains(pod->uid)) ++nodes.ready;
    } else {
      ++nodes.condemned;
    }
  }
  for (const ObservedPod* pod : sets.condemned) {
    if (!is_finished(*pod)) {
      ++nodes.condemned;
    } else if (pod->phase == PodPhase::kFailed) {
      ++nodes.failed;
    }
  }
  nodes.spare = std::count_if(sets.parked.begin(), sets.parked.end(),
                              [](const auto* pod) { return pod->ready && !pod->terminating; });
  status.nodes = nodes;
  status.roles = {{kTrainerRole, nodes.target, nodes.ready}};
  if (status.spares && !status.spares->parked.empty()) {
    status.roles.push_back({kSpareRole, std::ssize(status.spares->parked), nodes.spare});
  }
  status.selector = "trainyard.dev/job-uid=" + metadata.uid + ",trainyard.dev/member=true";
}

std::optional<BackOff> back_off_of(const api::TrainingJobStatus& status,
                                   const api::TrainingJobSpec& spec) {
  const api::Attempt* open = open_attempt(status);
  if (!is_true(status, ConditionType::kRestarting)) return std::nullopt;
  if (open == nullptr || !open->start_time) return std::nullopt;
  const Duration length = policies::backoff_of(spec.failure_policy, status, *open->start_time);
  if (length <= Duration::zero()) return std::nullopt;
  return BackOff{*open->start_time + length, length};
}

std::string phase_before_ranks(const api::TrainingJobStatus& status,
                               const api::TrainingJobSpec& spec, Time now) {
  const std::optional<BackOff> back_off = back_off_of(status, spec);
  return back_off && now < back_off->ends ? kBackOff : "Starting";
}

void describe_running(api::TrainingJobStatus& status, const policies::Gang& gang, bool ranks_run,
                      Time now) {
  if (describe_trouble(status, gang, now)) return;
  const int64_t target = status.nodes.target;
  const bool running =
      ranks_run && status.nodes.ready + status.nodes.succeeded >= target && target > 0;
  if (running) {
    // Nodes that end one after the other are no reason to write the status each time.
    const std::string which =
        status.nodes.succeeded == 0
            ? count_of(target, target, "nodes are ready")
            : "each of " + std::to_string(target) + " nodes is ready or has ended well";
    set_condition(
        status,
        {ConditionType::kRunning, ConditionStatus::kTrue, api::reason::kAllNodesReady, which}, now);
    const std::string again =
        "generation " + std::to_string(status.membership.generation) + " is running";
    for (const ConditionType type : {ConditionType::kRestarting, ConditionType::kResizing}) {
      const api::Condition* condition = find_condition(status, type);
      if (condition != nullptr) clear_condition(status, type, condition->reason, again, now);
    }
  } else {
    end_condition(status, ConditionType::kRunning, api::reason::kBelowMinNodes,
                  target == 1 ? "the node is not ready"
                              : "fewer than " + std::to_string(target) + " nodes are ready",
                  now);
  }
}

void describe_generation(api::TrainingJobStatus& status, const api::TrainingJobSpec& spec,
                         const policies::Gang& gang, const GenerationLook& look, Time now) {
  const int64_t target = status.nodes.target;
  if (gang.placed) {
    set_condition(
        status,
        {ConditionType::kScheduled, ConditionStatus::kTrue, api::reason::kGangScheduled,
         "every pod of generation " + std::to_string(status.membership.generation) + " has a node"},
        now);
  } else if (!is_true(status, ConditionType::kScheduled) && !has_let_go(status, gang)) {
    const bool refused = !gang.unschedulable.empty();
    std::string waiting =
        target == 1 ? "waiting for the pod" : "waiting for all " + std::to_string(target) + " pods";
    const std::optional<BackOff> back_off = back_off_of(status, spec);
    if (back_off) waiting += sentence_of(*back_off, status.restarts.total);
    set_condition(status,
                  {ConditionType::kScheduled, ConditionStatus::kFalse,
                   refused ? api::reason::kUnschedulable : api::reason::kWaitingForGang,
                   refused ? gang.unschedulable : waiting},
                  now);
  }
  describe_running(status, gang, look.ranks_run, now);
  describe_size(status, spec, look.spares_exhausted, now);
}

std::optional<Duration> describe_checkpoint_age(api::TrainingJobStatus& status,
                                                const api::TrainingJobSpec& spec, Time now) {
  const api::Condition* running = find_condition(status, ConditionType::kRunning);
  if (running == nullptr || running->status != ConditionStatus::kTrue) return std::nullopt;
  Time since = running->last_transition_time.value_or(now);
  if (status.checkpoint && status.checkpoint->last_time) {
    since = std::max(since, *status.checkpoint->last_time);
  }
  const Duration left = spec.checkpoint_policy.max_age - (now - since);
  if (left <= Duration::zero()) {
    set_condition(status,
                  {ConditionType::kCheckpointStale, ConditionStatus::kTrue, "MaxAgeExceeded",
                   "no checkpoint for " + std::to_string(spec.checkpoint_policy.max_age.count()) +
                       " s (checkpointPolicy.maxAgeSeconds)"},
                  now);
    return std::nullopt;
  }
  clear_condition(status, ConditionType::kCheckpointStale, "Fresh", "a checkpoint was committed",
                  now);
  return left;
}

void clear_running_conditions(api::TrainingJobStatus& status, std::string_view message, Time now,
                              bool keeps_pods) {
  if (!keeps_pods) {
    clear_condition(status, ConditionType::kScheduled, api::reason::kWaitingForGang, message, now);
  }
  clear_condition(status, ConditionType::kRunning, api::reason::kBelowMinNodes, message, now);
  clear_condition(status, ConditionType::kStalled, api::reason::kNoStepProgress, message, now);
  clear_condition(status, ConditionType::kCheckpointStale, "Fresh", message, now);
  for (const ConditionType type : {ConditionType::kRestarting, ConditionType::kResizing}) {
    const api::Condition* condition = find_condition(status, type);
    if (condition != nullptr) clear_condition(status, type, condition->reason, message, now);
  }
}

void note_resumption(api::TrainingJobStatus& status, Time now) {
  for (const api::Condition& condition : status.conditions) {
    if (condition.reason != api::reason::kJobSuspended || !condition.type.value()) continue;
    end_condition(status, *condition.type.value(), api::reason::kResumed, "resumed", now);
  }
}

void end_running_conditions(api::TrainingJobStatus& status, std::string_view reason,
                            std::string_view message, Time now) {
  for (const ConditionType type :
       {ConditionType::kScheduled, ConditionType::kRunning, ConditionType::kDegraded}) {
    end_condition(status, type, reason, message, now);
  }
  for (const ConditionType type : {ConditionType::kStalled, ConditionType::kCheckpointStale,
                                   ConditionType::kRestarting, ConditionType::kResizing}) {
    clear_condition(status, type, reason, message, now);
  }
}

}  // namespace trainyard::control
