#pragma once

#include <string>
#include <vector>

#include "agent/agent_options.h"
#include "agent/rank_host.h"

namespace trainyard::agent {

/// The environment of one rank: `base` (NAME=value, the agent's own), and over it torchrun's and
/// JAX's names for its place in the world and the descriptors of common/worker_contract.h.
/// docs/reference/worker-contract.md lists them; `memory_fd` -1: there is none. Pure.
std::vector<std::string> rank_environment(const AgentOptions& options, const RankLaunch& launch,
                                          const std::vector<std::string>& base, int progress_fd,
                                          int agent_fd, int memory_fd = -1);

}  // namespace trainyard::agent
