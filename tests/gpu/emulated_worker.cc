// trainyard-worker whose GPUs are the emulation and whose cuBLASLt is a double. What goes wrong is
// in TRAINYARD_EMULATION, a JSON object; all members may be absent, but for `function` and `at`
// with a fault:
//   devices        GPUs that the process sees; absent: one per rank of the machine
//   memoryBytes    of each
//   name           of each, as a driver calls it
//   capabilityMajor  of each: 9 in 9.0
//   ofRank         object by rank; its members override those above for that rank
//   deadlineMs     of waits for the GPU, where the fault is
//   rank           whose process the fault is in, in the first generation
//   fault          "error", "late" (what the call enqueued fails) or "never" (it is never done)
//   function, at   the `at`-th call (from 0) of this function of CUDA's runtime
//   error          number of the cudaError_t

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "common/log/log.h"
#include "common/worker_contract.h"
#include "kernels/simt/emulation.h"
#include "tests/gpu/library.h"
#include "worker/device/cuda_device.h"
#include "worker/rank/rank.h"

namespace trainyard::engine {
namespace {

std::optional<std::chrono::milliseconds> asked_deadline;

std::string environment(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any thread
  return value != nullptr ? value : otherwise;
}

Result<std::unique_ptr<Device>> make(const CudaDeviceOptions& asked) {
  TRAINYARD_ASSIGN(const auto library, kernels::cuda::product_library());
  CudaDeviceOptions options = asked;
  options.cublaslt = &library;
  options.deadline = asked_deadline.value_or(asked.deadline);
  return make_cuda_device(options);
}

void set_up_emulation() {
  const std::string rank = environment(contract::kEnvRank, "0");
  auto asked = nlohmann::json::parse(environment("TRAINYARD_EMULATION", "{}"));
  const auto none = nlohmann::json::object();
  asked.update(asked.value("ofRank", none).value(rank, none));
  const int ranks = std::stoi(environment(contract::kEnvLocalWorldSize, "1"));
  simt::EmulationOptions& options = simt::emulation_options();
  options.print_errors = false;
  options.devices = asked.value("devices", ranks);
  options.memory_bytes = asked.value("memoryBytes", options.memory_bytes);
  options.name = asked.value("name", options.name);
  options.capability_major = asked.value("capabilityMajor", options.capability_major);

  const bool is_first = environment(contract::kEnvGeneration, "1") == "1";
  if (!is_first || !asked.contains("fault") || rank != std::to_string(asked.value("rank", 0)))
    return;
  if (asked.contains("deadlineMs"))
    asked_deadline = std::chrono::milliseconds(asked["deadlineMs"].get<int64_t>());
  simt::CallFaults& faults = simt::call_faults();
  const std::string fault = asked["fault"];
  faults.fault = fault == "late"    ? simt::CallFault::kLateError
                 : fault == "never" ? simt::CallFault::kNeverDone
                                    : simt::CallFault::kError;
  faults.function = asked["function"];
  faults.at = asked["at"];
  faults.device = std::stoi(environment(contract::kEnvLocalRank, "0"));
  if (asked.contains("error")) faults.error = static_cast<cudaError_t>(asked["error"].get<int>());
}

}  // namespace
}  // namespace trainyard::engine

int main() {
  trainyard::engine::set_up_emulation();
  const auto log = trainyard::Logger::to_stderr(trainyard::LogLevel::kInfo);
  const trainyard::engine::CudaSupport cuda = {trainyard::engine::find_cuda_device,
                                               trainyard::engine::make, nullptr};
  return trainyard::engine::run_rank(*log, &cuda);
}
