#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "common/base/error.h"
#include "kernels/kernel_set.h"
#include "worker/device/memory_source.h"
#include "worker/device/parallel_copy.h"

namespace trainyard::engine {

/// The largest shapes that the kernels of a device take.
struct DeviceLimits {
  int64_t key_block = 0;  ///< positions that attention takes at once
  int64_t head_dim = 0;
  /// Tokens of a sequence times features of a head, those rounded up to 16.
  int64_t attention_elements = 0;
};

/// What a rank computes on: memory, the kernels that work in it, and copies in and out. Host code
/// never touches memory(): it enqueues kernels and copies, which run one after another, and waits
/// for them where it needs their results. Collectives and messages work in that memory, too. Serves
/// one engine, from one thread at a time.
class Device {
 public:
  virtual ~Device() = default;

  /// For people: "CPU, avx512, 2 threads".
  virtual std::string name() const = 0;
  virtual DeviceLimits limits() const = 0;
  /// Host threads that a rank may keep busy while its device has nothing to do.
  virtual int host_threads() const = 0;
  virtual MemorySource& memory() = 0;
  /// Memory that host code touches, that kernels may read, and that copies are fastest from and to.
  virtual MemorySource& host_memory() = 0;
  virtual kernels::KernelSet& kernels() = 0;
  /// Enqueues copies within and between the device's memory and the host's. The ranges do not
  /// overlap. What is copied from the host stays as it is until wait() returns.
  virtual void copy(std::span<const CopyRange> ranges) = 0;
  void copy(const CopyRange& range) { copy(std::span(&range, 1)); }
  /// Blocks until all that was enqueued is done: the only call that does. Errors: kDeadline after
  /// `deadline`; what a kernel or a copy failed with.
  virtual Status wait(std::chrono::milliseconds deadline) = 0;
  /// The same with kDeadline, which no step of any model takes.
  Status wait() { return wait(kDeadline); }

 private:
  static constexpr std::chrono::minutes kDeadline{10};
};

}  // namespace trainyard::engine
