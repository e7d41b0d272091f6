#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/time.h"
#include "common/worker_contract.h"
#include "control/container_exit.h"

/// The seam between the brain and the control stream: facts come up (FactsSource), what status has
/// persisted goes down (MembershipSink). Neither decides anything; control/plan does.
namespace trainyard::control {

/// Agents whose coordinator has gone try the next one again within 5 s (agent/supervisor.cc): so
/// long after it began to listen it has heard of those that live.
inline constexpr std::chrono::seconds kReconnectTime{15};
/// The same where agents are on the coordinator's machine: they try again within 1 s.
inline constexpr std::chrono::seconds kLocalReconnectTime{2};

/// What one rank last reported.
struct RankFact {
  int rank = -1;
  contract::Phase phase = contract::Phase::kStarting;
  int64_t step = 0;  ///< optimizer steps completed
  int64_t total_steps = 0;
  /// When the coordinator saw `step` move last; nullopt before the first step of this generation.
  std::optional<Time> last_step_at;
  /// When the coordinator saw `phase` change last.
  std::optional<Time> phase_since;
  /// When the coordinator saw the rank's heartbeat counter move last.
  std::optional<Time> last_heartbeat_at;
  int64_t arrivals = 0;        ///< logical time of the instruction it is in: of who waits, later
  int64_t instruction_id = 0;  ///< of the instruction it is in
  std::string instruction;     ///< the same in words; empty: not known
  bool stopped = false;        ///< somebody has stopped the process (SIGSTOP)
  /// When the coordinator saw it stopped first; nullopt while it is not.
  std::optional<Time> stopped_since;
  std::optional<double> loss;
  std::optional<double> tokens_per_second;  ///< of the whole job, as this rank computes it
  std::optional<double> step_seconds;       ///< smoothed
  std::optional<double> work_seconds;       ///< its own part of a step, smoothed
};

/// One agent's stream.
struct MemberFact {
  std::string pod_uid;
  std::string pod_name;
  int node_index = 0;
  int64_t generation = 0;  ///< generation its ranks run or are starting
  bool connected = false;
  /// Build ID of the engine's worker; empty: not known, a program of the user's, or an older agent.
  std::string build;
  /// Its agent outlives its ranks, and starts those of the next generation in its pod.
  bool stays = false;
  /// It reports when it has joined a generation. Agents that do not are not told to join any.
  bool says_joined = false;
  /// When it was told to join `generation`, while it has not reported that it has; nullopt: it has
  /// joined, or began in that generation.
  std::optional<Time> joins_since;
  /// When the stream opened (connected) or was last heard of (not connected).
  Time since;
  /// Time that the coordinator has listened since it heard from it last.
  Duration silent{0};
  std::vector<RankFact> ranks;  ///< by rank
  /// The end of the rank that explains those of the others, of ranks that nobody had asked to end,
  /// as the agent tells it at once; what kubelets tell of its pod comes later, and in no order with
  /// what they tell of its peers. `finished_at` is when the coordinator heard. nullopt: none.
  std::optional<ContainerExit> failure;
};

/// A rank whose collective failed or is overdue named the peer it waits for.
struct PeerReport {
  int64_t generation = 0;
  int reporter_rank = -1;
  int lost_rank = -1;
  std::string
      lost_pod_uid;  ///< the pod of `lost_rank` in that generation's rank table; may be empty
  std::string message;
  Time at;
};

/// The newest checkpoint known to be committed.
struct CheckpointFact {
  int64_t step = 0;
  std::string uri;     ///< may be empty where only the step is known
  std::string digest;  ///< may be empty
  Time at;
  int64_t generation = 0;  ///< whose ranks told of it; 0: not known
};

/// What a job as a whole did from `at` on: its phase and step are those of the rank that holds the
/// others up.
struct JobPoint {
  Time at;
  contract::Phase phase = contract::Phase::kStarting;
  int64_t step = 0;  ///< steps all ranks had completed

