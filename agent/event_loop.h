#pragma once

#include "agent/agent_options.h"
#include "common/log/log.h"

namespace trainyard::agent {

/// Blocks the signals that run_agent takes from a descriptor, and ignores SIGPIPE: the ranks do not
/// end because nobody reads what they print any more. First thing in main: threads that libraries
/// start later inherit the mask; ranks have the defaults (spawn.h).
void prepare_signals();

/// Runs the agent until its ranks have ended: connects, supervises, leaves exit.json in the pod's
/// folder. Returns the exit code of the process. The calling thread forks the ranks, which die with
/// it. `environment` (NAME=value) is what ranks inherit.
int run_agent(const AgentOptions& options, std::vector<std::string> environment, Logger& logger);

}  // namespace trainyard::agent
