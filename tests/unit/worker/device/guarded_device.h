#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "worker/comm/communicator.h"
#include "worker/device/device.h"

namespace trainyard::engine::testing {

/// Memory that exists twice in this process: where its owner sees it, without any access, and where
/// copies and communicators reach the same pages.
class GuardedMemory final : public MemorySource {
 public:
  Result<std::unique_ptr<MemoryBlock>> allocate(int64_t bytes) override;
  /// Where the page of such an address can be touched; any other address stays as it is.
  std::byte* reachable(std::byte* address) const;
  const std::byte* reachable(const std::byte* address) const {
    return reachable(const_cast<std::byte*>(address));
  }
  bool holds(const void* address) const;
  /// Whether kernels may touch it now.
  void set_open(bool open);

 private:
  class Block;
  mutable std::mutex mutex_;  ///< a copy stream has a thread of its own
  std::vector<Block*> blocks_;
};

/// A processor that is as far away as a GPU: a host touch of its memory outside of its kernels ends
/// the process, as does a kernel that is handed other memory, and copies run no sooner than
/// somebody has to see what they leave.
class GuardedDevice final : public Device {
 public:
  GuardedDevice();
  ~GuardedDevice() override;

  std::string name() const override { return "guarded"; }
  DeviceLimits limits() const override;
  kernels::DeviceFormats formats(DType compute) const override;
  int host_threads() const override { return 1; }
  MemorySource& memory() override { return memory_; }
  MemorySource& host_memory() override { return heap_; }
  kernels::KernelSet& kernels() override { return *kernels_; }
  void copy(std::span<const CopyRange> ranges) override;
  Result<std::unique_ptr<CopyStream>> copy_stream() override;
  Status wait(std::chrono::milliseconds deadline) override;

  /// Of copies by copy streams: how many succeed before one fails.
  void fail_copies_after(int copies) { copies_left_ = copies; }
  bool takes_copy() { return copies_left_-- > 0; }
  /// Where the same bytes can be touched.
  std::span<std::byte> reachable(std::span<std::byte> data) const {
    return {memory_.reachable(data.data()), data.size()};
  }

  /// Runs the copies that were enqueued.
  void flush();
  /// The same bytes where a communicator reaches them, after all that was enqueued.
  std::span<std::byte> for_communicator(std::span<std::byte> data);

 private:
  HeapMemorySource heap_;
  GuardedMemory memory_;
  std::vector<CopyRange> enqueued_;
  std::atomic<int> copies_left_ = 1 << 30;
  std::unique_ptr<kernels::KernelSet> kernels_;
};

/// A communicator whose collectives and messages work in a device's memory. Both are not owned.
std::unique_ptr<comm::Communicator> on_device(comm::Communicator& host, GuardedDevice& device);

}  // namespace trainyard::engine::testing
