#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "worker/comm/host/memory_segment.h"
#include "worker/comm/host/transport.h"

namespace trainyard::comm {

/// Messages through the rings of a MemorySegment: for threads of a process and processes of a host.
/// A message is its header and its payload, each padded to 64 bytes. The writer publishes a piece
/// at a time, so that the reader works on one piece, still in the cache, while the next is written.
class MemoryTransport final : public Transport {
 public:
  /// `spin` is how long polling beats sleeping.
  MemoryTransport(const GroupIdentity& identity, std::shared_ptr<MemorySegment> segment,
                  std::chrono::nanoseconds spin);

  Result<Moved> advance(Transfer& transfer, int64_t sendable) override;
  void wait(std::span<Transfer* const> pending, std::chrono::nanoseconds at_most) override;
  std::chrono::nanoseconds spin() const override { return spin_; }
  bool goodbye_follows_data() const override { return true; }
  void wake() override;

 private:
  /// One end of a ring; positions are cached so that the other side's line is read only when
  /// needed.
  struct Lane {
    RingControl* control = nullptr;
    std::byte* data = nullptr;
    uint64_t own = 0;    ///< written (as sender) or read (as receiver) so far
    uint64_t other = 0;  ///< the other side's position as last seen
  };

  Moved send(Transfer& transfer, int64_t sendable);
  Result<Moved> receive(Transfer& transfer);
  int64_t readable(Lane& lane) const;
  void ring_bell(int member);
  bool ready(const Transfer& transfer);

  const std::shared_ptr<MemorySegment> segment_;
  const std::chrono::nanoseconds spin_;
  const uint64_t ring_bytes_;
  std::vector<Lane> out_;
  std::vector<Lane> in_;
  std::atomic<bool> woken_{false};  ///< wake() was called since the last wait()
};

}  // namespace trainyard::comm
