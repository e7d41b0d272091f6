#include <initializer_list>
#include <optional>

#include "common/random/philox.h"
#include "worker/engine/interpreter.h"
#include "worker/engine/interpreter_frame.h"

/// What an interpreter tells its device of the halves of a step, which repeat themselves.
namespace trainyard::engine {
namespace {

constexpr int kPassesPart = 0;
constexpr int kUpdatePart = 1;

}  // namespace

/// Where a rank is alone, whose passes wait for nobody, and its device takes parts: reads all
/// micro-batches and begins the passes.
Status Interpreter::begin_parts(const StepProgram& program) {
  Frame& frame = *frame_;
  frame.has_parts = frame.setup.numerics.training && machine_.groups->world->size() == 1 &&
                    machine_.device->repeats_parts();
  if (!frame.has_parts) return {};
  frame.instruction = -1;
  for (const Instruction& instruction : program) {
    if (instruction.kind == InstructionKind::kForward)
      TRAINYARD_TRY(prepare_micro_batch(instruction.micro_batch));
  }
  frame.part_key = key_of_parts();
  machine_.device->begin_part(kPassesPart, frame.part_key);
  return {};
}

/// Of all that decides what kernels are called, and where.
uint64_t Interpreter::key_of_parts() const {
  const StepSetup& setup = frame_->setup;
  uint64_t key = 0;
  const auto add = [&key](uint64_t value) { key = mix64(key ^ value); };
  add(device_spans() != nullptr ? 1 : 0);  // a graph has their events
  for (const void* const address : std::initializer_list<const void*>{
           setup.program, setup.memory, setup.arena.data(), setup.buffer_memory.data()}) {
    add(reinterpret_cast<uintptr_t>(address));
  }
  for (const std::optional<data::MicroBatch>& batch : frame_->batches) {
    if (!batch) continue;
    add(static_cast<uint64_t>(std::ssize(batch->targets)));
    for (const auto sequences : {batch->rows.sequences, batch->samples}) {
      add(sequences.size());
      for (const kernels::Sequence& sequence : sequences) {
        for (const int64_t value : {sequence.begin, sequence.length, sequence.position})
          add(static_cast<uint64_t>(value));
      }
    }
  }
  return key;
}

void Interpreter::begin_update() {
  if (frame_->has_parts) machine_.device->begin_part(kUpdatePart, frame_->part_key);
}

}  // namespace trainyard::engine
