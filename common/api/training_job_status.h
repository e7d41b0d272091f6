#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/api/open_word.h"
#include "common/base/clock.h"

/// `status` of a TrainingJob. Numbers with a fraction are doubles here and decimal strings in the
/// encoded form. The whole stays below 16 KiB: the limits below are part of the contract.
namespace trainyard::api {

enum class FailureClass;

inline constexpr int kMaxAttempts = 10;         ///< newest kept
inline constexpr int kMaxRecentRestarts = 100;  ///< per class
inline constexpr int kMaxAvoidedNodes = 10;
inline constexpr int kMaxPromoted = 32;                    ///< indexes that spares have at a time
inline constexpr int64_t kMaxNewestAttemptMessage = 1024;  ///< bytes, escaped
inline constexpr int64_t kMaxAttemptMessage = 160;         ///< bytes, escaped
inline constexpr int64_t kMaxConditionMessage = 1024;      ///< bytes, escaped
inline constexpr int64_t kMaxConditionWords = 320;         ///< bytes of last words in one
inline constexpr int64_t kMaxPhaseMessage = 120;           ///< bytes
inline constexpr int64_t kMaxCrowdedMessage = 200;         ///< of a condition in a full status
inline constexpr int64_t kMaxCompletedIndexes = 1024;      ///< bytes
inline constexpr int64_t kMaxStatusBytes = 16 << 10;       ///< of the whole status as compact JSON

/// The summary of the conditions for humans.
enum class JobPhase {
  kPending,
  kStarting,
  kRunning,
  kRestarting,
  kResizing,
  kStalled,
  kSuspended,
  kComplete,
  kFailed,
};

enum class ConditionType {
  kAccepted,
  kSuspended,
  kScheduled,
  kRunning,
  kRestarting,
  kResizing,
  kDegraded,
  kStalled,
  kCheckpointStale,
  kFailureTarget,
  kSuccessCriteriaMet,
  kComplete,
  kFailed,
};

enum class ConditionStatus { kTrue, kFalse, kUnknown };

/// The reasons of conditions; a failure rule gives kRulePrefix + its name.
namespace reason {
inline constexpr char kAccepted[] = "Accepted";
inline constexpr char kInvalidSpec[] = "InvalidSpec";
inline constexpr char kInvalidPodTemplate[] = "InvalidPodTemplate";
inline constexpr char kAdmissionRefused[] = "AdmissionRefused";
inline constexpr char kNameConflict[] = "NameConflict";
inline constexpr char kStorageNotShared[] = "StorageNotShared";
inline constexpr char kSuspended[] = "Suspended";
inline constexpr char kResumed[] = "Resumed";
inline constexpr char kGangScheduled[] = "GangScheduled";
inline constexpr char kUnschedulable[] = "Unschedulable";
inline constexpr char kWaitingForGang[] = "WaitingForGang";
inline constexpr char kGangIncomplete[] = "GangIncomplete";
inline constexpr char kGangTimeout[] = "GangTimeout";
inline constexpr char kJobComplete[] = "JobComplete";
inline constexpr char kJobFailed[] = "JobFailed";
inline constexpr char kJobSuspended[] = "JobSuspended";
inline constexpr char kAllNodesReady[] = "AllNodesReady";
inline constexpr char kBelowMinNodes[] = "BelowMinNodes";
inline constexpr char kImagePull[] = "ImagePull";
inline constexpr char kContainerConfig[] = "ContainerConfig";
inline constexpr char kPodFailed[] = "PodFailed";
inline constexpr char kPodLost[] = "PodLost";
inline constexpr char kNodeLost[] = "NodeLost";
inline constexpr char kMixedBuilds[] = "MixedBuilds";
inline constexpr char kStalled[] = "Stalled";
inline constexpr char kScaleUp[] = "ScaleUp";
inline constexpr char kScaleDown[] = "ScaleDown";
inline constexpr char kFaultyNodeRemoved[] = "FaultyNodeRemoved";
inline constexpr char kSpecChanged[] = "SpecChanged";
inline constexpr char kBelowNumNodes[] = "BelowNumNodes";
inline constexpr char kSparesExhausted[] = "SparesExhausted";
inline constexpr char kNoStepProgress[] = "NoStepProgress";
inline constexpr char kHeartbeatLost[] = "HeartbeatLost";
inline constexpr char kCompletionsReached[] = "CompletionsReached";
inline constexpr char kSuccessPolicy[] = "SuccessPolicy";
inline constexpr char kBudgetExceeded[] = "BudgetExceeded";
inline constexpr char kDeadlineExceeded[] = "DeadlineExceeded";
inline constexpr char kFatalExitCode[] = "FatalExitCode";
inline constexpr char kStartupTimeout[] = "StartupTimeout";
inline constexpr char kRulePrefix[] = "Rule_";
}  // namespace reason

struct Condition {
  OpenWord<ConditionType> type = ConditionType::kAccepted;
  ConditionStatus status = ConditionStatus::kUnknown;
  int64_t observed_generation = 0;
  std::optional<Time> last_transition_time;
  std::string reason;
  std::string message;

