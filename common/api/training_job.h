#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/api/engine_spec.h"
#include "common/base/clock.h"

/// The TrainingJob of `trainyard.dev/v1alpha1`: metadata and spec. The status is in
/// common/api/training_job_status.h, included at the end. Plain values; every field is described
/// for users in common/api/job_fields.h, from which the reference page is made.
namespace trainyard::api {

inline constexpr char kApiVersion[] = "trainyard.dev/v1alpha1";
inline constexpr char kKind[] = "TrainingJob";
/// The `managedBy` that this project's controller answers to, as does an empty one.
inline constexpr char kManagedBy[] = "trainyard.dev/trainingjob-controller";
/// The container whose exit finishes a pod.
inline constexpr char kTrainerContainer[] = "trainer";

/// What we read of the object's metadata.
struct ObjectMeta {
  std::string name;
  std::string namespace_name;  ///< `namespace`; empty outside a cluster
  std::string uid;
  std::string resource_version;  ///< opaque: compare for equality only
  int64_t generation = 0;        ///< of the spec, counted by the API server
  std::optional<Time> creation_timestamp;
  std::optional<Time> deletion_timestamp;
  std::map<std::string, std::string> labels;
  std::map<std::string, std::string> annotations;
  std::vector<std::string> finalizers;

  bool operator==(const ObjectMeta&) const = default;
};

/// Whether our agent supervises the processes of a pod.
enum class AgentMode { kAuto, kNone };

/// What a spare node keeps ready.
enum class SpareMode { kWarm, kCold };

/// What is replaced when a member fails.
enum class RestartStrategy { kRecreateAll, kReplacePod, kInPlace };

/// Whose fault a restart is; each class has a budget of its own.
enum class FailureClass { kApplication, kInfrastructure, kPreemption, kHang };

/// What a failure rule does (vocabulary of batch/v1, and RestartJob).
enum class RuleAction { kFailJob, kRestartJob, kIgnore };

/// How a rule's exit codes are compared.
enum class ExitCodeOperator { kIn, kNotIn };

/// What is done about a job that makes no progress.
enum class StallAction {
  kReport,
  kDumpStacks,
  kRestartJob,
  kRestartProcess,
  kReplacePod,
  kReplaceNode,
};

/// Who places the pods of a generation together.
enum class SchedulingProvider { kNone, kVolcano, kCoscheduling, kKueue };

/// Where a variable's value comes from.
enum class EnvSource {
  kValue,           ///< `value`
  kCluster,         ///< what only a cluster can look up (valueFrom)
  kClusterIfThere,  ///< the same, but the variable may be missing (optional)
};

/// One variable of a container.
struct EnvVar {
  std::string name;
  std::string value;  ///< of kValue
  EnvSource source = EnvSource::kValue;

  bool operator==(const EnvVar&) const = default;
};

/// What NVIDIA's device plugin calls a whole GPU.
inline constexpr char kGpuResource[] = "nvidia.com/gpu";
/// Prefix of NVIDIA's resource names for parts of GPUs: "nvidia.com/mig-1g.10gb".
inline constexpr char kGpuPartPrefix[] = "nvidia.com/mig-";

/// The typed parts of a container.
struct Container {
  std::string name;
  std::string image;
  std::vector<std::string> command;
  std::vector<std::string> args;
  std::vector<EnvVar> env;
  int64_t gpus = 0;                           ///< resources.limits of kGpuResource
  std::string gpu_part;                       ///< resource of parts of GPUs in its limits, or empty
  std::optional<int64_t> memory_limit_bytes;  ///< resources.limits.memory

  bool operator==(const Container&) const = default;
};

/// The pod template: the whole as JSON, and the parts that rules look at, decoded from it.
struct PodTemplate {
  std::string json;  ///< the whole PodTemplateSpec, compact; what is encoded again
  std::map<std::string, std::string> labels;
  std::map<std::string, std::string> annotations;
  std::string restart_policy;  ///< empty or "Never"
  std::string node_name;
  bool host_network = false;
  bool host_pid = false;
  bool host_ipc = false;
  std::vector<Container> containers;

