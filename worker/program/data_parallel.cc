#include "worker/program/data_parallel.h"

namespace trainyard::engine {

StepProgram data_parallel_program(const DataParallelShape& shape) {
  StepProgram program;
  const int buckets = static_cast<int>(shape.bucket_ready_chunk.size());
  int next_bucket = 0;
  const auto reduce_ready = [&](int chunk) {
    while (next_bucket < buckets &&
           shape.bucket_ready_chunk[static_cast<size_t>(next_bucket)] >= chunk) {
      program.push_back({.kind = InstructionKind::kReduce, .chunk = next_bucket++});
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
  for (int b = 0; b < buckets; ++b) {
    program.push_back({.kind = InstructionKind::kGather, .chunk = b});
  }
  // Last, because overflows of backward and squares of rounded gradients travel with it.
  program.push_back({.kind = InstructionKind::kReduceControl});
  program.push_back({.kind = InstructionKind::kOptimize});
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
