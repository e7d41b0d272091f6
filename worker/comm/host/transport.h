#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/error.h"
#include "worker/comm/host/group.h"
#include "worker/comm/host/message.h"
#include "worker/comm/host/reduce.h"

namespace trainyard::comm {

/// One message of a batch: its header, where its payload is, how far it has come.
struct Transfer {
  enum class Kind : uint8_t {
    kSend,     ///< payload read from `data`
    kReceive,  ///< payload written to `data`
    kReduce,   ///< payload combined into `data`, element by element as it arrives
  };
  Kind kind = Kind::kSend;
  int peer = 0;  ///< member
  std::byte* data = nullptr;
  int64_t bytes = 0;
  /// Index in the batch of a receive into the same `data` that a send follows: no byte is sent
  /// before it is there. -1: none.
  int after = -1;
  /// kReceive of a large payload that this rank does not pass on: memory transports write it past
  /// the caches.
  bool past_caches = false;
  Combine combine = nullptr;  ///< kReduce
  int64_t element_bytes = 1;  ///< kReduce: pieces are cut between elements
  WireHeader header{};        ///< to send, or the one that is due

  // Progress.
  WireHeader found{};  ///< received so far
  int64_t header_moved = 0;
  int64_t payload_moved = 0;
  int next = -1;  ///< next of the same peer and direction in the batch

  bool sends() const { return kind == Kind::kSend; }
  bool done() const { return header_moved == kHeaderBytes && payload_moved == bytes; }
};

/// Ordered bytes to and from each member, without blocking. Not thread-safe but for wake(): driven
/// by whoever runs the operation. Messages of one pair and direction are advanced one after
/// another.
class Transport : public Waker {
 public:
  enum class Moved : uint8_t {
    kNothing,
    kSomething,
    kPeerClosed,  ///< the other side ended its data connection: the group will know why
  };

  /// Moves as much of one message as goes now; of a send at most `sendable` payload bytes in all. A
  /// receive calls accept() as soon as the header is complete and before any payload is combined.
  /// Errors: accept()'s; kIo.
  virtual Result<Moved> advance(Transfer& transfer, int64_t sendable) = 0;

  /// Blocks until one of `pending` may advance, wake() was called, or the time is over. Sends that
  /// follow a receive of this rank and have nothing to send yet are not among them.
  virtual void wait(std::span<Transfer* const> pending, std::chrono::nanoseconds at_most) = 0;

  /// How long polling advance() is better than wait(): nothing where ranks outnumber cores.
  virtual std::chrono::nanoseconds spin() const = 0;

  /// True where a member's goodbye cannot overtake its data.
  virtual bool goodbye_follows_data() const = 0;

 protected:
  explicit Transport(const GroupIdentity& identity) : identity_(identity) {}

  /// Compares the complete header of a receive with the one due.
  Status accept(const Transfer& transfer) const {
    return check_header(transfer.header, transfer.found, identity_.own_rank(),
                        identity_.rank_of(transfer.peer));
  }

  const GroupIdentity identity_;
};

}  // namespace trainyard::comm