  bool operator==(const PodTemplate&) const = default;
};

/// Which sizes the job may run at; without it, numNodes only.
struct ElasticPolicy {
  int64_t min_nodes = 1;
  int64_t node_increment_step = 1;
  std::vector<int64_t> allowed_num_nodes;  ///< empty: minNodes + k x nodeIncrementStep
  std::chrono::seconds scale_up_snooze{300};
  std::chrono::seconds pending_timeout{120};

  bool operator==(const ElasticPolicy&) const = default;
};

struct SparesSpec {
  int64_t count = 0;
  SpareMode mode = SpareMode::kWarm;

  bool operator==(const SparesSpec&) const = default;
};

/// At most `max_restarts` restarts of one class in any `window`.
struct RestartBudget {
  FailureClass failure_class = FailureClass::kApplication;  ///< `class`
  int64_t max_restarts = 10;
  std::chrono::seconds window{21600};

  bool operator==(const RestartBudget&) const = default;
};

/// The wait before a restart: `initial`, doubled per restart up to `max`, `initial` again after a
/// committed step or when the window of its budget has left the restarts before.
struct RestartBackoff {
  std::chrono::seconds initial{1};
  std::chrono::seconds max{300};

  bool operator==(const RestartBackoff&) const = default;
};

struct OnExitCodes {
  std::string container_name;                   ///< empty: the one that ended the pod
  ExitCodeOperator op = ExitCodeOperator::kIn;  ///< `operator`
  std::vector<int64_t> values;

  bool operator==(const OnExitCodes&) const = default;
};

struct OnPodCondition {
  std::string type;
  std::string status = "True";

  bool operator==(const OnPodCondition&) const = default;
};

/// Matches a failed pod by exit code or by pod condition (exactly one of the two); first match
/// wins.
struct FailureRule {
  std::string name;
  RuleAction action = RuleAction::kRestartJob;
  bool count_towards_max = true;
  std::optional<OnExitCodes> on_exit_codes;
  std::vector<OnPodCondition> on_pod_conditions;

  bool operator==(const FailureRule&) const = default;
};

/// The budget of a class where the manifest names none.
constexpr RestartBudget default_budget(FailureClass failure_class) {
  using std::chrono::seconds;
  switch (failure_class) {
    case FailureClass::kApplication:
      return {failure_class, 10, seconds(21600)};
    case FailureClass::kInfrastructure:
      return {failure_class, 30, seconds(21600)};
    case FailureClass::kPreemption:
      return {failure_class, 100, seconds(86400)};
    case FailureClass::kHang:
      return {failure_class, 5, seconds(21600)};
  }
  return {};
}

inline constexpr std::chrono::seconds kJoinTimeout{10};

struct FailurePolicy {
  RestartStrategy restart_strategy = RestartStrategy::kRecreateAll;
  /// As the manifest gives them; ask budget_of, which knows the defaults of classes left out.
  std::vector<RestartBudget> budgets;
  RestartBackoff backoff;
  std::vector<FailureRule> rules;
  std::optional<std::chrono::seconds> join_timeout;  ///< nullopt: kJoinTimeout

  bool operator==(const FailurePolicy&) const = default;
};

/// The budget in force for a class: the manifest's, else the default.
inline RestartBudget budget_of(const FailurePolicy& policy, FailureClass failure_class) {
  for (const RestartBudget& budget : policy.budgets) {
    if (budget.failure_class == failure_class) return budget;
  }
  return default_budget(failure_class);
}

/// When a job counts as stalled: no step for clamp(stall_factor x p99 step time, min, max).
struct ProgressPolicy {
  std::chrono::seconds startup_timeout{1800};
  std::chrono::seconds min_stall{10};
  std::chrono::seconds max_stall{600};
  int64_t stall_factor = 10;
  StallAction on_stall = StallAction::kRestartJob;

