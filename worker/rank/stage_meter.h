#pragma once

#include <array>
#include <cstdint>

#include "common/contract/rank_counters.h"
#include "worker/trace/span.h"

namespace trainyard::engine {

/// Adds up the spans of the training thread: what it spends its time on by stage. Allocates
/// nothing.
class StageMeter final : public trace::SpanSink {
 public:
  using Split = std::array<int64_t, contract::kStages>;

  void add(trace::Track track, const trace::Span& span) override;
  bool wants(trace::Track track) const override { return track == trace::Track::kStep; }

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

  Split taken_{};    ///< of outermost spans that have ended
  Split pending_{};  ///< of instructions and waits whose outermost span goes on
  contract::Stage stage_ = contract::Stage::kForward;  ///< of the newest instruction
  int64_t waits_ns_ = 0;                               ///< of waits whose instruction goes on
  int64_t instructions_ns_ = 0;  ///< of instructions whose outermost span goes on
  int64_t covered_ns_ = 0;       ///< by the outermost spans
  int64_t since_ns_ = 0;
};

}  // namespace trainyard::engine
