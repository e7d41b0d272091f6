// Device memory: poisoned when allocated and freed, framed by guard bytes (AddressSanitizer has its
// own), out of the host's reach under AddressSanitizer.

#include <cstdlib>

#include "kernels/simt/emulator/state.h"

namespace trainyard::simt {
namespace detail {

namespace {

constexpr size_t kFrameBytes = 256;  // keeps the alignment of an allocation

bool is_intact(const unsigned char* frame) {
  for (size_t i = 0; i < kFrameBytes; ++i) {
    if (frame[i] != kPoison) return false;
  }
  return true;
}

void free_now(void* pointer) {
  const auto found = device.allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == device.allocations.end()) {
    refuse(cudaErrorInvalidValue, "cudaFreeAsync of an address that is not allocated", true);
    return;
  }
  const size_t bytes = found->second;
  device.allocations.erase(found);
  auto* const memory = static_cast<unsigned char*>(pointer) - kFrameBytes;
#if SIMT_ASAN
  __asan_unpoison_memory_region(memory, bytes + 2 * kFrameBytes);
#endif
  if (!is_intact(memory) || !is_intact(memory + kFrameBytes + bytes)) {
    refuse(cudaErrorIllegalAddress,
           "device memory of " + std::to_string(bytes) + " bytes was written outside its bounds",
           true);
  }
  if (observer != nullptr) observer->freed(pointer, bytes);
  std::memset(memory, kPoison, bytes + 2 * kFrameBytes);
  std::free(memory);
}

}  // namespace

void hide_memory(bool is_hidden) {
#if SIMT_ASAN
  for (const auto& [address, bytes] : device.allocations) {
    if (is_hidden) {
      __asan_poison_memory_region(reinterpret_cast<void*>(address), bytes);
    } else {
      __asan_unpoison_memory_region(reinterpret_cast<void*>(address), bytes);
    }
  }
#else
  (void)is_hidden;
#endif
}

}  // namespace detail

int64_t live_allocations() { return static_cast<int64_t>(detail::device.allocations.size()); }

}  // namespace trainyard::simt

using namespace trainyard::simt::detail;  // NOLINT: the file defines CUDA's global names

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  const Lock lock(device.mutex);
  *pointer = nullptr;
  if (device.sticky != cudaSuccess) return device.sticky;
  int64_t& until_failure = trainyard::simt::emulation_options().fail_allocation;
  if (until_failure >= 0 && until_failure-- == 0) {
    return refuse(cudaErrorMemoryAllocation, "out of memory, as the test asked");
  }
  if (bytes == 0) return cudaSuccess;
  void* memory = nullptr;
  if (posix_memalign(&memory, 256, bytes + 2 * kFrameBytes) != 0) {
    return refuse(cudaErrorMemoryAllocation, "out of memory");
  }
  std::memset(memory, kPoison, bytes + 2 * kFrameBytes);
  auto* const address = static_cast<std::byte*>(memory) + kFrameBytes;
#if SIMT_ASAN
  __asan_poison_memory_region(memory, bytes + 2 * kFrameBytes);
#endif
  device.allocations[reinterpret_cast<uintptr_t>(address)] = bytes;
  *pointer = address;
  return enqueue(stream, "allocation", [address, bytes] {
    if (observer != nullptr) observer->allocated(address, bytes);
  });
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  if (pointer == nullptr) return cudaSuccess;
  return enqueue(stream, "free", [pointer] { free_now(pointer); });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return enqueue(stream, "copy", [=] {
    if (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice) {
      touch(from, bytes, Access::kRead, nullptr);
    }
    std::memcpy(to, from, bytes);
    if (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) {
      touch(to, bytes, Access::kWrite, nullptr);
    }
  });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return enqueue(stream, "set", [=] {
    std::memset(to, value, bytes);
    touch(to, bytes, Access::kWrite, nullptr);
  });
}