  bool operator==(const ProgressPolicy&) const = default;
};

struct PersistentVolumeClaim {
  std::string claim_name;  ///< locally the folder `pvc/<claim>` of the run directory

  bool operator==(const PersistentVolumeClaim&) const = default;
};

struct CheckpointStorage {
  PersistentVolumeClaim persistent_volume_claim;

  bool operator==(const CheckpointStorage&) const = default;
};

struct CheckpointPolicy {
  std::optional<CheckpointStorage> storage;  ///< nullopt: the run directory, which a cluster lacks
  std::string path;                          ///< below the storage; empty: the job's name
  int64_t every_steps = 100;                 ///< 0: only at the end and when stopped
  int64_t keep_last = 3;
  /// Between states in memory; 0: none. nullopt: such that they cost little, see restartStrategy
  /// InPlace.
  std::optional<int64_t> memory_every_steps;
  int64_t memory_replicas = 0;  ///< copies of a rank's state in memory on other nodes
  std::chrono::seconds preemption_checkpoint{60};
  std::chrono::seconds max_age{3600};

  bool operator==(const CheckpointPolicy&) const = default;
};

struct SuccessRule {
  std::string succeeded_indexes;  ///< "0", "0-3,7"; empty: any
  std::optional<int64_t> succeeded_count;

  bool operator==(const SuccessRule&) const = default;
};

/// Any rule that holds completes the job; without rules every node must succeed.
struct SuccessPolicy {
  std::vector<SuccessRule> rules;

  bool operator==(const SuccessPolicy&) const = default;
};

struct TopologyTerm {
  std::string key;  ///< node label, widest domain first

  bool operator==(const TopologyTerm&) const = default;
};

/// Default of scheduling.gangTimeoutSeconds.
inline constexpr std::chrono::seconds kGangTimeout{600};

struct SchedulingSpec {
  SchedulingProvider provider = SchedulingProvider::kNone;
  std::string queue;
  std::string scheduler_name;
  std::vector<TopologyTerm> topology;
  std::string priority_class_name;
  /// nullopt: kGangTimeout; 0: never.
  std::optional<std::chrono::seconds> gang_timeout;

  bool operator==(const SchedulingSpec&) const = default;
};

struct RendezvousSpec {
  int64_t port = 29500;

  bool operator==(const RendezvousSpec&) const = default;
};

/// numProcPerNode `auto` (ranks_per_node).
inline constexpr int64_t kAutoProcPerNode = 0;
inline constexpr int64_t kMaxProcPerNode = 1024;
inline constexpr int64_t kMaxNumNodes = 65536;

struct TrainingJobSpec {
  bool suspend = false;
  std::string managed_by;  ///< empty or kManagedBy: ours
  std::optional<std::chrono::seconds> active_deadline;
  std::optional<std::chrono::seconds> ttl_after_finished;
  int64_t num_nodes = 1;
  int64_t num_proc_per_node = 1;            ///< or kAutoProcPerNode
  std::optional<PodTemplate> pod_template;  ///< `template`; may be absent with engine
  AgentMode agent = AgentMode::kAuto;
  std::optional<EngineSpec> engine;
  std::optional<ElasticPolicy> elastic_policy;
  SparesSpec spares;
  FailurePolicy failure_policy;
  ProgressPolicy progress_policy;
  CheckpointPolicy checkpoint_policy;
  SuccessPolicy success_policy;
  SchedulingSpec scheduling;
  RendezvousSpec rendezvous;
  int64_t keep_failed_pods = 1;

  bool operator==(const TrainingJobSpec&) const = default;
};

}  // namespace trainyard::api

#include "common/api/training_job_status.h"

namespace trainyard::api {

/// One object: what the user wants and what we last said about it.
struct TrainingJob {
  ObjectMeta metadata;
  TrainingJobSpec spec;
  TrainingJobStatus status;

  bool operator==(const TrainingJob&) const = default;
};

}  // namespace trainyard::api
