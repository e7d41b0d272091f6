#include "worker/program/data_parallel.h"

namespace trainyard::engine {

StepProgram data_parallel_program(const DataParallelShape& shape) {
  StepProgram program;
  const int units = static_cast<int>(shape.unit_ready_chunk.size());
  int next_unit = 0;
  const auto reduce_ready = [&](int chunk) {
    while (next_unit < units && shape.unit_ready_chunk[static_cast<size_t>(next_unit)] >= chunk) {
      program.push_back({.kind = InstructionKind::kReduce, .chunk = next_unit++});
    }
  };
  for (int m = 0; m < shape.micro_batches; ++m) {
    for (int c = 0; c < shape.chunks; ++c) {
      program.push_back({.kind = InstructionKind::kForward, .micro_batch = m, .chunk = c});
    }
    const bool last = m + 1 == shape.micro_batches;
    for (int c = shape.chunks - 1; c >= 0; --c) {
      program.push_back({.kind = InstructionKind::kBackwardInput, .micro_batch = m, .chunk = c});
      program.push_back({.kind = InstructionKind::kBackwardWeight, .micro_batch = m, .chunk = c});
      if (last) reduce_ready(c);
    }
  }
  if (shape.micro_batches == 0) reduce_ready(0);
  // Last, because overflows of backward and squares of gradients travel with it.
  program.push_back({.kind = InstructionKind::kReduceControl});
  for (int u = units - 1; u >= 0; --u) {
    program.push_back({.kind = InstructionKind::kOptimize, .chunk = u});
    program.push_back({.kind = InstructionKind::kGather, .chunk = u});
  }
  return program;
}

StepProgram forward_program(int micro_batches, int chunks) {
  StepProgram program;
  for (int m = 0; m < micro_batches; ++m) {
    for (int c = 0; c < chunks; ++c) {
      program.push_back({.kind = InstructionKind::kForward, .micro_batch = m, .chunk = c});
    }
  }
  program.push_back({.kind = InstructionKind::kReduceControl});
  return program;
}

}  // namespace trainyard::engine
