#include "worker/engine/activity.h"

namespace trainyard::engine {

trace::Activity activity_of(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::kForward:
      return trace::Activity::kForward;
    case InstructionKind::kRecompute:
      return trace::Activity::kRecompute;
    case InstructionKind::kBackwardInput:
      return trace::Activity::kBackwardInput;
    case InstructionKind::kBackwardWeight:
      return trace::Activity::kBackwardWeight;
    case InstructionKind::kReduce:
      return trace::Activity::kReduce;
    case InstructionKind::kAccumulate:
      return trace::Activity::kAccumulate;
    case InstructionKind::kAllReduce:
      return trace::Activity::kAllReduce;
    case InstructionKind::kRound:
      return trace::Activity::kRound;
    case InstructionKind::kReduceControl:
      return trace::Activity::kReduceControl;
    case InstructionKind::kGather:
      return trace::Activity::kGather;
    case InstructionKind::kFree:
      return trace::Activity::kFree;
    case InstructionKind::kOptimize:
      return trace::Activity::kOptimize;
    case InstructionKind::kSnapshot:
      return trace::Activity::kSnapshot;
    case InstructionKind::kSendActivation:
      return trace::Activity::kSendActivation;
    case InstructionKind::kReceiveActivation:
      return trace::Activity::kReceiveActivation;
    case InstructionKind::kSendGradient:
      return trace::Activity::kSendGradient;
    case InstructionKind::kReceiveGradient:
      return trace::Activity::kReceiveGradient;
  }
  return trace::Activity::kStep;
}

}  // namespace trainyard::engine
