#include "worker/comm/host/memory_transport.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <linux/futex.h>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "worker/comm/host/copy.h"

namespace trainyard::comm {
namespace {

/// Published at a time: small enough for the first- or second-level cache, large enough that the
/// position lines cross between cores rarely.
constexpr int64_t kPieceBytes = 32 * 1024;
/// No sleep is longer, so that a lost wake-up would cost latency and never a hang.
constexpr std::chrono::nanoseconds kSleepMax = std::chrono::milliseconds(50);

int64_t padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds at_most,
                bool shared) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const timespec relative{static_cast<time_t>(seconds.count()),
                          static_cast<long>((at_most - seconds).count())};
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE,
            expected, &relative, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word, bool shared) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE,
            INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

MemoryTransport::MemoryTransport(const GroupIdentity& identity,
                                 std::shared_ptr<MemorySegment> segment,
                                 std::chrono::nanoseconds spin)
    : Transport(identity),
      segment_(std::move(segment)),
      spin_(spin),
      ring_bytes_(static_cast<uint64_t>(segment_->ring_bytes())) {
  const int own = identity_.member;
  for (int peer = 0; peer < identity_.size(); ++peer) {
    out_.push_back({&segment_->control(own, peer), segment_->ring(own, peer)});
    in_.push_back({&segment_->control(peer, own), segment_->ring(peer, own)});
  }
}

Result<Transport::Moved> MemoryTransport::advance(Transfer& transfer, int64_t sendable) {
  return transfer.sends() ? send(transfer, sendable) : receive(transfer);
}

Transport::Moved MemoryTransport::send(Transfer& transfer, int64_t sendable) {
  Lane& lane = out_[static_cast<size_t>(transfer.peer)];
  Moved moved = Moved::kNothing;
  // Everything a small message needs is published at once.
  while (true) {
    const uint64_t begin = lane.own;
    auto room = static_cast<int64_t>(ring_bytes_ - (lane.own - lane.other));
    const int64_t left = sendable - transfer.payload_moved;
    int64_t want = std::min(padded(left), kPieceBytes);
    if (transfer.header_moved == 0) want += kHeaderBytes;
    if (want == 0) return moved;
    if (room < want) {
      lane.other = lane.control->read.bytes.load(std::memory_order_acquire);
      room = static_cast<int64_t>(ring_bytes_ - (lane.own - lane.other));
    }
    // The reader empties the ring in the end, so a little room is not worth a little piece.
    if (room < std::min(want, static_cast<int64_t>(ring_bytes_ / 4))) return moved;
    if (transfer.header_moved == 0) {
      std::memcpy(lane.data + (lane.own & (ring_bytes_ - 1)), transfer.header.data(), kHeaderBytes);
      transfer.header_moved = kHeaderBytes;
      lane.own += kHeaderBytes;
      room -= kHeaderBytes;
    }
    const auto at = static_cast<int64_t>(lane.own & (ring_bytes_ - 1));
    const int64_t piece =
        std::min({left, kPieceBytes, room, static_cast<int64_t>(ring_bytes_) - at});
    // A piece that is not the last must keep what follows aligned to 64 bytes.
    const int64_t take = transfer.payload_moved + piece == transfer.bytes ? piece : piece / 64 * 64;
    if (take > 0) {
      std::memcpy(lane.data + at, transfer.data + transfer.payload_moved,
                  static_cast<size_t>(take));
      transfer.payload_moved += take;
      lane.own += static_cast<uint64_t>(padded(take));
    }
    if (lane.own == begin) return moved;
    lane.control->written.bytes.store(lane.own, std::memory_order_seq_cst);
    ring_bell(transfer.peer);
    moved = Moved::kSomething;
    if (transfer.payload_moved == sendable) return moved;
  }
}

int64_t MemoryTransport::readable(Lane& lane) const {
  lane.other = lane.control->written.bytes.load(std::memory_order_acquire);
  return static_cast<int64_t>(lane.other - lane.own);
}

