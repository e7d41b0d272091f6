#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/base/error.h"
#include "common/checkpoint_figures.h"
#include "common/contract/progress_figures.h"
#include "common/contract/rank_counters.h"
#include "common/contract/rank_position.h"

/// The contract between whoever supervises rank processes (trainyard-agent, or a person's shell)
/// and a rank process (trainyard-worker, or any program): environment, exit codes, one shared page
/// and a socket of JSON lines. Documented for users in docs/reference/worker-contract.md.
namespace trainyard::contract {

// ---- Environment of a rank -------------------------------------------------------------------
inline constexpr char kEnvJob[] = "TRAINYARD_JOB";
inline constexpr char kEnvJobUid[] = "TRAINYARD_JOB_UID";
inline constexpr char kEnvNamespace[] = "TRAINYARD_NAMESPACE";
inline constexpr char kEnvNodeIndex[] = "TRAINYARD_NODE_INDEX";
inline constexpr char kEnvGeneration[] = "TRAINYARD_GENERATION";
inline constexpr char kEnvControlAddress[] = "TRAINYARD_CONTROL_ADDRESS";
/// Path of the engine configuration (JSON: EngineSpec with defaults applied and paths absolute).
inline constexpr char kEnvEngineConfig[] = "TRAINYARD_ENGINE_CONFIG";
inline constexpr char kEnvCheckpointDir[] = "TRAINYARD_CHECKPOINT_DIR";
/// Path of the checkpointPolicy (JSON) beside the engine configuration; absent: defaults.
inline constexpr char kEnvCheckpointPolicy[] = "TRAINYARD_CHECKPOINT_POLICY";
/// Number of an inherited file descriptor: a memfd of kProgressPageBytes, the ProgressPage.
inline constexpr char kEnvProgressFd[] = "TRAINYARD_PROGRESS_FD";
/// Number of an inherited file descriptor: a SOCK_STREAM Unix socket of JSON lines (messages
/// below).
inline constexpr char kEnvAgentFd[] = "TRAINYARD_AGENT_FD";
/// Number of an inherited file descriptor: a memory file, empty at first, that the agent keeps when
/// the rank ends and gives to the rank that takes its place. Absent: there is none.
inline constexpr char kEnvMemoryFd[] = "TRAINYARD_MEMORY_FD";
/// Numeric address of this node that peers can connect to; absent: 127.0.0.1.
inline constexpr char kEnvHost[] = "TRAINYARD_HOST";
/// Seconds after which a rank gives peers up that show no sign of life; absent: 30. Longer than any
/// stall that the job's progressPolicy allows: who only computes is slow, and the controller
/// judges.
inline constexpr char kEnvPeerTimeout[] = "TRAINYARD_PEER_TIMEOUT_SECONDS";
/// Present: the rank traces its newest steps and leaves them in this directory when it ends.
inline constexpr char kEnvTraceDir[] = "TRAINYARD_TRACE_DIR";
/// How many steps a trace holds; absent: kTraceStepsDefault.
inline constexpr char kEnvTraceSteps[] = "TRAINYARD_TRACE_STEPS";
inline constexpr int kTraceStepsDefault = 20;
inline constexpr int kTraceStepsMax = 10'000;
/// Faults for tests of recovery: RANK:GENERATION:PLACE:ACTION, ... (worker/rank/fault_plan.h).
inline constexpr char kEnvFault[] = "TRAINYARD_FAULT";
/// File that gets a line for each such fault before it happens.
inline constexpr char kEnvFaultJournal[] = "TRAINYARD_FAULT_JOURNAL";
// torchrun's names, set where one process per rank is started by us.
inline constexpr char kEnvRank[] = "RANK";
inline constexpr char kEnvWorldSize[] = "WORLD_SIZE";
inline constexpr char kEnvLocalRank[] = "LOCAL_RANK";
inline constexpr char kEnvLocalWorldSize[] = "LOCAL_WORLD_SIZE";

// ---- Exit codes of a rank --------------------------------------------------------------------
inline constexpr int kExitDone = 0;
inline constexpr int kExitBadConfig = 64;
inline constexpr int kExitBadData = 65;
inline constexpr int kExitPeerLost = 69;
inline constexpr int kExitBug = 70;
inline constexpr int kExitRetry = 75;
inline constexpr int kExitTerminatedAfterCheckpoint = 143;

/// The exit code of a rank that ends with this error.
constexpr int exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidConfig:
      return kExitBadConfig;
    case ErrorCode::kInvalidData:
    case ErrorCode::kNotFound:
      return kExitBadData;
    case ErrorCode::kPeerLost:
      return kExitPeerLost;
    case ErrorCode::kInternal:
      return kExitBug;
    default:
      return kExitRetry;
  }
}

