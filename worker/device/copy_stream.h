#pragma once

#include <memory>
#include <span>
#include <stop_token>

#include "common/base/error.h"
#include "worker/device/parallel_copy.h"

namespace trainyard::engine {

/// Copies between a device's memory and that of its host_memory(), beside what the device's one
/// thread enqueues: for another thread, and for one at a time.
class CopyStream {
 public:
  /// A place in what has been enqueued on the device.
  class Moment {
   public:
    virtual ~Moment() = default;
  };

  virtual ~CopyStream() = default;
  /// The device's thread calls it: after all that it has enqueued. Errors: the device's.
  virtual Result<std::unique_ptr<Moment>> now() = 0;
  /// Later copies begin when the device has come to `moment`.
  virtual Status after(const Moment& moment) = 0;
  /// Copies, and blocks until all is copied. Errors: what a kernel or a copy failed with; kAborted
  /// once `stop` is requested, and kDeadline after as long as Device::wait() would wait: memory may
  /// then still be written to until the device is gone.
  virtual Status copy(std::span<const CopyRange> ranges, const std::stop_token& stop) = 0;
};

}  // namespace trainyard::engine
