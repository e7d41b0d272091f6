#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "common/base/time.h"
#include "worker/device/device.h"
#include "worker/device/peak_flops.h"
#include "worker/job/memory_plan.h"

namespace trainyard::engine {

/// GPU figures that a rank reports; zeros without a GPU.
class GpuFigures {
 public:
  GpuFigures() = default;
  /// `gpu`: the driver's name of this rank's GPU. All ranks are assumed to have the same kind.
  GpuFigures(const MemoryPlan& plan, std::string_view gpu) {
    const bool is_bf16 = plan.setup().formats.compute == DType::kBFloat16;
    const double peak = is_bf16 ? peak_bf16_flops(gpu) : 0;
    if (!(peak > 0)) return;
    const auto tokens = static_cast<double>(plan.setup().spec.data.sequence_length);
    const auto ranks = static_cast<double>(plan.ranks().size());
    at_peak_s_ = static_cast<double>(plan.model_flops()) / tokens / (peak * ranks);
  }

  /// Model FLOPs utilization (Chowdhery et al. 2022, "PaLM", appendix B; of attention only what the
  /// mask leaves counts here); 0: not known.
  double utilization(double tokens_per_second) const { return at_peak_s_ * tokens_per_second; }

  /// Device::memory_in_use(), which asks the driver: at most once a second.
  int64_t memory_in_use(const Device& device, MonoTime now) {
    if (now >= due_) {
      memory_in_use_ = device.memory_in_use();
      due_ = now + std::chrono::seconds(1);
    }
    return memory_in_use_;
  }

 private:
  double at_peak_s_ = 0;  ///< seconds for a token if all GPUs worked at their peak
  int64_t memory_in_use_ = 0;
  MonoTime due_{};
};

}  // namespace trainyard::engine