  bool operator==(const Condition&) const = default;
};

struct NodeCounts {
  int64_t target = 0;
  int64_t active = 0;
  int64_t ready = 0;
  int64_t succeeded = 0;
  int64_t failed = 0;
  int64_t condemned = 0;
  int64_t spare = 0;

  bool operator==(const NodeCounts&) const = default;
};

struct RoleStatus {
  std::string name;
  int64_t target = 0;
  int64_t ready = 0;

  bool operator==(const RoleStatus&) const = default;
};

/// A pod that was made as a spare and has an index now.
struct Promotion {
  int64_t index = 0;
  std::string pod_uid;

  bool operator==(const Promotion&) const = default;
};

struct Membership {
  int64_t generation = 0;
  int64_t reserved_up_to = 0;
  int64_t pods_since = 0;  ///< pods of older generations are no members; 0: a status of before
  int64_t world_size = 0;
  std::string layout;  ///< of an engine's ranks: layout::describe
  std::string master;
  std::string configuration;  ///< a hash of what its pods are made from
  std::string worker_image;   ///< of its pods; empty: none, or written by an older operator
  std::vector<Promotion> promoted;

  bool operator==(const Membership&) const = default;
};

/// Restarts of one class; `recent` holds the newest, oldest first, for the sliding window.
struct ClassRestarts {
  OpenWord<FailureClass> failure_class;  ///< `class`
  int64_t total = 0;
  std::vector<Time> recent;

  bool operator==(const ClassRestarts&) const = default;
};

struct RestartCounts {
  int64_t total = 0;
  std::vector<ClassRestarts> classes;
  int64_t in_place = 0;
  int64_t pod_replacements = 0;
  int64_t promotions = 0;
  int64_t resizes = 0;

  bool operator==(const RestartCounts&) const = default;
};

/// One generation's life and what ended it; the cause is absent while it is open.
struct Attempt {
  int64_t generation = 0;
  std::optional<OpenWord<FailureClass>> failure_class;  ///< `class`
  std::string reason;
  std::string pod_name;
  std::string pod_uid;
  std::string container;
  std::string node;
  std::optional<int64_t> rank;
  std::optional<int64_t> exit_code;
  std::optional<int64_t> signal;
  std::string message;
  std::optional<Time> start_time;
  std::optional<Time> end_time;
  std::optional<int64_t> start_step;
  std::optional<int64_t> end_step;
  std::optional<int64_t> resumed_from_step;
  std::optional<int64_t> lost_steps;
  std::optional<bool> requested;  ///< of a change of size: by an edit of the spec
  std::optional<bool> in_place;   ///< its pod went on: ranks only were started again

