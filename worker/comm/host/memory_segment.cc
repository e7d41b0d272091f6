#include "worker/comm/host/memory_segment.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace trainyard::comm {
namespace {

/// What one member's outgoing rings take together, so that the segment grows with the ranks and not
/// with their square; a ring of two members holds several pieces in the second-level cache.
constexpr int64_t kOutgoingBytes = int64_t{2} << 20;
constexpr int64_t kRingBytesMin = 64 * 1024;
constexpr int64_t kRingBytesMax = 512 * 1024;

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

int64_t page_up(int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

}  // namespace

int64_t MemorySegment::ring_bytes_for(int size) {
  const int64_t each = kOutgoingBytes / std::max(1, size - 1);
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(each)));
  return std::clamp(power, kRingBytesMin, kRingBytesMax);
}

int64_t MemorySegment::total_bytes(int size) {
  const int64_t pairs = static_cast<int64_t>(size) * size;
  return page_up(static_cast<int64_t>(sizeof(Doorbell)) * size) +
         page_up(static_cast<int64_t>(sizeof(RingControl)) * pairs) + ring_bytes_for(size) * pairs;
}

MemorySegment::MemorySegment(std::byte* base, int64_t bytes, int size, bool shared)
    : base_(base), bytes_(bytes), size_(size), ring_bytes_(ring_bytes_for(size)), shared_(shared) {}

MemorySegment::~MemorySegment() { ::munmap(base_, static_cast<size_t>(bytes_)); }

Result<std::shared_ptr<MemorySegment>> MemorySegment::anonymous(int size) {
  const int64_t bytes = total_bytes(size);
  void* base = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return io_error("map " + std::to_string(bytes) + " bytes for local ranks", errno);
  }
  return std::make_shared<MemorySegment>(static_cast<std::byte*>(base), bytes, size, false);
}

Result<std::shared_ptr<MemorySegment>> MemorySegment::create_shared(int size, UniqueFd& fd) {
  const int64_t bytes = total_bytes(size);
  fd.reset(::memfd_create("trainyard-comm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return io_error("create shared memory (memfd_create)", errno);
  if (::ftruncate(fd.get(), bytes) != 0) {
    return io_error("size shared memory to " + std::to_string(bytes) + " bytes", errno);
  }
  return map_shared(size, fd);
}

Result<std::shared_ptr<MemorySegment>> MemorySegment::map_shared(int size, const UniqueFd& fd) {
  const int64_t bytes = total_bytes(size);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return io_error("stat shared memory", errno);
  if (info.st_size != bytes) {
    return Error{ErrorCode::kInternal, "shared memory has " + std::to_string(info.st_size) +
                                           " bytes, wanted " + std::to_string(bytes) + " for " +
                                           std::to_string(size) +
                                           " ranks: run the same build on every rank"};
  }
  void* base =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) {
    return io_error("map " + std::to_string(bytes) + " bytes of shared memory", errno);
  }
  return std::make_shared<MemorySegment>(static_cast<std::byte*>(base), bytes, size, true);
}

Doorbell& MemorySegment::doorbell(int member) { return reinterpret_cast<Doorbell*>(base_)[member]; }

RingControl& MemorySegment::control(int from, int to) {
  std::byte* at = base_ + page_up(static_cast<int64_t>(sizeof(Doorbell)) * size_);
  return reinterpret_cast<RingControl*>(at)[pair(from, to)];
}

std::byte* MemorySegment::ring(int from, int to) {
  const int64_t pairs = static_cast<int64_t>(size_) * size_;
  return base_ + page_up(static_cast<int64_t>(sizeof(Doorbell)) * size_) +
         page_up(static_cast<int64_t>(sizeof(RingControl)) * pairs) + ring_bytes_ * pair(from, to);
}

}  // namespace trainyard::comm
