#include "worker/rank/stage_meter.h"

#include <algorithm>
#include <utility>

namespace trainyard::engine {
namespace {

using contract::Stage;
using trace::Activity;

size_t at(Stage stage) { return static_cast<size_t>(stage); }

int64_t length_ns(const trace::Span& span) {
  return std::max<int64_t>(0, span.end_ns - span.begin_ns);
}

/// The stage of an instruction, its waits left out, after one of stage `before`.
Stage stage_of(Activity activity, Stage before) {
  switch (activity) {
    case Activity::kForward:
      return Stage::kForward;
    case Activity::kRound:
    case Activity::kReduceControl:
    case Activity::kOptimize:
      return Stage::kOptimizer;
    case Activity::kSnapshot:
      return Stage::kCheckpoint;
    case Activity::kGather:
    case Activity::kFree:
    case Activity::kSendActivation:
    case Activity::kReceiveActivation:
    case Activity::kSendGradient:
    case Activity::kReceiveGradient:
      return before;  // where weights are cut they are gathered for every pass
    default:
      return Stage::kBackward;
  }
}

}  // namespace

void StageMeter::add(trace::Track track, const trace::Span& span) {
  if (track != trace::Track::kStep) return;
  switch (span.activity) {
    case Activity::kStep:
    case Activity::kEvaluate:
    case Activity::kCheckpointWait:
      return add_whole(span);
    case Activity::kDataWait:
    case Activity::kCommunicationWait:
    case Activity::kPipelineWait:
      return add_wait(span);
    default:
      return add_instruction(span);
  }
}

void StageMeter::add_wait(const trace::Span& span) {
  const Stage stage = span.activity == Activity::kDataWait       ? Stage::kDataWait
                      : span.activity == Activity::kPipelineWait ? Stage::kPipelineWait
                                                                 : Stage::kCollectiveWait;
  pending_[at(stage)] += length_ns(span);
  // One outside any instruction is taken from none.
  (span.instruction < 0 ? instructions_ns_ : waits_ns_) += length_ns(span);
}

void StageMeter::add_instruction(const trace::Span& span) {
  const int64_t own_ns = length_ns(span) - std::exchange(waits_ns_, 0);
  stage_ = stage_of(span.activity, stage_);
  pending_[at(stage_)] += std::max<int64_t>(0, own_ns);
  instructions_ns_ += length_ns(span);
}

void StageMeter::add_whole(const trace::Span& span) {
  // A wait after the last instruction is inside none.
  const int64_t inner_ns = std::exchange(instructions_ns_, 0) + std::exchange(waits_ns_, 0);
  const Split inside = std::exchange(pending_, {});
  stage_ = Stage::kForward;
  covered_ns_ += length_ns(span);
  if (span.activity == Activity::kEvaluate) {
    taken_[at(Stage::kEvaluation)] += length_ns(span);
  } else if (span.activity == Activity::kCheckpointWait) {
    taken_[at(Stage::kCheckpoint)] += length_ns(span);
  } else {
    for (size_t i = 0; i < inside.size(); ++i)
      taken_[i] += inside[i];
    taken_[at(Stage::kOther)] += std::max<int64_t>(0, length_ns(span) - inner_ns);
  }
}

void StageMeter::begin(int64_t now_ns) {
  taken_ = {};
  covered_ns_ = 0;
  since_ns_ = now_ns;
}

StageMeter::Split StageMeter::take(int64_t now_ns) {
  Split split = std::exchange(taken_, {});
  const int64_t uncovered_ns =
      now_ns - std::exchange(since_ns_, now_ns) - std::exchange(covered_ns_, 0);
  split[at(Stage::kOther)] += std::max<int64_t>(0, uncovered_ns);
  return split;
}

}  // namespace trainyard::engine
