#include "worker/device/cpu_device.h"

#include <string>
#include <utility>

#include "common/api/enum_names.h"
#include "kernels/cpu/cpu_kernel_set.h"

namespace trainyard::engine {
namespace {

class CpuDevice final : public Device {
 public:
  CpuDevice(const CpuDeviceOptions& options, MemorySource* memory,
            std::unique_ptr<kernels::KernelSet> kernels)
      : options_(options),
        memory_(memory != nullptr ? *memory : heap_),
        kernels_(std::move(kernels)) {}

  std::string name() const override {
    return "CPU, " + std::string(kernels::name_of(options_.isa)) + ", " +
           std::to_string(options_.threads) + (options_.threads == 1 ? " thread" : " threads");
  }
  DeviceLimits limits() const override { return cpu_limits(); }
  kernels::DeviceFormats formats(DType compute) const override { return cpu_formats(compute); }
  int host_threads() const override { return options_.threads; }
  MemorySource& memory() override { return memory_; }
  MemorySource& host_memory() override { return heap_; }
  kernels::KernelSet& kernels() override { return *kernels_; }
  void copy(std::span<const CopyRange> ranges) override { parallel_copy(ranges, options_.threads); }
  Status wait(std::chrono::milliseconds /*deadline*/) override { return {}; }

 private:
  CpuDeviceOptions options_;
  HeapMemorySource heap_;
  MemorySource& memory_;
  std::unique_ptr<kernels::KernelSet> kernels_;
};

}  // namespace

Result<std::unique_ptr<Device>> make_cpu_device(const CpuDeviceOptions& options,
                                                MemorySource* memory) {
  TRAINYARD_ASSIGN(auto kernels, kernels::make_cpu_kernel_set(options.isa, options.threads));
  return std::make_unique<CpuDevice>(options, memory, std::move(kernels));
}

DeviceLimits cpu_limits() {
  return {.key_block = kernels::kMaxKeyBlock,
          .head_dim = kernels::kMaxHeadDim,
          .attention_elements = kernels::kMaxAttentionElements};
}

kernels::DeviceFormats cpu_formats(DType compute) { return {.compute = compute}; }

int64_t cpu_scratch_bytes(int threads) { return threads * kernels::kScratchBytesPerThread; }

kernels::Isa kernel_isa(api::Isa isa) {
  switch (isa) {
    case api::Isa::kAmx:
      return kernels::Isa::kAmx;
    case api::Isa::kAvx512Bf16:
      return kernels::Isa::kAvx512Bf16;
    case api::Isa::kAvx512:
      return kernels::Isa::kAvx512;
    case api::Isa::kAvx2:
      return kernels::Isa::kAvx2;
    case api::Isa::kGeneric:
      return kernels::Isa::kGeneric;
    case api::Isa::kAuto:
      break;
  }
  return kernels::best_isa();
}

Status check_processor(const api::EngineSpec& spec, const kernels::ProcessorFeatures& features) {
  const api::Isa wanted = spec.runtime.isa;
  const auto offered = [&](api::Isa isa) {
    return kernels::is_available(kernel_isa(isa), features);
  };
  if (wanted == api::Isa::kAuto || offered(wanted)) return {};
  std::string others;
  for (const api::Isa isa :
       {api::Isa::kAvx512Bf16, api::Isa::kAvx512, api::Isa::kAvx2, api::Isa::kGeneric}) {
    if (offered(isa)) others += ", " + std::string(api::name_of(isa));
  }
  return Error{ErrorCode::kInvalidConfig, "engine.runtime.isa: found " +
                                              std::string(api::name_of(wanted)) +
                                              ", which this processor does not offer, wanted Auto" +
                                              others + "; all give the same bits"};
}

}  // namespace trainyard::engine
