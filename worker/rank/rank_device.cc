#include "worker/rank/rank_device.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "common/text/quantity.h"
#include "worker/device/cpu_device.h"
#include "worker/device/device_choice.h"
#include "worker/engine/limits.h"

namespace trainyard::engine {
namespace {

/// A rank whose GPU hangs says so before its peers give it up, if they wait for longer than eleven
/// minutes.
constexpr std::chrono::minutes kBeforePeers{1};

std::string capability_text(int64_t capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

}  // namespace

Result<api::DeviceKind> agree_on_device(const WantedDevice& wanted, int local_rank,
                                        const CudaSupport* cuda, comm::Communicator& world,
                                        const std::function<void(const std::string& doubt)>& tell) {
  constexpr char kWasOnGpu[] =
      "the run was on a GPU; set engine.device: Cpu to continue with different bits";
  const bool is_auto = wanted.named == api::DeviceKind::kAuto;
  const auto resolved = resolve_device(
      is_auto ? wanted.recorded.value_or(wanted.named) : wanted.named, local_rank, cuda);
  if (!resolved && is_auto && wanted.recorded) return resolved.error().with_context(kWasOnGpu);
  TRAINYARD_ASSIGN(const api::DeviceKind kind, resolved);
  if (is_auto && !wanted.recorded && kind == api::DeviceKind::kCpu && wanted.sees_gpus) {
    const std::string reason =
        cuda == nullptr ? kWithoutCuda : cuda->find(local_rank).error().message;
    tell("this machine has a GPU, but engine.device: Auto has chosen Cpu: " + reason);
  }
  if (world.size() == 1 || wanted.named == api::DeviceKind::kCpu) return kind;
  int64_t capability = 0;  // none
  if (kind == api::DeviceKind::kCuda) {
    TRAINYARD_ASSIGN(const CudaFacts facts, cuda->find(local_rank));
    capability = 10 * int64_t{facts.capability_major} + facts.capability_minor;
  }
  // Where one rank alone can read what the run was on, that holds for all.
  const auto unless_was_on = [&](api::DeviceKind device) -> int64_t {
    return is_auto && wanted.recorded == device ? 0 : 1;
  };
  std::array<int64_t, 4> lowest = {capability, -capability, unless_was_on(api::DeviceKind::kCpu),
                                   unless_was_on(api::DeviceKind::kCuda)};
  TRAINYARD_TRY(world
                    .all_reduce(std::as_writable_bytes(std::span(lowest)), DType::kInt64,
                                comm::ReduceOp::kMin)
                    ->wait());
  const int64_t highest = -lowest[1];
  if (lowest[2] == 0) return api::DeviceKind::kCpu;
  const bool was_on_gpu = lowest[3] == 0;
  if (lowest[0] == 0 && was_on_gpu) {
    return Error{ErrorCode::kInvalidConfig, std::string(kWasOnGpu) + ": a rank has found no GPU"};
  }
  if (lowest[0] == highest) return kind;
  if (is_auto && lowest[0] == 0) {
    tell(
        "engine.device: found Auto, but some ranks have no GPU: all ranks compute on CPUs; set "
        "Cuda to refuse that, or Cpu to confirm it");
    return api::DeviceKind::kCpu;
  }
  return Error{ErrorCode::kInvalidConfig,
               "engine.device: found ranks on GPUs of compute capability " +
                   capability_text(lowest[0]) + " and " + capability_text(highest) +
                   ", wanted one kind of GPU: their sums may differ; let a node selector choose "
                   "one, or use engine.device: Cpu"};
}

std::string doubt_of_numerics(const api::EngineSpec& spec) {
  const bool on_gpu = spec.device == api::DeviceKind::kCuda;
  const api::NumericsSpec& numerics = spec.numerics;
  std::string fields;
  const auto add = [&](int64_t value, bool of_gpus, const std::string& field) {
    if (value == 0 || of_gpus == on_gpu) return;
    fields += (fields.empty() ? "" : " and ") + field + " (" + std::to_string(value) + ")";
  };
  add(numerics.grain_tokens, false, "grainTokens");
  add(numerics.key_block, false, "keyBlock");
  add(numerics.grain_sequences, true, "grainSequences");
  if (fields.empty()) return "";
  return "engine.numerics: found " + fields + ", which " + (on_gpu ? "GPUs" : "CPUs") +
         " do not use; engine.device: Auto has chosen " + (on_gpu ? "Cuda" : "Cpu") +
         "; remove them, or set engine.device";
}

std::string doubt_of_staging(const MemoryPlan& plan) {
  if (plan.setup().spec.runtime.transport != api::Transport::kAuto) return "";
  return "engine.runtime.transport: Auto exchanges data through host memory: rank 0 sends " +
         text::size_text(plan.step_of(0).bytes_sent) +
         " per step; to exchange from GPU to GPU, set Nccl (several whole GPUs and libnccl.so.2)";
}

Result<std::unique_ptr<Device>> make_rank_device(
    const api::EngineSpec& spec, int local_rank, int threads, const CudaSupport* cuda,
    std::chrono::milliseconds patience, const std::function<void(const std::string& line)>& log) {
  if (spec.device != api::DeviceKind::kCuda)
    return make_cpu_device({.isa = kernel_isa(spec.runtime.isa), .threads = threads});
  TRAINYARD_ASSIGN(const KernelShapes shapes, kernel_shapes(spec));
  const bool blocks =
      std::getenv("CUDA_LAUNCH_BLOCKING") != nullptr;  // NOLINT(concurrency-mt-unsafe)
  return cuda->make(
      {.index = local_rank,
       .host_threads = threads,
       .shapes = shapes,
       .graphs = !blocks,
       .deadline = std::max<std::chrono::milliseconds>(kDeviceDeadline, patience - kBeforePeers),
       .log = log});
}

std::string why_no_graphs(const Device& gpu, int ranks) {
  if (ranks > 1) return "ranks exchange within a step";
  if (!gpu.repeats_parts()) return "CUDA_LAUNCH_BLOCKING is set";
  return std::string(gpu.why_parts_are_plain());
}

}  // namespace trainyard::engine
