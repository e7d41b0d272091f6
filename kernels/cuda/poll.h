#pragma once

#include <chrono>
#include <stop_token>
#include <thread>

#include "kernels/simt/runtime.h"

namespace trainyard::kernels::cuda {

struct PollOptions {
  std::chrono::milliseconds deadline{};
  /// Polls without a pause, for what is often done soon.
  int spins = 0;
  /// Between two polls after these; 0: other threads go first.
  std::chrono::microseconds pause{0};
  std::stop_token stop;
};

/// Asks `query` (cudaStreamQuery or cudaEventQuery) whether the GPU is done with something, until
/// it is. cudaSuccess; what the query failed with; cudaErrorNotReady after the deadline or a stop.
/// In place of CUDA's own waits, which would wait for ever for a kernel that hangs. Leaves no last
/// error of the thread.
template <typename Query>
cudaError_t poll(const Query& query, const PollOptions& options) {
  const auto end = std::chrono::steady_clock::now() + options.deadline;
  for (int polls = 0;; ++polls) {
    const cudaError_t error = query();
    if (error == cudaSuccess) return error;
    (void)cudaGetLastError();  // a poll's answer stays behind for whoever asks next
    const bool is_over = options.stop.stop_requested() || std::chrono::steady_clock::now() >= end;
    if (error != cudaErrorNotReady || is_over) return error;
    if (polls < options.spins) continue;
    if (options.pause.count() == 0) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(options.pause);
    }
  }
}

}  // namespace trainyard::kernels::cuda