  bool operator==(const JobPoint&) const = default;
};

/// A time in which the coordinator heard nobody, whatever was told: its process was stopped or its
/// machine slept.
struct DeafTime {
  Time from;
  Time to;
};

/// Everything the control stream knows of one job; values as of the call.
struct StreamFacts {
  /// False where no control stream exists (agent: None, or no coordinator): streams then prove
  /// nothing, and pods alone are judged.
  bool hosted = false;
  /// Coordinator and agents share this machine: no network can make agents seem lost.
  bool same_machine = false;
  /// Since when the coordinator listens, also to a job that it does not know yet: what agents did
  /// before then it learns only when they are back.
  Time listens_since{};
  /// What it missed since then, oldest first; the source keeps the newest.
  std::vector<DeafTime> deaf;
  int64_t generation = 0;  ///< generation the coordinator executes
  /// The newest generation that an agent of the job speaks for, hosted or not; 0: none has spoken.
  int64_t newest_generation = 0;
  bool rank_table_ready = false;  ///< every rank of that generation listens; the table went out
  std::optional<Time> rank_table_ready_at;
  std::vector<MemberFact> members;
  std::vector<MemberFact> spares;  ///< agents that wait for an index
  std::vector<PeerReport>
      peer_reports;  ///< of that generation, oldest first; bounded by the source
  /// Step that generation resumed from (0: fresh start); nullopt before it is restored.
  std::optional<int64_t> resumed_from_step;
  std::optional<CheckpointFact> checkpoint;
  /// Each change of phase or step since all ranks of that generation reported, oldest first; the
  /// source keeps the newest few minutes.
  std::vector<JobPoint> timeline;
  std::optional<double> p99_step_seconds;  ///< over the generation's newest steps
  std::optional<contract::RunResult> result;
};

/// Where `Observed` gets its facts. Implementations are thread-safe and do not block.
class FactsSource {
 public:
  virtual ~FactsSource() = default;
  /// Facts of the job with this UID; `hosted` false for one it does not know.
  virtual StreamFacts facts(const std::string& job_uid) const = 0;
};

/// One pod of the membership, in order of node index.
struct MemberRef {
  std::string pod_name;
  std::string pod_uid;  ///< empty while the pod is not yet seen
  int node_index = 0;

  bool operator==(const MemberRef&) const = default;
};

/// A stall that status tells of.
struct ToldStall {
  Time since;
  std::string message;
  bool dumps_stacks = false;  ///< every rank is to print its stacks, once a stream

  bool operator==(const ToldStall&) const = default;
};

/// What the coordinator may execute: a generation whose status write succeeded.
struct MembershipOrder {
  std::string job_uid;
  std::string job_namespace;
  std::string job_name;
  int64_t generation = 0;
  /// Generation before this one in status; nullopt for the first.
  std::optional<int64_t> previous_generation;
  /// Step of the newest checkpoint that status knows of; nullopt: none has been committed.
  std::optional<int64_t> committed_step;
  int64_t num_nodes = 0;  ///< pods the generation has when whole
  int64_t num_proc_per_node = 1;
  /// Pods known by now, at most num_nodes; the generation starts when all of them have streams.
  std::vector<MemberRef> members;
  /// UIDs of pods that stand ready: their agents wait, in whatever generation they were made.
  std::vector<std::string> spares;
  /// The membership is being stopped (suspended, failed, done): nothing new is to be started.
  bool stopping = false;
  /// Until when ranks of the generation before, which was ended for a change of size or suspended,
  /// may write a checkpoint: nothing of this one starts before they have ended; nullopt: they are
  /// fenced.
  std::optional<Time> yields_until;
  /// UIDs of its pods that still live, where it may write one: a coordinator that has just begun
  /// has not heard of them yet.
  std::vector<std::string> yielding_pods;
  /// How long an agent may take to join the generation before its pod is replaced.
  std::chrono::seconds join_timeout{0};
  /// End of the back-off before the generation: no ranks are started before; nullopt: none.
  std::optional<Time> starts_at;
  /// The stall that status tells of now.
  std::optional<ToldStall> stall;

  bool operator==(const MembershipOrder&) const = default;
};

/// Told after every successful reconcile; thread-safe, does not block, idempotent: the same order
/// may come many times. Orders of one job come in order of their generations.
class MembershipSink {
 public:
  virtual ~MembershipSink() = default;
  virtual void publish(const MembershipOrder& order) = 0;
  /// The job is finished or gone: forget it.
  virtual void retire(const std::string& job_uid) = 0;
};

}  // namespace trainyard::control
