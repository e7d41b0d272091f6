#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/api/training_job.h"

/// What the brain says of a pod to be; how it is rendered belongs to the cluster.
namespace trainyard::control {

/// The role of every ranked pod; others are reserved.
inline constexpr char kTrainerRole[] = "trainer";
/// That of a pod that stands ready to become one.
inline constexpr char kSpareRole[] = "spare";

// What a pod's supervisor reads beside the names of common/worker_contract.h: how it names itself
// on the control stream, and the size of its gang (torchrun's names).
inline constexpr char kEnvPodName[] = "TRAINYARD_POD_NAME";
inline constexpr char kEnvPodUid[] = "TRAINYARD_POD_UID";
inline constexpr char kEnvNumNodes[] = "PET_NNODES";
inline constexpr char kEnvNodeRank[] = "PET_NODE_RANK";
/// Ranks to start in this pod, or "auto".
inline constexpr char kEnvNumProcPerNode[] = "PET_NPROC_PER_NODE";
/// Files by which an agent in a cluster knows its coordinator (PEM of the authorities that may
/// vouch for it) and is known by it (a bearer token); both absent: on one machine.
inline constexpr char kEnvControlAuthorities[] = "TRAINYARD_CONTROL_AUTHORITIES";
inline constexpr char kEnvControlToken[] = "TRAINYARD_CONTROL_TOKEN";
/// File in which an agent leaves its last words for whoever reports the container's end (a
/// ContainerExit as JSON); absent: nowhere.
inline constexpr char kEnvTerminationLog[] = "TRAINYARD_TERMINATION_LOG";
/// Where an agent serves /metrics, /healthz and /readyz ("127.0.0.1:0", ":9400"); absent: nowhere.
inline constexpr char kEnvAgentMetricsAddress[] = "TRAINYARD_METRICS_ADDRESS";
/// "1": the agent outlives its ranks and starts those of the next generation; absent: it ends with
/// them.
inline constexpr char kEnvStays[] = "TRAINYARD_STAYS";
/// "1": the agent keeps a memory file per rank (contract::kEnvMemoryFd); absent: it does not.
inline constexpr char kEnvKeepsStates[] = "TRAINYARD_KEEPS_STATES";
/// Seconds a stopped rank has for its checkpoint before it is ended; default 60.
inline constexpr char kEnvStopGrace[] = "TRAINYARD_STOP_GRACE_SECONDS";
/// Seconds without a control stream after which a local run is taken for dead; default: never.
inline constexpr char kEnvOrphanLimit[] = "TRAINYARD_ORPHAN_SECONDS";

/// One pod to create. Two specs of the same name are the same pod.
struct PodSpec {
  std::string name;            ///< pod_name(...)
  std::string namespace_name;  ///< the job's
  std::string job_name;
  std::string job_uid;           ///< owner
  int node_index = 0;            ///< -1 of a spare
  std::optional<int64_t> spare;  ///< number among the job's spares; nullopt: none of them
  std::string role = kTrainerRole;
  int64_t created_generation = 0;
  bool member = true;
  /// Reserved variables that hold in every cluster; a cluster adds those that name its own places
  /// (control address, engine configuration, checkpoint folder, master address).
  std::map<std::string, std::string> environment;
  std::chrono::seconds grace{0};  ///< between SIGTERM and SIGKILL
  /// Of the spec that it is made from (configuration_of); empty: whatever that is by then.
  std::string configuration;
  std::string worker_image;              ///< empty: the cluster's current one
  std::vector<std::string> avoid_nodes;  ///< where others are to be had
  int64_t spec_generation = 0;           ///< metadata.generation of that spec
  std::string template_json;  ///< opaque PodTemplateSpec; empty: the cluster's default worker
};

/// `<job>-<index>-<h5>` with h5 five letters of a hash of (job UID, index, generation at creation):
/// the same pod has the same name whoever makes it, and a successor never waits for the dead one.
std::string pod_name(const std::string& job_name, const std::string& job_uid, int node_index,
                     int64_t created_generation);

/// The pod of `node_index` made in `generation`, for a gang of `num_nodes`.
PodSpec make_pod_spec(const api::ObjectMeta& metadata, const api::TrainingJobSpec& spec,
                      int node_index, int64_t generation, int64_t num_nodes);

/// The same of a spare: `<job>-s<number>-<h5>`, whatever the generation: numbers are used once.
std::string spare_name(const std::string& job_name, const std::string& job_uid, int64_t number);

/// The spare of that number, made in `generation` for a gang of `num_nodes`. Its agent waits until
/// it is told its index.
PodSpec make_spare_spec(const api::ObjectMeta& metadata, const api::TrainingJobSpec& spec,
                        int64_t number, int64_t generation, int64_t num_nodes);

/// A short hash of what of a spec its pods are made from: all pods of a gang have one. What pods do
/// not see, as budgets, deadlines and sizes, does not change it.
std::string configuration_of(const api::TrainingJobSpec& spec);

/// terminationGracePeriodSeconds of a job's pods: preemptionCheckpointSeconds + 30.
std::chrono::seconds grace_of(const api::TrainingJobSpec& spec);

}  // namespace trainyard::control
