#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

/// What a rank's time goes to: the one mechanism behind traces, step-time splits and metrics.
namespace trainyard::trace {

/// Who spends the time. A track has one writer at a time.
enum class Track : uint8_t {
  kStep,             ///< the training thread; spans nest
  kDataGroup,        ///< the execution stream of the communicator of all ranks
  kCheckpointGroup,  ///< that of the checkpoint writer's communicator
  kCheckpoint,       ///< the checkpoint writer's thread
  kShardGroup,       ///< the execution stream of the ranks that share one copy of the states
  kReplicaGroup,     ///< that of the ranks that hold the same part of the copies
  kTiedGroup,        ///< that of the ranks that hold it of tables that two stages have
  kActivationIn,     ///< those of the channels to the stages before and after
  kActivationOut,
  kGradientIn,
  kGradientOut,
  kTensorGroup,   ///< the execution stream of the ranks that share every layer
  kSlicedGroup,   ///< that of the ranks that add up gradients of slices of sequences
  kContextGroup,  ///< that of the ranks that share every sequence
  kDevice,        ///< the GPU, where instructions run later than the training thread calls for them
};
inline constexpr size_t kTracks = 15;
/// The tracks of the groups that training communicates in. A group of all ranks is kDataGroup.
inline constexpr std::array kTrainingGroups = {
    Track::kDataGroup,    Track::kShardGroup,    Track::kReplicaGroup, Track::kTiedGroup,
    Track::kActivationIn, Track::kActivationOut, Track::kGradientIn,   Track::kGradientOut,
    Track::kTensorGroup,  Track::kSlicedGroup,   Track::kContextGroup};

/// What it is spent on.
enum class Activity : uint8_t {
  // Track::kStep, outermost.
  kStep,            ///< one optimizer step
  kEvaluate,        ///< one pass over held-out windows
  kCheckpointWait,  ///< training stands still for a checkpoint: the one before, or its copy
  // Track::kStep: instructions of a step program, inside the three above.
  kForward,
  kRecompute,  ///< forward again, of what was not kept
  kBackwardInput,
  kBackwardWeight,
  kReduce,
  kAccumulate,
  kAllReduce,
  kRound,
  kReduceControl,
  kGather,
  kFree,
  kOptimize,
  kSnapshot,
  kSendActivation,
  kReceiveActivation,
  kSendGradient,
  kReceiveGradient,
  // Track::kStep, inside instructions.
  kDataWait,           ///< for the next micro-batch
  kCommunicationWait,  ///< for a collective
  kPipelineWait,       ///< for a message of the stage before or after
  // The communicators' tracks.
  kCollective,  ///< from its start to its end, waiting for peers included
  // Track::kCheckpoint.
  kCheckpointWrite,   ///< this rank's shard
  kCheckpointCommit,  ///< agreement of all ranks, and on rank 0 the manifest
};
inline constexpr size_t kActivities = 26;

/// "forward", "data_wait" ...: for traces and metric labels.
std::string_view name_of(Activity activity);
/// "step", "data group" ...
std::string_view name_of(Track track);

/// Nanoseconds of CLOCK_MONOTONIC: one clock for all processes of a machine.
int64_t monotonic_ns();

/// A stretch of time. Values that do not apply are -1.
struct Span {
  Activity activity = Activity::kStep;
  int32_t instruction = -1;  ///< index in the step program
  int32_t micro_batch = -1;
  int32_t layer = -1;               ///< of forward, recompute and the backwards
  int32_t unit = -1;                ///< of the others that have one
  int64_t step = -1;                ///< steps done before the one this belongs to
  int64_t begin_ns = 0;             ///< monotonic_ns()
  int64_t end_ns = 0;               ///< monotonic_ns()
  int64_t sequence = -1;            ///< of a collective within its communicator
  int64_t bytes = -1;               ///< of a collective's buffer; of a shard
  std::string_view operation = {};  ///< "all_reduce" ...; static storage
};

/// Told of every span at its end.
class SpanSink {
 public:
  virtual ~SpanSink() = default;
  /// Tracks call at the same time, one track never twice at once. Must neither allocate, block nor
  /// fail: the training step pays for it.
  virtual void add(Track track, const Span& span) = 0;
  /// Whether spans of this track need to be measured for it.
  virtual bool wants(Track /*track*/) const { return true; }
};

/// Hands spans on to several sinks.
class SpanFan final : public SpanSink {
 public:
  static constexpr size_t kSinksMax = 4;
  /// Before the first span. `sink` is not owned; null is ignored. More than kSinksMax are a bug.
  void connect(SpanSink* sink);
  void add(Track track, const Span& span) override;
  bool wants(Track track) const override;
  /// No sink is connected: spans need not be measured.
  bool empty() const { return count_ == 0; }

 private:
  std::array<SpanSink*, kSinksMax> sinks_{};
  size_t count_ = 0;
};

/// Measures from its construction to its end. Without a sink it does nothing.
class ScopedSpan {
 public:
  ScopedSpan(SpanSink* sink, Track track, const Span& span)
      : sink_(sink), track_(track), span_(span) {
    if (sink_ != nullptr) span_.begin_ns = monotonic_ns();
  }
  ~ScopedSpan() {
    if (sink_ == nullptr) return;
    span_.end_ns = monotonic_ns();
    sink_->add(track_, span_);
  }
  ScopedSpan(const ScopedSpan&) = delete;
  ScopedSpan& operator=(const ScopedSpan&) = delete;

 private:
  SpanSink* const sink_;
  const Track track_;
  Span span_;
};

}  // namespace trainyard::trace
