#include "agent/rank_environment.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "agent/bundle_layout.h"
#include "common/worker_contract.h"
#include "control/pod_spec.h"

namespace trainyard::agent {
namespace {

// Where a foreign program finds its peers when the pod says nothing else.
constexpr char kDefaultMasterAddress[] = "127.0.0.1";
constexpr char kDefaultMasterPort[] = "29500";  // torchrun's

/// Sets `name` unless the pod has it.
void set_default(std::map<std::string, std::string>& variables, const char* name,
                 const std::string& value) {
  variables.try_emplace(name, value);
}

/// torchrun's variables (torch.distributed.run, "Environment Variables"); WORLD_SIZE and RANK count
/// processes, GROUP_* count nodes.
void add_torchrun(const AgentOptions& options, const RankLaunch& launch,
                  std::map<std::string, std::string>& variables) {
  set_default(variables, "MASTER_ADDR", kDefaultMasterAddress);
  set_default(variables, "MASTER_PORT", kDefaultMasterPort);
  set_default(variables, "PET_MAX_RESTARTS", "0");
  variables[contract::kEnvRank] = std::to_string(launch.rank);
  variables[contract::kEnvWorldSize] = std::to_string(launch.world_size);
  variables[contract::kEnvLocalRank] = std::to_string(launch.local_rank);
  variables[contract::kEnvLocalWorldSize] = std::to_string(launch.local_world_size);
  variables["NODE_RANK"] = std::to_string(launch.node_rank);
  variables["GROUP_RANK"] = std::to_string(launch.node_rank);
  variables["GROUP_WORLD_SIZE"] = std::to_string(launch.node_count);
  variables["TORCHELASTIC_RUN_ID"] = options.job_uid;
  variables["TORCHELASTIC_RESTART_COUNT"] =
      std::to_string(std::max<int64_t>(0, launch.generation - 1));
  variables["TORCHELASTIC_MAX_RESTARTS"] = variables["PET_MAX_RESTARTS"];
}

/// What jax.distributed.initialize() reads.
void add_jax(const RankLaunch& launch, std::map<std::string, std::string>& variables) {
  set_default(variables, "JAX_COORDINATOR_ADDRESS",
              variables["MASTER_ADDR"] + ":" + variables["MASTER_PORT"]);
  variables["JAX_NUM_PROCESSES"] = std::to_string(launch.world_size);
  variables["JAX_PROCESS_ID"] = std::to_string(launch.rank);
}

}  // namespace

std::vector<std::string> rank_environment(const AgentOptions& options, const RankLaunch& launch,
                                          const std::vector<std::string>& base, int progress_fd,
                                          int agent_fd, int memory_fd) {
  std::map<std::string, std::string> variables;
  for (const std::string& entry : base) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) continue;
    variables[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  const std::string for_ranks = kEnvForRanks;
  while (true) {
    const auto kept = variables.lower_bound(for_ranks);
    if (kept == variables.end() || !kept->first.starts_with(for_ranks)) break;
    auto theirs = variables.extract(kept);
    if (theirs.key().size() > for_ranks.size()) {
      variables[theirs.key().substr(for_ranks.size())] = std::move(theirs.mapped());
    }
  }
  add_torchrun(options, launch, variables);
  // The order in which the driver counts GPUs, so that GPU n of a rank is GPU n of the watch and of
  // nvidia-smi ("CUDA Environment Variables", CUDA C++ Programming Guide).
  set_default(variables, "CUDA_DEVICE_ORDER", "PCI_BUS_ID");
  if (!options.is_engine()) add_jax(launch, variables);
  variables[contract::kEnvProgressFd] = std::to_string(progress_fd);
  variables[contract::kEnvAgentFd] = std::to_string(agent_fd);
  variables.erase(contract::kEnvMemoryFd);  // of the rank that runs this agent, if one does
  if (memory_fd >= 0) variables[contract::kEnvMemoryFd] = std::to_string(memory_fd);
  variables[contract::kEnvGeneration] = std::to_string(launch.generation);
  for (const char* name : {contract::kEnvNodeIndex, control::kEnvNodeRank})
    variables[name] = std::to_string(launch.node_index);
  std::vector<std::string> environment;
  for (const auto& [name, value] : variables)
    environment.push_back(name + "=" + value);
  return environment;
}

}  // namespace trainyard::agent
