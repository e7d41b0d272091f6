#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/simt/emulation.h"
#include "tests/numeric/cuda_engine/small_run.h"
#include "tests/support/extent.h"
#include "tests/support/fake_cublaslt.h"

/// Faults at the calls into CUDA's runtime and into cuBLASLt that a run makes.
namespace trainyard::engine::testing {

struct CallCase {
  simt::CallFault fault = simt::CallFault::kNone;
  std::string function;
  int64_t at = 0;

  std::string name() const {
    static constexpr const char* kNames[] = {"none", "error", "hang", "late error", "never done"};
    return std::string(kNames[static_cast<int>(fault)]) + " of " + function + " #" +
           std::to_string(at);
  }
};

/// Calls whose failure loses nothing but what is freed: the run does not notice.
inline bool frees(const std::string& function) {
  return function.find("Destroy") != std::string::npos || function.starts_with("cudaFree");
}
/// What is left of it where freeing has failed.
inline void end_process() {
  simt::free_everything();
  testing_support::fake_cublaslt().live_objects = 0;
}
/// Whether the lines of this program's sources are those that tools/cuda_calls lists: planted bugs
/// shift them, and what watches memory makes calls of its own.
inline bool has_listed_lines() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe)
  const bool has_planted = std::getenv("TRAINYARD_MUTANTS_RUN") != nullptr;
  return !has_planted && !testing_support::kSanitized && !simt::has_race_checker();
}
/// "ncclSend" of a function of the double of NCCL, as errors have it.
inline std::string called_name(const std::string& function) {
  return function.substr(0, function.find(' '));
}
/// Called as often as threads happen to run.
inline bool polls(const std::string& function) {
  return function == "cudaStreamQuery" || function == "cudaEventQuery" ||
         function.starts_with("ncclCommGetAsyncError");
}

/// A case per call of a run without a fault, by call_faults().
inline std::vector<CallCase> call_cases(const std::vector<simt::CallFault>& faults) {
  using simt::CallFault;
  constexpr int64_t kPolls = 6;
  std::vector<CallCase> all;
  for (const CallFault fault : faults) {
    const bool of_enqueued = fault == CallFault::kLateError || fault == CallFault::kNeverDone;
    for (const auto& [function, calls] :
         of_enqueued ? simt::call_faults().enqueued : simt::call_faults().calls) {
      const int64_t times = polls(function) ? std::min(calls, kPolls) : calls;
      for (int64_t at = 0; at < times; ++at)
        all.push_back({fault, function, at});
    }
  }
  return all;
}

/// Of `cases`: all in a long run, else about `count`, which the commit draws. Watched, one.
inline std::vector<CallCase> drawn(const std::string& name, const std::vector<CallCase>& cases,
                                   int64_t count) {
  const bool is_slow = is_watched();
  const bool all = testing_support::runs_everything() && !is_slow;
  const int64_t share = std::max<int64_t>(1, std::ssize(cases) / (is_slow ? 1 : count));
  const auto first = static_cast<int64_t>(
      std::hash<std::string>()(name + std::to_string(testing_support::test_seed())) %
      static_cast<size_t>(share));
  std::vector<CallCase> some;
  for (int64_t i = all ? 0 : first; i < std::ssize(cases); i += all ? 1 : share)
    if (!is_slow || !frees(cases[static_cast<size_t>(i)].function))
      some.push_back(cases[static_cast<size_t>(i)]);  // nothing may leak there
  return some;
}

/// Calls so far that allocate memory, free it, or make streams. A step makes none of them.
inline std::map<std::string, int64_t> calls_that_allocate() {
  std::map<std::string, int64_t> found;
  for (const auto& [function, calls] : simt::call_faults().calls) {
    const bool is_one = function.starts_with("cudaMalloc") || function.starts_with("cudaFree") ||
                        function.starts_with("cudaStreamCreate") || function == "cudaStreamDestroy";
    if (is_one) found[function] = calls;
  }
  return found;
}

/// The calls of `device` get this fault.
inline void plant(const CallCase& planted, int device) {
  simt::reset_call_faults();
  simt::CallFaults& faults = simt::call_faults();
  faults.fault = planted.fault;
  faults.function = planted.function;
  faults.at = planted.at;
  faults.device = device;
}

/// The calls of tools/cuda_calls, of sources that begin as one of `sources`, that are at none of
/// the places in call_faults(): one a line.
std::string calls_not_made(const std::vector<std::string>& sources);

}  // namespace trainyard::engine::testing
