#pragma once

#include <vector>

#include "kernels/cuda/ops.h"

namespace trainyard::kernels::cuda {

/// `count` sequences of `length` rows each, in memory of so many of either; waits for the copies.
inline cudaError_t upload_windows(int64_t count, int64_t length, Sequence* sequences,
                                  int32_t* sequence_of, cudaStream_t stream, DeviceRows& rows) {
  std::vector<Sequence> all;
  std::vector<int32_t> of;
  for (int64_t i = 0; i < count; ++i) {
    all.push_back({.begin = i * length, .length = length, .ordinal = i});
    of.insert(of.end(), static_cast<size_t>(length), static_cast<int32_t>(i));
  }
  rows = {.count = count * length,
          .sequences = sequences,
          .sequences_count = count,
          .longest = length,
          .sequence_of = sequence_of};
  cudaError_t error = cudaMemcpyAsync(sequences, all.data(), all.size() * sizeof(Sequence),
                                      cudaMemcpyHostToDevice, stream);
  if (error != cudaSuccess) return error;
  error = cudaMemcpyAsync(sequence_of, of.data(), of.size() * sizeof(int32_t),
                          cudaMemcpyHostToDevice, stream);
  return error != cudaSuccess ? error : cudaStreamSynchronize(stream);
}

}  // namespace trainyard::kernels::cuda
