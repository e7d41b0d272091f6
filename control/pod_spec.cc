#include "control/pod_spec.h"

#include <algorithm>
#include <array>
#include <span>

#include "common/api/encode.h"
#include "common/api/job_size.h"
#include "common/hash/hash.h"
#include "common/worker_contract.h"

namespace trainyard::control {
namespace {

/// Lower-case letters and digits without vowels and look-alikes, so that no word arises (the
/// alphabet of Kubernetes' generated names).
constexpr std::string_view kAlphabet = "bcdfghjklmnpqrstvwxz2456789";
constexpr int kHashLetters = 5;
/// Time beyond the preemption checkpoint for ranks and agent to end.
constexpr std::chrono::seconds kGraceMargin{30};
/// Beyond the longest stall and start-up, so that the controller has acted before ranks give each
/// other up.
constexpr std::chrono::seconds kStallMargin{60};

/// Whether a restart may keep pods.
bool agents_stay(const api::TrainingJobSpec& spec) {
  using api::StallAction;
  const StallAction on_stall = spec.progress_policy.on_stall;
  return spec.agent != api::AgentMode::kNone &&
         (spec.failure_policy.restart_strategy != api::RestartStrategy::kRecreateAll ||
          on_stall == StallAction::kRestartProcess || on_stall == StallAction::kReplacePod ||
          on_stall == StallAction::kReplaceNode);
}

std::string hashed_name(const std::string& job_name, const std::string& place,
                        const std::string& identity) {
  const Hash128 digest = xxh3_128(std::as_bytes(std::span(identity)));
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i)
    value = value << 8 | digest[static_cast<size_t>(i)];
  std::string name = job_name + "-" + place + "-";
  for (int i = 0; i < kHashLetters; ++i) {
    name.push_back(kAlphabet[value % kAlphabet.size()]);
    value /= kAlphabet.size();
  }
  return name;
}

}  // namespace

std::string pod_name(const std::string& job_name, const std::string& job_uid, int node_index,
                     int64_t created_generation) {
  const std::string place = std::to_string(node_index);
  return hashed_name(job_name, place,
                     job_uid + "/" + place + "/" + std::to_string(created_generation));
}

std::string spare_name(const std::string& job_name, const std::string& job_uid, int64_t number) {
  const std::string place = "s" + std::to_string(number);
  return hashed_name(job_name, place, job_uid + "/" + place);
}

std::string configuration_of(const api::TrainingJobSpec& spec) {
  constexpr size_t kBytes = 8;
  const api::TrainingJobSpec defaults;
  api::TrainingJobSpec seen = spec;
  seen.suspend = defaults.suspend;
  seen.managed_by = defaults.managed_by;
  seen.active_deadline = defaults.active_deadline;
  seen.ttl_after_finished = defaults.ttl_after_finished;
  seen.num_nodes = defaults.num_nodes;
  seen.elastic_policy = defaults.elastic_policy;
  seen.spares = defaults.spares;
  seen.failure_policy = defaults.failure_policy;
  seen.success_policy = defaults.success_policy;
  seen.keep_failed_pods = defaults.keep_failed_pods;
  seen.scheduling.gang_timeout = defaults.scheduling.gang_timeout;
  seen.progress_policy = defaults.progress_policy;
  if (spec.engine) {  // of which the pods' time-out is made
    seen.progress_policy.startup_timeout = spec.progress_policy.startup_timeout;
    seen.progress_policy.max_stall = spec.progress_policy.max_stall;
  }
  const std::string text = api::encode_spec(seen);
  const Hash128 digest = xxh3_128(std::as_bytes(std::span(text)));
  return to_hex(std::span(digest).first(kBytes));
}

std::chrono::seconds grace_of(const api::TrainingJobSpec& spec) {
  return spec.checkpoint_policy.preemption_checkpoint + kGraceMargin;
}

PodSpec make_pod_spec(const api::ObjectMeta& metadata, const api::TrainingJobSpec& spec,
                      int node_index, int64_t generation, int64_t num_nodes) {
  PodSpec pod;
  pod.name = pod_name(metadata.name, metadata.uid, node_index, generation);
  pod.namespace_name = metadata.namespace_name;
  pod.job_name = metadata.name;
  pod.job_uid = metadata.uid;
  pod.node_index = node_index;
  pod.created_generation = generation;
  pod.grace = grace_of(spec);
  pod.spec_generation = metadata.generation;
  pod.environment = {
      {contract::kEnvJob, metadata.name},
      {contract::kEnvJobUid, metadata.uid},
      {contract::kEnvNamespace, metadata.namespace_name},
      {contract::kEnvNodeIndex, std::to_string(node_index)},
      {contract::kEnvGeneration, std::to_string(generation)},
      {kEnvPodName, pod.name},
      {kEnvNumNodes, std::to_string(num_nodes)},
      {kEnvNodeRank, std::to_string(node_index)},
      {kEnvNumProcPerNode, std::to_string(api::ranks_per_node(spec))},
  };
  if (spec.engine) {
    const api::ProgressPolicy& policy = spec.progress_policy;
    const auto timeout = std::max(policy.max_stall, policy.startup_timeout) + kStallMargin;
    pod.environment.emplace(contract::kEnvPeerTimeout, std::to_string(timeout.count()));
  }
  if (agents_stay(spec)) pod.environment.emplace(kEnvStays, "1");
  const bool in_place = spec.failure_policy.restart_strategy == api::RestartStrategy::kInPlace;
  if (agents_stay(spec) && in_place && spec.engine) pod.environment.emplace(kEnvKeepsStates, "1");
  if (spec.pod_template) pod.template_json = spec.pod_template->json;
  return pod;
}

PodSpec make_spare_spec(const api::ObjectMeta& metadata, const api::TrainingJobSpec& spec,
                        int64_t number, int64_t generation, int64_t num_nodes) {
  // What it is told by its environment is of no index that a member has.
  PodSpec pod = make_pod_spec(metadata, spec, static_cast<int>(num_nodes), generation, num_nodes);
  pod.name = spare_name(metadata.name, metadata.uid, number);
  pod.environment[kEnvPodName] = pod.name;
  pod.node_index = -1;
  pod.spare = number;
  pod.role = kSpareRole;
  pod.member = false;
  return pod;
}

}  // namespace trainyard::control
