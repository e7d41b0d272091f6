#include "operator/render/environment.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "common/api/validate.h"
#include "common/worker_contract.h"
#include "operator/render/names.h"

namespace trainyard::render {
namespace {

using nlohmann::json;

/// Entries of a container's `env`. Kubernetes expands "$(NAME)" in values; ours hold none.
class Entries {
 public:
  void set(const std::string& name, std::string value) {
    list_.push_back({{"name", name}, {"value", std::move(value)}});
  }
  void set(const std::string& name, int64_t value) { set(name, std::to_string(value)); }
  void from_field(const std::string& name, const char* path) {
    list_.push_back({{"name", name}, {"valueFrom", {{"fieldRef", {{"fieldPath", path}}}}}});
  }
  json take() { return std::move(list_); }

 private:
  json list_ = json::array();
};

struct Place {
  std::string master;
  std::string port;
  std::string nodes;  ///< in the gang, as the brain says
};

/// What torchrun's command line would be: static rendezvous, so that the group rank is the node's
/// index and restarts are ours alone.
void add_torchrun(const api::ObjectMeta& job, const Place& place, Entries& entries) {
  const std::string endpoint = place.master + ":" + place.port;
  entries.set("MASTER_ADDR", place.master);
  entries.set("MASTER_PORT", place.port);
  entries.set("PET_MASTER_ADDR", place.master);
  entries.set("PET_MASTER_PORT", place.port);
  entries.set("PET_RDZV_BACKEND", "static");
  entries.set("PET_RDZV_ENDPOINT", endpoint);
  entries.set("PET_RDZV_ID", job.uid);
  entries.set("PET_MAX_RESTARTS", 0);
}

/// The pod is one process of one rank.
void add_single_rank(const api::ObjectMeta& job, const control::PodSpec& pod, const Place& place,
                     Entries& entries) {
  for (const char* name : {contract::kEnvRank, "NODE_RANK", "GROUP_RANK"})
    entries.set(name, pod.node_index);
  for (const char* name : {contract::kEnvWorldSize, "GROUP_WORLD_SIZE"})
    entries.set(name, place.nodes);
  entries.set(contract::kEnvLocalRank, 0);
  entries.set(contract::kEnvLocalWorldSize, 1);
  entries.set("TORCHELASTIC_RUN_ID", job.uid);
  entries.set("TORCHELASTIC_RESTART_COUNT", std::max<int64_t>(0, pod.created_generation - 1));
  entries.set("TORCHELASTIC_MAX_RESTARTS", 0);
}

/// One JAX process a pod, whatever the number of its devices.
void add_jax(const control::PodSpec& pod, const Place& place, Entries& entries) {
  entries.set("JAX_COORDINATOR_ADDRESS", place.master + ":" + place.port);
  entries.set("JAX_NUM_PROCESSES", place.nodes);
  entries.set("JAX_PROCESS_ID", pod.node_index);
}

void add_engine(Entries& entries) {
  const std::string folder = kEngineFolder;
  entries.set(contract::kEnvEngineConfig, folder + "/" + kEngineFile);
  entries.set(contract::kEnvCheckpointPolicy, folder + "/" + kCheckpointPolicyFile);
}

void add_agent(const api::TrainingJobSpec& spec, const PodDefaults& defaults, int port,
               Entries& entries) {
  entries.set(control::kEnvStopGrace, spec.checkpoint_policy.preemption_checkpoint.count());
  const std::string folder = std::string(kControlFolder) + "/";
  entries.set(contract::kEnvControlAddress, defaults.control_address);
  entries.set(control::kEnvControlAuthorities, folder + kAuthoritiesFile);
  entries.set(control::kEnvControlToken, folder + kTokenFile);
  entries.set(control::kEnvTerminationLog, kTerminationLog);
  entries.set(control::kEnvAgentMetricsAddress, ":" + std::to_string(port));
}

}  // namespace

bool runs_agent(const api::TrainingJobSpec& spec) {
  return spec.engine || api::needs_injected_agent(spec);
}

json environment_of(const api::ObjectMeta& job, const api::TrainingJobSpec& spec,
                    const control::PodSpec& pod, const PodDefaults& defaults, int agent_port) {
  Entries entries;
  for (const auto& [name, value] : pod.environment)
    entries.set(name, value);
  entries.from_field(control::kEnvPodUid, "metadata.uid");
  entries.from_field(contract::kEnvHost, "status.podIP");
  const auto nodes = pod.environment.find(control::kEnvNumNodes);
  const Place place{dns_name(job, 0), std::to_string(spec.rendezvous.port),
                    nodes == pod.environment.end() ? "1" : nodes->second};
  add_torchrun(job, place, entries);
  if (spec.engine) {
    add_engine(entries);
  } else if (!runs_agent(spec)) {
    if (spec.num_proc_per_node == 1) add_single_rank(job, pod, place, entries);
    add_jax(pod, place, entries);
  }
  if (runs_agent(spec)) add_agent(spec, defaults, agent_port, entries);
  const std::string checkpoints = api::checkpoint_folder(job, spec);
  if (!checkpoints.empty()) entries.set(contract::kEnvCheckpointDir, checkpoints);
  return entries.take();
}

}  // namespace trainyard::render
