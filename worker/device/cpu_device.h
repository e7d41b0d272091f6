#pragma once

#include <cstdint>
#include <memory>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "kernels/cpu/isa.h"
#include "worker/device/device.h"

namespace trainyard::engine {

struct CpuDeviceOptions {
  kernels::Isa isa = kernels::best_isa();
  int threads = 1;
};

/// The processor: its memory is the host's, and whatever is enqueued has run when the call returns.
/// `memory`, which is not owned, replaces the heap as Device::memory(). Errors: those of
/// kernels::make_cpu_kernel_set().
Result<std::unique_ptr<Device>> make_cpu_device(const CpuDeviceOptions& options = {},
                                                MemorySource* memory = nullptr);

DeviceLimits cpu_limits();
/// Residual stream and gradients are fp32.
kernels::DeviceFormats cpu_formats(DType compute);
/// What the kernels need beside their arguments.
int64_t cpu_scratch_bytes(int threads);

/// The instruction set to use: Auto is the best this machine has.
kernels::Isa kernel_isa(api::Isa isa);

/// Whether a processor runs the instruction set that the spec names. Errors: kInvalidConfig naming
/// what it offers instead.
Status check_processor(const api::EngineSpec& spec,
                       const kernels::ProcessorFeatures& features = kernels::this_processor());

}  // namespace trainyard::engine
