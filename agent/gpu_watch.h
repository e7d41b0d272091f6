#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/nvml.h"
#include "agent/rank_host.h"
#include "common/metrics/exposition.h"

namespace trainyard::agent {

/// Reads this container's GPUs once a second and collects the errors that their driver reports, on
/// a thread of its own: a driver that hangs stops nobody else. Thread-safe.
class GpuWatch {
 public:
  /// Errors: those of Nvml::open. A driver that does not answer within seconds is no error: it may
  /// later, and until then there are no GPUs and the age of readings grows.
  static Result<std::unique_ptr<GpuWatch>> start(std::span<const std::string> libraries);
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  int count() const;
  /// How many errors there were so far.
  size_t errors() const;
  /// What those beyond the first `known` say of a rank of GPU `gpu`, or of any GPU where that is
  /// negative.
  GpuFailure failure(size_t known, int gpu) const;
  void add_metrics(metrics::Exposition& out) const;

 private:
  struct Shared;
  explicit GpuWatch(std::shared_ptr<Shared> shared);

  std::shared_ptr<Shared> shared_;
};

/// Every family that add_metrics may show.
std::span<const metrics::Family> gpu_families();

}  // namespace trainyard::agent
