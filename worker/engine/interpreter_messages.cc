#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "worker/engine/interpreter.h"
#include "worker/engine/interpreter_frame.h"

/// What an interpreter sends to the other stages of a pipeline, and receives from them.
namespace trainyard::engine {
namespace {

comm::Channel channel_of(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::kSendActivation:
      return comm::Channel::kActivationOut;
    case InstructionKind::kSendGradient:
      return comm::Channel::kGradientOut;
    case InstructionKind::kReceiveGradient:
      return comm::Channel::kGradientIn;
    default:
      return comm::Channel::kActivationIn;
  }
}

}  // namespace

comm::WorkPtr& Interpreter::message_work(comm::Channel channel, int stage) {
  return frame_->messages[static_cast<size_t>(channel)][static_cast<size_t>(stage)];
}

Status Interpreter::await_receipt(int micro_batch, int stage) {
  std::vector<Frame::Receipt>& receipts = frame_->receipts;
  const auto found = std::find_if(receipts.begin(), receipts.end(), [&](const auto& receipt) {
    return receipt.micro_batch == micro_batch && receipt.stage == stage;
  });
  if (found == receipts.end()) return {};
  comm::WorkPtr work = std::move(found->work);
  receipts.erase(found);
  return wait_for(work, trace::Activity::kPipelineWait);
}

/// Before passes of a stage's first and last layer: until what they read has come, and what they
/// write over has been sent.
Status Interpreter::await_messages(const Instruction& instruction) {
  const int stage = machine_.stages->stage_of(instruction.layer);
  const layout::Range layers = machine_.stages->layers(stage);
  const bool first = instruction.layer == layers.begin;
  const bool last = instruction.layer + 1 == layers.end;
  const auto await = [&](comm::Channel channel) {
    comm::WorkPtr& work = message_work(channel, stage);
    return work ? wait_for(work, trace::Activity::kPipelineWait) : Status();
  };
  if (instruction.kind == InstructionKind::kForward) {
    if (first) TRAINYARD_TRY(await_receipt(instruction.micro_batch, stage));
    if (last) TRAINYARD_TRY(await(comm::Channel::kActivationOut));
  }
  if (instruction.kind == InstructionKind::kBackwardInput && last) {
    TRAINYARD_TRY(await(comm::Channel::kGradientIn));
    TRAINYARD_TRY(await(comm::Channel::kGradientOut));
  }
  return {};
}

/// A message's layer is the receiver's; it carries what both layers have in common: of the one
/// before the output, of the one after the input, or the gradient of these.
Status Interpreter::message(const Instruction& instruction) {
  TRAINYARD_TRY(prepare_micro_batch(instruction.micro_batch));
  const comm::Channel channel = channel_of(instruction.kind);
  const bool sends =
      channel == comm::Channel::kActivationOut || channel == comm::Channel::kGradientOut;
  const bool is_before =
      channel == comm::Channel::kActivationOut || channel == comm::Channel::kGradientIn;
  const int layer = instruction.layer + (sends ? (is_before ? -1 : 1) : 0);  // this rank's
  const int stage = machine_.stages->stage_of(layer);
  if (channel == comm::Channel::kGradientIn) {
    // The gradient before it leaves from the same buffer.
    if (auto& sent = message_work(comm::Channel::kGradientOut, stage); sent)
      TRAINYARD_TRY(wait_for(sent, trace::Activity::kPipelineWait));
  }
  const Layer& own = machine_.model->layers[static_cast<size_t>(layer)];
  const int value = is_before ? own.output : own.input;
  const bool is_gradient =
      channel == comm::Channel::kGradientIn || channel == comm::Channel::kGradientOut;
  const TensorView view =
      is_gradient ? gradient_view(instruction.micro_batch, layer, value, true)
                  : value_view(instruction.micro_batch, layer, value, InstructionKind::kForward);
  const std::span<std::byte> data(static_cast<std::byte*>(view.data),
                                  static_cast<size_t>(view.bytes()));
  comm::StepCommunicator& group = *machine_.groups->channel(channel);
  const int peer = 1 - group.rank();
  comm::WorkPtr work = sends ? group.send(data, peer) : group.receive(data, peer);
  if (channel == comm::Channel::kActivationIn) {
    frame_->receipts.push_back({instruction.micro_batch, stage, std::move(work)});
    return {};
  }
  TRAINYARD_CHECK(!message_work(channel, stage));
  message_work(channel, stage) = std::move(work);
  return {};
}

}  // namespace trainyard::engine
