#pragma once

#include <array>
#include <cstdint>

#include "common/contract/rank_counters.h"
#include "worker/trace/span.h"
#include "worker/train/progress.h"

namespace trainyard::engine {

/// Turns the spans of a rank into the counters of its progress page: what the training thread
/// spends its time on by stage, and how long the data group's collectives take. Allocates nothing;
/// each track by its own thread, as SpanSink says.
class StageMeter final : public trace::SpanSink {
 public:
  using Split = std::array<int64_t, contract::kStages>;

  /// `progress` outlives this.
  explicit StageMeter(Progress& progress) : progress_(progress) {}

  void add(trace::Track track, const trace::Span& span) override;

  /// Time counted from here on. Call on the training thread, as take().
  void begin(int64_t now_ns);
  /// Nanoseconds by stage since the last call (or begin): spans that have ended; kOther is what
  /// they do not cover. A step counts as its instructions, the waits in them apart; an evaluation
  /// and a wait for a checkpoint count whole.
  Split take(int64_t now_ns);

 private:
  void add_wait(const trace::Span& span);
  void add_instruction(const trace::Span& span);
  void add_whole(const trace::Span& span);

  Progress& progress_;
  Split taken_{};                ///< of outermost spans that have ended
  Split pending_{};              ///< of instructions and waits whose outermost span goes on
  int64_t waits_ns_ = 0;         ///< of waits whose instruction goes on
  int64_t instructions_ns_ = 0;  ///< of instructions whose outermost span goes on
  int64_t covered_ns_ = 0;       ///< by the outermost spans
  int64_t since_ns_ = 0;
};

}  // namespace trainyard::engine