  bool operator==(const Attempt&) const = default;
};

struct ProgressStatus {
  int64_t step = 0;
  int64_t total_steps = 0;
  int64_t percentage = 0;
  std::optional<int64_t> eta_s;
  std::optional<double> loss;
  std::optional<double> tokens_per_second;
  std::optional<double> step_time_ms;
  std::optional<int64_t> slowest_rank;
  std::string phase;  ///< of the rank processes: Starting, Rendezvous, Restoring, Training ...
  std::optional<Time> last_step_time;

  bool operator==(const ProgressStatus&) const = default;
};

/// The newest committed checkpoint.
struct CheckpointStatus {
  int64_t last_step = 0;
  std::string uri;
  std::string digest;
  std::optional<Time> last_time;

  bool operator==(const CheckpointStatus&) const = default;
};

/// Time that did not advance the model, by cause.
struct Badput {
  std::chrono::milliseconds queue{0};
  std::chrono::milliseconds startup{0};
  std::chrono::milliseconds rendezvous{0};
  std::chrono::milliseconds restore{0};
  std::chrono::milliseconds checkpoint{0};
  std::chrono::milliseconds recompute{0};
  std::chrono::milliseconds stall{0};
  std::chrono::milliseconds infra{0};

  bool operator==(const Badput&) const = default;
};

/// How far the goodput ledger has counted: what the next look goes on from.
struct GoodputMark {
  std::optional<Time> time;  ///< all until then is counted
  int64_t step = 0;          ///< of the present generation, at that time
  int64_t reached_step = 0;  ///< highest step ever done: one below it is done again

  bool operator==(const GoodputMark&) const = default;
};

/// Where a job's time went (control/goodput/ledger.h): productive and badput add up to wall, and
/// wall and stopped to the time since the start, to the millisecond.
struct GoodputStatus {
  std::chrono::milliseconds wall{0};
  std::chrono::milliseconds productive{0};
  double ratio = 0;  ///< productive / wall, four digits
  Badput badput;
  std::chrono::milliseconds stopped{0};  ///< suspended or stopped on request; not part of wall
  int64_t lost_steps = 0;                ///< steps that failures have undone, over the job's life
  GoodputMark counted;

  bool operator==(const GoodputStatus&) const = default;
};

/// Pods that stand ready for an index. Each has a number of its own, over the job's life.
struct SparesStatus {
  int64_t made = 0;             ///< the newest number
  std::vector<int64_t> parked;  ///< numbers of those that are to be there
  std::optional<Time> last_made_time;

  bool operator==(const SparesStatus&) const = default;
};

/// A node on which the job has failed again and again.
struct AvoidedNode {
  std::string name;
  std::optional<Time> until;  ///< new pods go elsewhere, where they can, until then
  int64_t times = 0;          ///< that it was avoided: each time for twice as long

  bool operator==(const AvoidedNode&) const = default;
};

struct TrainingJobStatus {
  int64_t observed_generation = 0;
  JobPhase phase = JobPhase::kPending;
  std::string reason;   ///< of the condition that makes the phase
  std::string message;  ///< its message, shortened
  std::optional<Time> start_time;
  std::optional<Time> completion_time;
  std::optional<Time> last_resume_time;
  std::string selector;
  NodeCounts nodes;
  std::vector<RoleStatus> roles;
  Membership membership;
  /// Nodes of the present generation that have ended well ("0-3,7"), whether or not their pods are
  /// still there.
  std::string completed_indexes;
  std::optional<SparesStatus> spares;
  std::vector<AvoidedNode> avoided_nodes;
  RestartCounts restarts;
  std::vector<Attempt> attempts;  ///< oldest first, at most kMaxAttempts
  std::optional<ProgressStatus> progress;
  std::optional<CheckpointStatus> checkpoint;
  std::optional<GoodputStatus> goodput;
  std::vector<Condition> conditions;

  bool operator==(const TrainingJobStatus&) const = default;
};

}  // namespace trainyard::api
