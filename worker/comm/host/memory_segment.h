#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/base/error.h"
#include "common/base/unique_fd.h"

namespace trainyard::comm {

/// One direction of a pair: how far the writer and the reader have come. Each on a cache line of
/// its own, since each is written by one side only.
struct alignas(64) RingPosition {
  std::atomic<uint64_t> bytes;
};
struct RingControl {
  RingPosition written;
  RingPosition read;
};

/// Where a member sleeps: `rings` counts up whenever something may have changed for it.
struct alignas(64) Doorbell {
  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> sleeping;
};

/// The memory that the members of one group share: a doorbell for each and a ring of bytes for each
/// ordered pair. All zero at first. Mapped in one process (anonymous) or in several (a memfd: it
/// has no name, so nothing is left behind however the processes end).
class MemorySegment {
 public:
  /// Memory of this process only.
  static Result<std::shared_ptr<MemorySegment>> anonymous(int size);
  /// A new memfd; `fd` is what other members map.
  static Result<std::shared_ptr<MemorySegment>> create_shared(int size, UniqueFd& fd);
  /// The memfd of another member. Errors: kIo; kInternal where its size is not that of this layout.
  static Result<std::shared_ptr<MemorySegment>> map_shared(int size, const UniqueFd& fd);

  MemorySegment(std::byte* base, int64_t bytes, int size, bool shared);
  ~MemorySegment();
  MemorySegment(const MemorySegment&) = delete;
  MemorySegment& operator=(const MemorySegment&) = delete;

  /// True where other processes map it too.
  bool shared() const { return shared_; }
  int64_t ring_bytes() const { return ring_bytes_; }
  Doorbell& doorbell(int member);
  RingControl& control(int from, int to);
  std::byte* ring(int from, int to);

  /// A power of two and a multiple of 64, so that no element crosses the end of a ring.
  static int64_t ring_bytes_for(int size);
  /// Bytes of the segment of a group of `size` members.
  static int64_t total_bytes(int size);

 private:
  int64_t pair(int from, int to) const { return static_cast<int64_t>(from) * size_ + to; }

  std::byte* const base_;
  const int64_t bytes_;
  const int size_;
  const int64_t ring_bytes_;
  const bool shared_;
};

}  // namespace trainyard::comm
