#include "agent/agent_options.h"

#include <charconv>
#include <limits>

#include "common/worker_contract.h"
#include "control/local/pod_exit.h"
#include "control/pod_spec.h"

namespace trainyard::agent {
namespace {

/// A day: longer graces and limits are mistakes.
constexpr int64_t kMaxSeconds = 86400;

Error bad_variable(const char* name, const std::string& found, const std::string& wanted) {
  return {ErrorCode::kInvalidConfig,
          "environment variable " + std::string(name) + ": found " + found + ", wanted " + wanted};
}

Result<std::string> required(const Environment& environment, const char* name) {
  const char* value = environment(name);
  if (value == nullptr || *value == '\0') return bad_variable(name, "nothing", "a value");
  return std::string(value);
}

/// The variable as an integer of [min, max]; `absent` when it is not set.
Result<std::optional<int64_t>> integer(const Environment& environment, const char* name,
                                       int64_t min, int64_t max) {
  const char* value = environment(name);
  if (value == nullptr || *value == '\0') return std::optional<int64_t>();
  const std::string_view text = value;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < min || number > max) {
    return bad_variable(name, "\"" + std::string(text) + "\"",
                        "an integer of " + std::to_string(min) + " to " + std::to_string(max));
  }
  return std::optional(number);
}

Result<int64_t> required_integer(const Environment& environment, const char* name, int64_t max) {
  TRAINYARD_ASSIGN(const std::optional<int64_t> value, integer(environment, name, 0, max));
  if (!value) return bad_variable(name, "nothing", "an integer");
  return *value;
}

Status read_limits(const Environment& environment, AgentOptions& options) {
  TRAINYARD_ASSIGN(const auto grace, integer(environment, control::kEnvStopGrace, 0, kMaxSeconds));
  if (grace) options.stop_grace = std::chrono::seconds(*grace);
  TRAINYARD_ASSIGN(const auto orphan,
                   integer(environment, control::kEnvOrphanLimit, 1, kMaxSeconds));
  if (orphan) options.orphan_limit = std::chrono::seconds(*orphan);
  return {};
}

Status read_security(const Environment& environment, AgentOptions& options) {
  const char* authorities = environment(control::kEnvControlAuthorities);
  const char* token = environment(control::kEnvControlToken);
  const bool has_authorities = authorities != nullptr && *authorities != '\0';
  const bool has_token = token != nullptr && *token != '\0';
  if (has_authorities != has_token) {
    return bad_variable(
        has_authorities ? control::kEnvControlToken : control::kEnvControlAuthorities, "nothing",
        "a file, as the other one is set");
  }
  if (has_token)
    options.security = control::ChannelSecurity{.authorities = authorities, .token = token};
  return {};
}

}  // namespace

Result<AgentOptions> read_agent_options(const std::vector<std::string>& arguments,
                                        const Environment& environment,
                                        const std::filesystem::path& own_binary) {
  AgentOptions options;
  if (!arguments.empty()) {
    if (arguments.front() != "--" || arguments.size() < 2) {
      return Error{ErrorCode::kInvalidConfig,
                   "argument \"" + arguments.front() +
                       "\": wanted no arguments, -- and a command, or install and a folder"};
    }
    options.command.assign(arguments.begin() + 1, arguments.end());
  }
  constexpr int64_t kMaxInt = std::numeric_limits<int>::max();
  constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
  TRAINYARD_ASSIGN(options.job_name, required(environment, contract::kEnvJob));
  TRAINYARD_ASSIGN(options.job_uid, required(environment, contract::kEnvJobUid));
  TRAINYARD_ASSIGN(options.pod_name, required(environment, control::kEnvPodName));
  TRAINYARD_ASSIGN(options.pod_uid, required(environment, control::kEnvPodUid));
  TRAINYARD_ASSIGN(options.control_address, required(environment, contract::kEnvControlAddress));
  TRAINYARD_ASSIGN(const int64_t node_index,
                   required_integer(environment, contract::kEnvNodeIndex, kMaxInt));
  options.node_index = static_cast<int>(node_index);
  TRAINYARD_ASSIGN(options.generation,
                   required_integer(environment, contract::kEnvGeneration, kMaxInt64));
  TRAINYARD_TRY(read_limits(environment, options));
  TRAINYARD_ASSIGN(const auto stays, integer(environment, control::kEnvStays, 0, 1));
  options.stays = stays.value_or(0) == 1;
  TRAINYARD_ASSIGN(const auto keeps, integer(environment, control::kEnvKeepsStates, 0, 1));
  options.keeps_states = keeps.value_or(0) == 1;
  const char* job_namespace = environment(contract::kEnvNamespace);
  if (job_namespace != nullptr) options.job_namespace = job_namespace;
  const char* pod_dir = environment(control::local::kEnvPodDir);
  if (pod_dir != nullptr) options.pod_dir = pod_dir;
  const char* last_words = environment(control::kEnvTerminationLog);
  if (last_words != nullptr) options.termination_log = last_words;
  TRAINYARD_TRY(read_security(environment, options));
  const char* metrics = environment(control::kEnvAgentMetricsAddress);
  if (metrics != nullptr) options.metrics_address = metrics;
  const char* worker = environment(kEnvWorker);
  options.worker = worker == nullptr || *worker == '\0'
                       ? own_binary.parent_path() / "trainyard-worker"
                       : std::filesystem::path(worker);
  return options;
}

}  // namespace trainyard::agent
