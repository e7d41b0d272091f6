#include <cstdlib>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

#include "agent/agent_options.h"
#include "agent/event_loop.h"
#include "common/log/log.h"
#include "common/worker_contract.h"

int main(int argc, char** argv) {
  namespace agent = trainyard::agent;
  agent::block_agent_signals();
  const auto logger = trainyard::Logger::to_stderr(trainyard::LogLevel::kInfo);
  std::error_code error;
  const auto own_binary = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto options = agent::read_agent_options(
      arguments, [](const char* name) { return std::getenv(name); }, own_binary);
  if (!options) {
    logger->error("trainyard-agent cannot start", {{"error", options.error().message}});
    return trainyard::contract::exit_code_of(options.error().code);
  }
  // The ranks' environment is the agent's own, and over it what rank_environment adds.
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry)
    environment.emplace_back(*entry);
  return agent::run_agent(*options, std::move(environment), *logger);
}
