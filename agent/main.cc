#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

#include "agent/agent_options.h"
#include "agent/bundle.h"
#include "agent/devices.h"
#include "agent/event_loop.h"
#include "common/base/program_help.h"
#include "common/io/build_id.h"
#include "common/io/last_words.h"
#include "common/log/log.h"
#include "common/worker_contract.h"
#include "control/coordinator/grpc_log.h"

namespace {

constexpr char kHelp[] =
    R"(The agent is the first process of a TrainingJob's pod. It starts the ranks of its node,
watches them, reports to the control plane and carries out the control plane's decisions.
`trainyard run` and the operator start the agent.
Usage: trainyard-agent                        run the built-in engine's ranks (trainyard-worker)
       trainyard-agent -- COMMAND [ARG]...    run your own program, once per rank
       trainyard-agent install FOLDER         copy the agent and its libraries to FOLDER
       trainyard-agent --help | --version

The control plane configures the agent through environment variables. The agent logs to standard
error, one JSON object per line. Exit codes: 0 done, 64 a bad setting, 65 bad data, 75 try again,
143 stopped.
)";

/// `trainyard-agent install FOLDER`: the work of a pod's init container.
int install(const std::string& folder, trainyard::Logger& logger) {
  const trainyard::Status installed = trainyard::agent::install_bundle(folder);
  if (installed) return 0;
  logger.error("not installed", {{"error", installed.error().message}});
  return trainyard::contract::exit_code_of(installed.error().code);
}

}  // namespace

int main(int argc, char** argv) {
  namespace agent = trainyard::agent;
  trainyard::say_last_words("trainyard-agent", trainyard::LastWords::kJson);
  agent::prepare_signals();
  const auto logger = trainyard::Logger::to_stderr(trainyard::LogLevel::kInfo);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (const auto answered = trainyard::answer_about_itself(
          argc, argv, {"trainyard-agent", TRAINYARD_VERSION, kHelp})) {
    return *answered;
  }
  if (arguments.size() == 2 && arguments[0] == "install") return install(arguments[1], *logger);
  std::error_code error;
  const auto own_binary = std::filesystem::read_symlink("/proc/self/exe", error);
  auto options = agent::read_agent_options(
      arguments, [](const char* name) { return std::getenv(name); }, own_binary);
  if (!options) {
    logger->error("trainyard-agent cannot start", {{"error", options.error().message}});
    return trainyard::contract::exit_code_of(options.error().code);
  }
  // The ranks' environment is the agent's own, and over it what rank_environment adds.
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry)
    environment.emplace_back(*entry);
  // What an image configures for its own OpenSSL is for a library of another version.
  ::setenv("OPENSSL_CONF", "/dev/null", 1);
  const char* const engine = std::getenv(trainyard::contract::kEnvEngineConfig);
  if (options->is_engine() && engine != nullptr) {
    options->device = agent::device_of_engine(engine);
  }
  if (options->is_engine()) options->build = trainyard::build_id_of(options->worker);
  const trainyard::control::GrpcLog grpc_log(*logger);
  return agent::run_agent(*options, std::move(environment), *logger);
}
