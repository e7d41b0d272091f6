#pragma once

#include <cstdint>
#include <string>

namespace trainyard::engine {

/// What an instruction does. Schedules only order these; the interpreter knows nothing of
/// schedules.
enum class InstructionKind : uint8_t {
  kForward,         ///< F: forward of a layer for a micro-batch
  kRecompute,       ///< of what B and W of the layer read and F did not keep: forward again
  kBackwardInput,   ///< B: gradients of the layer's inputs
  kBackwardWeight,  ///< W: exact gradients of the layer's parameters
  kReduce,          ///< start summing a unit's gradient to the parts of its owners
  kAccumulate,      ///< finish that and add this rank's part to what earlier micro-batches left
  kAllReduce,  ///< start summing this rank's part of a unit's gradient over the copies, for each
               ///< the share that it rounds
  kRound,      ///< finish that, round and square the share, start gathering the others'
  kReduceControl,  ///< finish the reductions, square what nobody has a copy of, start summing loss,
                   ///< overflow, squares and stop request
  kOptimize,       ///< update what this rank owns of a unit, once its gradient is gathered
  kGather,         ///< start gathering a unit's weights; who reads them waits
  kFree,           ///< give up a unit's weights but for this rank's part
  kSnapshot,       ///< copy state for the checkpoint writer
  kSendActivation,     ///< start sending the input of `layer` to the stage that has it
  kReceiveActivation,  ///< start receiving the input of `layer`; its F waits
  kSendGradient,       ///< start sending the gradient of `layer`'s output to the stage that has it
  kReceiveGradient,    ///< start receiving the gradient of `layer`'s output; its B waits
};

std::string_view name_of(InstructionKind kind);

/// F, RECOMPUTE, B or W: runs nodes of a layer for a micro-batch.
constexpr bool is_pass(InstructionKind kind) { return kind <= InstructionKind::kBackwardWeight; }
/// Between stages.
constexpr bool is_message(InstructionKind kind) { return kind >= InstructionKind::kSendActivation; }

/// One instruction of a rank's static step program (StepProgram).
struct Instruction {
  InstructionKind kind = InstructionKind::kForward;
  int micro_batch = -1;  ///< of passes and messages; of REDUCE and ACCUMULATE where it counts
  int layer = -1;        ///< of passes and messages: of these the receiver's
  int unit = -1;         ///< of all others but REDUCE_CONTROL and SNAPSHOT
  int peer = -1;         ///< of messages: the other rank's coordinate on the pp axis
  bool operator==(const Instruction&) const = default;
};

/// "B m3 l2", "GATHER u1": for traces and error messages.
std::string to_string(const Instruction& instruction);

}  // namespace trainyard::engine
