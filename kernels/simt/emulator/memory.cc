// Device memory: poisoned when allocated and freed, framed by guard bytes (AddressSanitizer has its
// own), out of the host's reach under AddressSanitizer.

#include <cstdlib>
#include <iterator>

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

bool is_to_fail() {
  int64_t& until_failure = emulation_options().fail_allocation;
  return until_failure >= 0 && until_failure-- == 0;
}

cudaError_t allocate(void** pointer, size_t bytes) {
  *pointer = nullptr;
  if (device.sticky != cudaSuccess) return device.sticky;
  if (is_to_fail()) return refuse(cudaErrorMemoryAllocation, "out of memory, as the test asked");
  if (bytes == 0) return cudaSuccess;
  const auto room = emulation_options().memory_bytes - allocated_bytes();
  void* memory = nullptr;
  if (static_cast<int64_t>(bytes) > room ||
      posix_memalign(&memory, 256, bytes + 2 * kFrameBytes) != 0) {
    return refuse(cudaErrorMemoryAllocation, "out of memory");
  }
  std::memset(memory, kPoison, bytes + 2 * kFrameBytes);
  auto* const address = static_cast<std::byte*>(memory) + kFrameBytes;
#if SIMT_ASAN
  __asan_poison_memory_region(memory, bytes + 2 * kFrameBytes);
#endif
  device.allocations[reinterpret_cast<uintptr_t>(address)] = bytes;
  *pointer = address;
  return cudaSuccess;
}

/// Whether an address is the device's.
bool is_of_device(const void* pointer) {
  auto after = device.allocations.upper_bound(reinterpret_cast<uintptr_t>(pointer));
  if (after == device.allocations.begin()) return false;
  const auto& [address, bytes] = *std::prev(after);
  return reinterpret_cast<uintptr_t>(pointer) < address + bytes;
}

int64_t sum_of(const std::map<uintptr_t, size_t>& allocations) {
  int64_t bytes = 0;
  for (const auto& [address, size] : allocations)
    bytes += static_cast<int64_t>(size);
  return bytes;
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
  if (!emulation_options().reuses_addresses) {
    device.retired.emplace_back(memory, &std::free);
    return;
  }
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

void free_everything() {
  const detail::Lock lock(detail::device.mutex);
  while (!detail::device.allocations.empty())
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    detail::free_now(reinterpret_cast<void*>(detail::device.allocations.begin()->first));
  for (const auto& [address, bytes] : detail::device.host_allocations)
    std::free(reinterpret_cast<void*>(address));  // NOLINT(performance-no-int-to-ptr)
  detail::device.host_allocations.clear();
  detail::device.retired.clear();
}

bool hides_device_memory() { return SIMT_ASAN != 0; }

int64_t live_allocations() { return static_cast<int64_t>(detail::device.allocations.size()); }
int64_t live_host_allocations() {
  return static_cast<int64_t>(detail::device.host_allocations.size());
}
int64_t allocated_bytes() { return detail::sum_of(detail::device.allocations); }
int64_t allocated_host_bytes() { return detail::sum_of(detail::device.host_allocations); }

}  // namespace trainyard::simt

using namespace trainyard::simt::detail;  // NOLINT: the file defines CUDA's global names

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  SIMT_CALL(cudaMallocAsync);
  const Lock lock(device.mutex);
  const cudaError_t error = allocate(pointer, bytes);
  if (error != cudaSuccess || bytes == 0) return error;
  return enqueue(stream, "allocation", [address = *pointer, bytes] {
    if (observer != nullptr) observer->allocated(address, bytes);
  });
}
/// Every stream sees what is allocated at once, and nobody may still use what is freed: CUDA waits
/// for the device.
cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  SIMT_CALL(cudaMalloc);
  const Lock lock(device.mutex);
  if (const cudaError_t refused = refuse_in_capture("cudaMalloc"); refused != cudaSuccess)
    return refused;
  const cudaError_t error = allocate(pointer, bytes);
  if (error != cudaSuccess || bytes == 0) return error;
  if (observer != nullptr) observer->forgotten(*pointer, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  SIMT_CALL(cudaFree);
  const Lock lock(device.mutex);
  if (const cudaError_t refused = refuse_in_capture("cudaFree"); refused != cudaSuccess)
    return refused;
  if (pointer == nullptr) return cudaSuccess;
  const cudaError_t error = cudaDeviceSynchronize();
  const auto found = device.allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (observer != nullptr && found != device.allocations.end())
    observer->forgotten(pointer, found->second);
  if (error == cudaSuccess) free_now(pointer);
  return device.sticky;
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  SIMT_CALL(cudaMallocHost);
  const Lock lock(device.mutex);
  if (const cudaError_t refused = refuse_in_capture("cudaMallocHost"); refused != cudaSuccess)
    return refused;
  *pointer = nullptr;
  if (device.sticky != cudaSuccess) return device.sticky;
  if (is_to_fail()) return refuse(cudaErrorMemoryAllocation, "out of memory, as the test asked");
  if (posix_memalign(pointer, 256, bytes > 0 ? bytes : 1) != 0) {
    return refuse(cudaErrorMemoryAllocation, "out of memory");
  }
  device.host_allocations[reinterpret_cast<uintptr_t>(*pointer)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  SIMT_CALL(cudaFreeHost);
  const Lock lock(device.mutex);
  if (const cudaError_t refused = refuse_in_capture("cudaFreeHost"); refused != cudaSuccess)
    return refused;
  if (pointer == nullptr) return cudaSuccess;
  const cudaError_t error = cudaDeviceSynchronize();
  device.host_allocations.erase(reinterpret_cast<uintptr_t>(pointer));
  std::free(pointer);
  return error;
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  SIMT_CALL(cudaFreeAsync);
  if (pointer == nullptr) return cudaSuccess;
  return enqueue(stream, "free", [pointer] { free_now(pointer); });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  SIMT_CALL(cudaMemcpyAsync);
  const Lock lock(device.mutex);
  if (kind == cudaMemcpyDefault) {
    const bool from_device = is_of_device(from);
    const bool to_device = is_of_device(to);
    kind = from_device ? (to_device ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost)
                       : (to_device ? cudaMemcpyHostToDevice : cudaMemcpyHostToHost);
  }
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
  SIMT_CALL(cudaMemsetAsync);
  return enqueue(stream, "set", [=] {
    std::memset(to, value, bytes);
    touch(to, bytes, Access::kWrite, nullptr);
  });
}