// ---- The progress page: written by the rank without system calls, read by the agent -----------
/// What a rank is doing, in the order of its life.
enum class Phase : uint32_t {
  kStarting = 0,
  kRendezvous = 1,
  kRestoring = 2,
  kTraining = 3,
  kEvaluating = 4,
  kCheckpointing = 5,
  kDone = 6,
};
/// By phase: in metrics, JSON, `trainyard top` and faults for tests.
inline constexpr std::array<std::string_view, 7> kPhaseNames = {
    "starting", "rendezvous", "restoring", "training", "evaluating", "checkpointing", "done"};
constexpr std::string_view name_of(Phase phase) {
  const auto index = static_cast<size_t>(phase);
  return index < kPhaseNames.size() ? kPhaseNames[index] : "?";
}
/// Errors: nullopt for a name of none.
constexpr std::optional<Phase> phase_named(std::string_view name) {
  for (size_t i = 0; i < kPhaseNames.size(); ++i) {
    if (kPhaseNames[i] == name) return static_cast<Phase>(i);
  }
  return std::nullopt;
}

inline constexpr uint64_t kProgressMagic = 0x54594152'44504731;  // "TYARDPG1"
inline constexpr int64_t kProgressPageBytes = 4096;
/// Where the counters lie in the page: what comes before may grow up to here.
inline constexpr size_t kRankCountersOffset = 1024;

/// Single writer (the rank), many readers. Each field is atomic on its own; `sequence` is bumped
/// (odd while writing, even after) around an update of the group step..figures, further figures.
struct ProgressPage {
  std::atomic<uint64_t> magic;
  std::atomic<uint64_t> sequence;
  std::atomic<uint32_t> phase;           ///< Phase
  std::atomic<uint32_t> instruction_id;  ///< index in the step program of the one now running
  std::atomic<int64_t> step;             ///< optimizer steps completed
  std::atomic<int64_t> total_steps;
  std::atomic<int64_t> samples_consumed;
  std::atomic<int64_t> tokens_consumed;
  std::array<std::atomic<double>, kFirstFigures> figures;  ///< by Figure::slot
  std::atomic<int64_t> checkpoint_step;  ///< newest committed, -1 before the first
  std::atomic<int64_t> heartbeat;        ///< bumped at every instruction
  std::atomic<int64_t>
      restored_step;  ///< step resumed from; 0 for a fresh start, -1 before restore
  CheckpointPage checkpoints;
  alignas(128) RankPosition position;
  std::array<std::atomic<double>, kFurtherFigures> further_figures;

  const std::atomic<double>& figure(size_t slot) const {
    return slot < kFirstFigures ? figures[slot] : further_figures[slot - kFirstFigures];
  }
  std::atomic<double>& figure(size_t slot) {
    return slot < kFirstFigures ? figures[slot] : further_figures[slot - kFirstFigures];
  }
  alignas(kRankCountersOffset) RankCounters counters;
};
static_assert(offsetof(ProgressPage, counters) == kRankCountersOffset);
static_assert(sizeof(ProgressPage) <= kProgressPageBytes);
static_assert(std::atomic<double>::is_always_lock_free);

// ---- Messages: one JSON object a line, at most kMaxMessageBytes -------------------------------
inline constexpr int64_t kMaxMessageBytes = 1 << 20;

/// Rank to agent, once, when its data plane listens:
/// {"type":"listening","address":"127.0.0.1:4711"}.
struct Listening {
  std::string address;
};

/// One entry a rank of the generation, in rank order.
struct RankEntry {
  int rank = 0;
  int node_index = 0;
  std::string host_id;  ///< equal for ranks that can share memory (boot id + mount namespace)
  std::string address;  ///< host:port of the data plane
};

/// Where a generation starts from, decided by the coordinator.
struct ResumePlan {
  int64_t generation = 0;
  /// Generation whose line of checkpoints this one goes on with; nullopt: a fresh run.
  std::optional<int64_t> parent_generation;
  /// Step of the newest checkpoint that is known to have been committed, so that a directory that
  /// holds none is not taken for a fresh start; nullopt: none.
  std::optional<int64_t> committed_step;
};

