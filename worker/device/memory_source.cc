#include "worker/device/memory_source.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <sys/mman.h>

#include "common/io/byte_limits.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kHugePageBytes = 2 << 20;
/// In one call, which cannot be interrupted.
constexpr size_t kPopulateBytes = 32 << 20;

class MappedBlock final : public MemoryBlock {
 public:
  MappedBlock(std::byte* data, size_t size) : data_(data), size_(size) {}
  ~MappedBlock() override {
    if (data_ != nullptr) ::munmap(data_, size_);
  }
  MappedBlock(const MappedBlock&) = delete;
  MappedBlock& operator=(const MappedBlock&) = delete;
  std::span<std::byte> bytes() override { return {data_, size_}; }

 private:
  std::byte* data_;
  size_t size_;
};

}  // namespace

Result<std::unique_ptr<MemoryBlock>> HeapMemorySource::allocate(int64_t bytes) {
  if (bytes == 0) return std::unique_ptr<MemoryBlock>(new MappedBlock(nullptr, 0));
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    const std::string cause = io_error("mmap", errno).message;
    // Another attempt would meet the same limit.
    const bool limited = is_set(kAddressSpaceLimit) || is_set(kDataLimit);
    return Error{limited ? ErrorCode::kInvalidConfig : ErrorCode::kUnavailable,
                 "allocate " + std::to_string(bytes) + " bytes of memory for the arena: " + cause +
                     "; use a smaller micro-batch or model" +
                     (limited ? ", or raise the limit (ulimit -v, ulimit -d)" : "")};
  }
  if (bytes >= kHugePageBytes) ::madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return std::unique_ptr<MemoryBlock>(
      new MappedBlock(static_cast<std::byte*>(data), static_cast<size_t>(bytes)));
}

void populate(std::span<std::byte> pages, const std::stop_token& stop) {
  while (!pages.empty() && !stop.stop_requested()) {
    const auto piece = pages.first(std::min(pages.size(), kPopulateBytes));
    if (::madvise(piece.data(), piece.size(), MADV_POPULATE_WRITE) != 0) return;
    pages = pages.subspan(piece.size());
  }
}

}  // namespace trainyard::engine
