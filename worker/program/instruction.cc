#include "worker/program/instruction.h"

namespace trainyard::engine {

std::string_view name_of(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::kForward:
      return "F";
    case InstructionKind::kRecompute:
      return "RECOMPUTE";
    case InstructionKind::kBackwardInput:
      return "B";
    case InstructionKind::kBackwardWeight:
      return "W";
    case InstructionKind::kReduce:
      return "REDUCE";
    case InstructionKind::kAccumulate:
      return "ACCUMULATE";
    case InstructionKind::kAllReduce:
      return "ALL_REDUCE";
    case InstructionKind::kRound:
      return "ROUND";
    case InstructionKind::kReduceControl:
      return "REDUCE_CONTROL";
    case InstructionKind::kGather:
      return "GATHER";
    case InstructionKind::kFree:
      return "FREE";
    case InstructionKind::kOptimize:
      return "OPT";
    case InstructionKind::kSnapshot:
      return "SNAPSHOT";
    case InstructionKind::kSendActivation:
      return "SEND";
    case InstructionKind::kReceiveActivation:
      return "RECEIVE";
    case InstructionKind::kSendGradient:
      return "SEND_GRADIENT";
    case InstructionKind::kReceiveGradient:
      return "RECEIVE_GRADIENT";
  }
  return "?";
}

std::string to_string(const Instruction& instruction) {
  std::string text(name_of(instruction.kind));
  if (instruction.micro_batch >= 0) text += " m" + std::to_string(instruction.micro_batch);
  if (instruction.layer >= 0) text += " l" + std::to_string(instruction.layer);
  if (instruction.unit >= 0) text += " u" + std::to_string(instruction.unit);
  if (instruction.peer >= 0) text += " p" + std::to_string(instruction.peer);
  return text;
}

}  // namespace trainyard::engine
