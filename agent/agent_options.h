#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "control/coordinator/grpc_channel.h"

namespace trainyard::agent {

// What an agent reads beside common/worker_contract.h and control/pod_spec.h.
/// Path of the rank binary; default: `trainyard-worker` beside the agent's own binary.
inline constexpr char kEnvWorker[] = "TRAINYARD_WORKER";
/// In the pod's folder: the address that the status server got.
inline constexpr char kMetricsAddressFile[] = "metrics-address";

/// Everything an agent is told by its environment and arguments.
struct AgentOptions {
  std::string job_name;
  std::string job_namespace;  ///< empty: none, as under `trainyard run`
  std::string job_uid;
  std::string pod_name;
  std::string pod_uid;
  int node_index = 0;
  int64_t generation = 0;
  std::string control_address;  ///< as gRPC names it: "unix:/path", "host:port"
  /// Files by which it knows the coordinator and is known by it; absent: a Unix socket's folder
  /// says both.
  std::optional<control::ChannelSecurity> security;
  /// Folder of this pod's own files; empty: there is none, and ranks print to standard output.
  std::filesystem::path pod_dir;
  /// Where the last words go (control::kEnvTerminationLog); empty: nowhere.
  std::filesystem::path termination_log;
  /// A foreign program, started once a rank; empty: the built-in engine's worker.
  std::vector<std::string> command;
  std::filesystem::path worker;
  std::string build;  ///< build ID of the worker; empty: not known, or a program of the user's
  /// What the engine's ranks compute on.
  api::DeviceKind device = api::DeviceKind::kAuto;
  std::chrono::seconds stop_grace{60};
  /// After this long without a stream the ranks are stopped with a checkpoint and the agent exits
  /// 75; nullopt: training goes on without a coordinator.
  std::optional<std::chrono::seconds> orphan_limit;
  /// Ranks that fail are not its end: it waits for the next generation (control::kEnvStays).
  bool stays = false;
  /// Each rank of the engine gets a memory file that outlives it (control::kEnvKeepsStates).
  bool keeps_states = false;

  /// Of the status server; empty: none.
  std::string metrics_address;

  bool is_engine() const { return command.empty(); }
  /// Whether ranks may compute on GPUs: Auto takes them where each finds one.
  bool may_use_gpus() const { return !is_engine() || device != api::DeviceKind::kCpu; }
};

/// Value of an environment variable; nullptr when it is not set.
using Environment = std::function<const char*(const char* name)>;

/// `arguments` are those after the program's name: nothing, or `--` and a foreign command (`install
/// FOLDER` is bundle.h's).
/// Errors: kInvalidConfig naming the variable, the value found and the value wanted.
Result<AgentOptions> read_agent_options(const std::vector<std::string>& arguments,
                                        const Environment& environment,
                                        const std::filesystem::path& own_binary);

}  // namespace trainyard::agent
