#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>

#include "common/base/error.h"

namespace trainyard::engine {

/// One block of device memory, freed on destruction.
class MemoryBlock {
 public:
  virtual ~MemoryBlock() = default;
  virtual std::span<std::byte> bytes() = 0;
};

/// Where arenas come from: heap, shared memory that peers on the host can map, pinned host memory,
/// device memory, NCCL-registered memory.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// A zeroed block of `bytes`, aligned to at least 64. Errors: kUnavailable with the size wanted.
  virtual Result<std::unique_ptr<MemoryBlock>> allocate(int64_t bytes) = 0;
};

/// Anonymous private pages of this process, touched lazily by the kernel; large blocks ask for huge
/// pages.
class HeapMemorySource final : public MemorySource {
 public:
  Result<std::unique_ptr<MemoryBlock>> allocate(int64_t bytes) override;
};

/// Has the kernel find memory for `pages` now, whoever touches them first: nobody waits for it
/// then. What is in them stays as it is, and others may use them meanwhile. Ends early when `stop`
/// is requested, and where the kernel has no memory (whoever touches the rest will learn of it).
void populate(std::span<std::byte> pages, const std::stop_token& stop);

}  // namespace trainyard::engine
