#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "kernels/kernel_set.h"
#include "worker/device/copy_stream.h"
#include "worker/device/memory_source.h"
#include "worker/device/parallel_copy.h"
#include "worker/device/side_stream.h"
#include "worker/trace/span.h"

namespace trainyard::engine {

/// After this time a device that is not done has hung, unless the job allows more.
inline constexpr std::chrono::minutes kDeviceDeadline{10};

/// The shapes that the kernels of a device take; 0 and empty: any.
struct DeviceLimits {
  int64_t key_block = 0;  ///< at most: positions that attention takes at once
  int64_t head_dim = 0;   ///< at most
  /// At most: tokens of a sequence times features of a head, those rounded up to 16.
  int64_t attention_elements = 0;
  std::vector<int64_t> head_dims;  ///< one of these
  int64_t width = 0;               ///< at most, of the residual stream
  int64_t width_multiple = 0;      ///< of which widths of the model are multiples
  bool rings = true;               ///< else context ranks exchange heads, contextMode Ulysses
  bool shared_keys = true;         ///< else engine.parallelism.tensor divides the key-value heads
  /// Bits are those of one rank whatever ranks share: sums of norms of heads, and of positions of
  /// sequences.
  bool exact_parts = true;
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
  /// The types that its kernels work in, where GEMM inputs are of type `compute`.
  virtual kernels::DeviceFormats formats(DType compute) const = 0;
  /// Host threads that a rank may keep busy while its device has nothing to do.
  virtual int host_threads() const = 0;
  virtual MemorySource& memory() = 0;
  /// Bytes of the device's own memory that are in use, by other processes as well; 0: not known.
  virtual int64_t memory_in_use() const { return 0; }
  /// Memory that host code touches, that kernels may read, and that copies are fastest from and to.
  virtual MemorySource& host_memory() = 0;
  virtual kernels::KernelSet& kernels() = 0;
  /// What has failed of what was enqueued, as far as that is known without waiting; what comes
  /// after it does nothing.
  virtual Status status() const { return {}; }
  /// Enqueues copies within and between the device's memory and the host's. The ranges do not
  /// overlap. What is copied from the host stays as it is until wait() returns.
  virtual void copy(std::span<const CopyRange> ranges) = 0;
  void copy(const CopyRange& range) { copy(std::span(&range, 1)); }
  /// Whether parts of steps cost less where begin_part() and end_part() tell of them.
  virtual bool repeats_parts() const { return false; }
  /// Why they cost no less all the same, for people. Empty: they do, or may from the next one on.
  virtual std::string_view why_parts_are_plain() const { return {}; }
  /// Until end_part(), what is called for is what was called for in the part before of this number
  /// and `key`, at the same addresses and in the same order, but for the contents of host memory
  /// that kernels read at the call. It may run no sooner than at end_part(). Two parts are known, 0
  /// and 1. Between them lies a wait(). Within a part there is none, and nothing is copied to host
  /// memory that is not host_memory().
  virtual void begin_part(int /*part*/, uint64_t /*key*/) {}
  /// `is_whole`: false where the part was cut short and nothing of it counts. Without a part that
  /// has begun nothing happens.
  virtual void end_part(bool /*is_whole*/) {}
  /// Who is told when the device has done what was called for between begin_span() and end_span():
  /// of each such stretch by the first wait() after it, on Track::kDevice, with the times at which
  /// the device came to its begin and its end. Null: nobody. Not owned. A device that works within
  /// the calls tells nobody. Costs no wait.
  virtual void trace_to(trace::SpanSink* /*sink*/) {}
  /// One stretch at a time; in parts that repeat they are the same. `span` but for its times.
  virtual void begin_span(const trace::Span& /*span*/) {}
  virtual void end_span() {}
  /// For groups of ranks: copies that another thread makes. Null where host code reaches memory().
  /// What it gives goes before the device. Errors: kUnavailable (the device has no more).
  virtual Result<std::unique_ptr<CopyStream>> copy_stream() { return nullptr; }
  /// For a library that works in memory() by itself: a stream of its own. Null where there are
  /// none. What it gives goes before the device. Errors: kUnavailable (the device has no more).
  virtual Result<std::unique_ptr<SideStream>> side_stream() { return nullptr; }
  /// Blocks until all that was enqueued is done: the only call that does. Errors: kDeadline after
  /// `deadline`; what a kernel or a copy failed with.
  virtual Status wait(std::chrono::milliseconds deadline) = 0;
  /// With deadline().
  Status wait() { return wait(deadline()); }
  /// Longer than any step takes.
  virtual std::chrono::milliseconds deadline() const { return kDeviceDeadline; }
  /// Whether something that was enqueued was not done within a deadline, and still is not as far as
  /// that is known. Memory cannot be freed then, which would wait for it: the process is to end.
  virtual bool is_stuck() const { return false; }
};

}  // namespace trainyard::engine