/// Agent to rank, once, when every rank of the generation listens:
/// {"type":"start","generation":3,"ranks":[...],"resume":{"generation":3,"parentGeneration":2,
/// "committedStep":400},"key":"9f..."}.
struct Start {
  int64_t generation = 0;
  std::vector<RankEntry> ranks;
  /// Secret of the generation that ranks prove to each other to have; empty: there is none, and the
  /// member is left out.
  std::vector<std::byte> key;
  ResumePlan resume;
};

/// Agent to rank: checkpoint after the step under way, then exit 143: {"type":"stop"}.
struct Stop {};

/// Agent to rank: print the stacks of all threads to standard error: {"type":"dumpStacks"}.
struct DumpStacks {};

/// Rank to agent: a failed or overdue collective names the peer awaited:
/// {"type":"peerLost","rank":3,"message":"..."}.
struct PeerLost {
  int rank = -1;
  std::string message;
};

/// Rank to agent, once, before it tells its peers that it gives up: the exit code that it is about
/// to end with, and why. Not sent by a rank that only follows a peer:
/// {"type":"failing","exitCode":65,"message":"..."}.
struct Failing {
  int exit_code = 0;  ///< 1 to 255
  std::string message;
};

/// Rank to agent: a SIGTERM came to it that the agent did not send: {"type":"askedToEnd"}.
struct AskedToEnd {};

/// Rank to agent: something people should know of though training goes on, a checkpoint that was
/// not written for example: {"type":"warning","message":"..."}.
struct Warning {
  std::string message;
};

/// The most memory of its own that a rank has occupied, of the rank with the most, and what its
/// plan said.
struct PeakMemory {
  int rank = 0;
  int64_t planned_bytes = 0;
  int64_t measured_bytes = 0;
  bool operator==(const PeakMemory&) const = default;
};

/// The model of a run with early stopping that had the lowest validation loss.
struct BestModel {
  int64_t step = 0;
  double validation_loss = 0;
  std::string checkpoint;  ///< name of its directory; empty: it has none
  bool operator==(const BestModel&) const = default;
};

/// Rank 0 to agent at the end of a complete run:
/// {"type":"result","stateHash":"...","step":..,"finalLoss":..,"validationLoss":..,
/// "peakMemory":{"rank":..,"plannedBytes":..,"measuredBytes":..},
/// "best":{"step":..,"validationLoss":..,"checkpoint":".."},"stoppedEarly":true}.
struct RunResult {
  std::string state_hash;  ///< lower-case hexadecimal XXH3-128, see docs/concepts/state-hash.md
  int64_t step = 0;
  double final_loss = 0;
  double validation_loss = 0;  ///< NaN where the run has no validation data
  std::optional<PeakMemory> peak_memory = std::nullopt;  ///< nullopt: not known
  int64_t skipped_steps = 0;  ///< over the job's whole life: their batches taught nothing
  /// What people should know though the run is complete: what hindered its clean-ups.
  std::vector<std::string> warnings = {};
  std::optional<BestModel> best = std::nullopt;  ///< nullopt: no early stopping
  bool stopped_early = false;                    ///< before the manifest's last step
};

/// What an agent or a local run keeps a RunResult in, encoded as its message.
inline constexpr char kResultFile[] = "result.json";

/// Encoders: one line of JSON, its final newline included. NaN and infinity become null; bytes that
/// are no UTF-8 become U+FFFD. Empty lines between messages mean nothing and are to be skipped.
std::string encode(const Listening& message);
std::string encode(const Start& message);
std::string encode(const Stop& message);
std::string encode(const DumpStacks& message);
std::string encode(const PeerLost& message);
std::string encode(const Failing& message);
std::string encode(const AskedToEnd& message);
std::string encode(const Warning& message);
std::string encode(const RunResult& message);

/// The "type" member of a line. Errors: kInvalidData for what is no JSON object with a type.
Result<std::string> message_type(const std::string& line);
/// Decoders take a line with or without its newline and ignore members they do not know.
/// Errors: kInvalidData, naming the member that is missing, of the wrong type or out of range.
Result<Listening> decode_listening(const std::string& line);
Result<Start> decode_start(const std::string& line);
Result<PeerLost> decode_peer_lost(const std::string& line);
Result<Failing> decode_failing(const std::string& line);
Result<Warning> decode_warning(const std::string& line);
Result<RunResult> decode_run_result(const std::string& line);

}  // namespace trainyard::contract