Result<Transport::Moved> MemoryTransport::receive(Transfer& transfer) {
  Lane& lane = in_[static_cast<size_t>(transfer.peer)];
  const int64_t available = readable(lane);
  if (available == 0) return Moved::kNothing;
  if (available < 0 || available > static_cast<int64_t>(ring_bytes_) || available % 64 != 0) {
    return Error{ErrorCode::kPeerLost, "shared memory from rank " +
                                           std::to_string(identity_.rank_of(transfer.peer)) + ": " +
                                           std::to_string(available) + " bytes in a ring of " +
                                           std::to_string(ring_bytes_)};
  }
  int64_t left = available;
  if (transfer.header_moved == 0) {
    std::memcpy(transfer.found.data(), lane.data + (lane.own & (ring_bytes_ - 1)), kHeaderBytes);
    TRAINYARD_TRY(accept(transfer));
    transfer.header_moved = kHeaderBytes;
    lane.own += kHeaderBytes;
    left -= kHeaderBytes;
  }
  while (left > 0 && transfer.payload_moved < transfer.bytes) {
    const auto at = static_cast<int64_t>(lane.own & (ring_bytes_ - 1));
    const int64_t piece = std::min({transfer.bytes - transfer.payload_moved, left, kPieceBytes,
                                    static_cast<int64_t>(ring_bytes_) - at});
    std::byte* into = transfer.data + transfer.payload_moved;
    if (transfer.kind == Transfer::Kind::kReduce) {
      transfer.combine(into, lane.data + at, piece / transfer.element_bytes);
    } else if (transfer.past_caches) {
      copy_past_caches(into, lane.data + at, piece);
    } else {
      std::memcpy(into, lane.data + at, static_cast<size_t>(piece));
    }
    transfer.payload_moved += piece;
    lane.own += static_cast<uint64_t>(padded(piece));
    left -= padded(piece);
    if (left > 0 && transfer.payload_moved < transfer.bytes) {
      lane.control->read.bytes.store(lane.own, std::memory_order_seq_cst);
      ring_bell(transfer.peer);
    }
  }
  lane.control->read.bytes.store(lane.own, std::memory_order_seq_cst);
  ring_bell(transfer.peer);
  return Moved::kSomething;
}

void MemoryTransport::ring_bell(int member) {
  Doorbell& bell = segment_->doorbell(member);
  // Sequentially consistent with the store of a position before and with wait(): either this sees
  // the sleeper, or the sleeper's last look sees the position.
  if (bell.sleeping.load(std::memory_order_seq_cst) == 0) return;
  bell.rings.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(bell.rings, segment_->shared());
}

void MemoryTransport::wake() {
  Doorbell& bell = segment_->doorbell(identity_.member);
  woken_.store(true, std::memory_order_seq_cst);
  bell.rings.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(bell.rings, segment_->shared());
}

bool MemoryTransport::ready(const Transfer& transfer) {
  if (transfer.sends()) {
    Lane& lane = out_[static_cast<size_t>(transfer.peer)];
    const uint64_t seen = lane.other;
    lane.other = lane.control->read.bytes.load(std::memory_order_seq_cst);
    return lane.other != seen;
  }
  const Lane& lane = in_[static_cast<size_t>(transfer.peer)];
  return lane.control->written.bytes.load(std::memory_order_seq_cst) != lane.own;
}

void MemoryTransport::wait(std::span<Transfer* const> pending, std::chrono::nanoseconds at_most) {
  if (at_most <= std::chrono::nanoseconds::zero()) return;
  Doorbell& bell = segment_->doorbell(identity_.member);
  const uint32_t rings = bell.rings.load(std::memory_order_seq_cst);
  bell.sleeping.store(1, std::memory_order_seq_cst);
  bool any = woken_.exchange(false, std::memory_order_seq_cst);
  for (const Transfer* transfer : pending)
    any = ready(*transfer) || any;
  if (!any) futex_wait(bell.rings, rings, std::min(at_most, kSleepMax), segment_->shared());
  bell.sleeping.store(0, std::memory_order_relaxed);
}

}  // namespace trainyard::comm
