#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/error.h"

namespace trainyard::agent {

/// A GPU at one moment; nullopt: this GPU does not tell, or told nothing at this reading.
struct GpuReading {
  std::string name;  ///< "NVIDIA H200"
  std::string uuid;  ///< "GPU-..."
  /// The driver has lost it, or gives no access before a reset: nothing below is told any more.
  bool lost = false;
  std::optional<int64_t> memory_used_bytes, memory_bytes;
  std::optional<double> utilization;  ///< share of the last sample in which a kernel ran, 0 to 1
  std::optional<double> temperature_celsius;
  std::optional<double> power_watts, power_limit_watts;
  std::optional<double> clock_hertz;  ///< of the multiprocessors
  struct Slowdown {
    bool thermal = false, power = false;  ///< clocks held down by heat, by a limit of power
  };
  std::optional<Slowdown> slowdown;
  /// Errors of memory since the driver was loaded.
  std::optional<int64_t> ecc_corrected, ecc_uncorrected;
};

/// An error that the driver reports about a GPU ("Xid Errors", NVIDIA's documentation).
struct XidError {
  int gpu = 0;
  int64_t xid = 0;
};

/// Where the library is sought, in this order: by the loader, then where distributions and
/// container runtimes put it.
std::vector<std::string> nvml_paths();

/// The GPUs of this container, in the order of their bus addresses, by NVIDIA's management library,
/// which is opened at run time. Any call may take as long as a broken driver likes. Not
/// thread-safe.
class Nvml {
 public:
  /// Opens the first of these libraries that there is. What it has no function for is not told.
  /// Errors: kUnavailable (none, no driver, a library without the functions that list GPUs, or no
  /// GPU).
  static Result<std::unique_ptr<Nvml>> open(std::span<const std::string> libraries);
  ~Nvml();

  int count() const;
  GpuReading read(int gpu) const;
  /// The next error, waiting at most so long; nullopt: none. Where this driver tells of none it
  /// only waits.
  std::optional<XidError> wait_for_error(std::chrono::milliseconds timeout);

 private:
  struct Library;
  explicit Nvml(std::unique_ptr<Library> library);

  std::unique_ptr<Library> library_;
};

}  // namespace trainyard::agent
