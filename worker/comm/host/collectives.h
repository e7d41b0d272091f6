#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/error.h"
#include "worker/comm/communicator.h"
#include "worker/comm/host/exchange.h"
#include "worker/comm/host/message.h"

namespace trainyard::comm {

/// The algorithms, once for every transport. Each call runs one operation to its end on the calling
/// thread; `signature` is what all members must have in common. Not thread-safe.
///
/// all_reduce, reduce_scatter: small buffers by direct exchange; otherwise order-independent
/// combinations (and two ranks) by a ring, sums and products of floating point by handing every
/// part to its owner, who combines ascending by rank; all_reduce then gathers by the ring.
/// all_gather: direct or ring. Where one member has all of the buffer (the baseline `mode:
/// DataParallel`) both are a star, whose centre receives or sends the buffer once per peer.
/// broadcast: binomial tree or pipelined chain. reduce: the root combines what all hand it, or a
/// pipelined chain that ends at the root, or (floating point) owners combine and hand it to the
/// root. scatter, gather, all_to_all: direct. barrier: dissemination (Hensgen, Finkel, Manber, "Two
/// algorithms for barrier synchronization", 1988). Rings and chains follow the ring order of the
/// group. Ring: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
/// workstations", 2009; its steps are one batch in which each send follows the receive before it
/// piece by piece.
class Collectives {
 public:
  /// `transport` may be null for a group of one.
  Collectives(std::shared_ptr<Group> group, std::shared_ptr<Transport> transport);

  Status all_reduce(const Signature& signature, std::span<std::byte> data);
  Status reduce_scatter(const Signature& signature, std::span<std::byte> data,
                        std::span<const int64_t> counts);
  Status all_gather(const Signature& signature, std::span<std::byte> data,
                    std::span<const int64_t> counts);
  Status broadcast(const Signature& signature, std::span<std::byte> data, int root);
  Status reduce(const Signature& signature, std::span<std::byte> data, int root);
  /// One part of a buffer for each member, in the buffer's order.
  struct Parts {
    std::byte* data = nullptr;
    std::vector<int64_t> counts;
  };
  /// `whole` is the root's; `own` this rank's part.
  Status scatter(const Signature& signature, const Parts& whole, std::span<std::byte> own,
                 int root);
  Status gather(const Signature& signature, std::span<std::byte> own, const Parts& whole, int root);
  Status all_to_all(const Signature& signature, const Parts& send, const Parts& receive);
  Status barrier(const Signature& signature);
  Status point_to_point(std::span<const PointToPoint> transfers, const Retreat& retreat);

  /// Of the newest operation begun.
  const Signature& signature() const { return signature_; }
  const Exchange& exchange() const { return exchange_; }

 private:
  /// A part of a buffer, in bytes.
  struct Share {
    int64_t offset = 0;
    int64_t bytes = 0;
  };

  using Shares = std::vector<Share>;

  /// The parts of a buffer; good until the next call, which uses the same memory again.
  const Shares& shares_of(std::span<const int64_t> counts, int64_t element_bytes);
  /// The same for parts as even as possible.
  const Shares& even_shares(int64_t count, int64_t element_bytes);
  static void fill(std::span<const int64_t> counts, int64_t element_bytes, Shares& shares);
  /// The share of the member at this place of the ring.
  const Share& share_at(const Shares& shares, int place) const;

  void begin(const Signature& signature);
  int add(Transfer::Kind kind, int peer, std::byte* data, int64_t bytes, uint32_t part,
          int after = -1);
  Status run(const Retreat& retreat = {});
  /// The neighbours in the ring.
  int next_member() const { return group_->identity().member_at(place_ + 1); }
  int previous_member() const { return group_->identity().member_at(place_ - 1); }

  Status direct_all_reduce(std::span<std::byte> data);
  Status direct_reduce_scatter(std::span<std::byte> data, const Shares& shares);
  int add_ring_reduce_scatter(std::span<std::byte> data, const Shares& shares);
  void add_ring_all_gather(std::span<std::byte> data, const Shares& shares, int after);
  Status star_reduce(std::span<std::byte> data, int owner);
  Status star_gather(std::span<std::byte> data, int owner);
  Status tree_broadcast(std::span<std::byte> data, int root);
  Status chain_broadcast(std::span<std::byte> data, int root);
  Status direct_reduce(std::span<std::byte> data, int root);
  Status chain_reduce(std::span<std::byte> data, int root);
  Status owner_reduce(std::span<std::byte> data, int root);
  bool uses_ring() const;
  std::byte* scratch(int64_t bytes);

  std::shared_ptr<Group> group_;
  Exchange exchange_;
  const int rank_;
  const int size_;
  const int place_;  ///< in the ring
  Signature signature_;
  std::vector<Transfer> batch_;
  Shares shares_;
  std::vector<const std::byte*> inputs_;
  std::unique_ptr<std::byte[]> scratch_;
  int64_t scratch_bytes_ = 0;
  std::vector<uint64_t> sent_;  ///< point-to-point messages so far, by member
  std::vector<uint64_t> received_;
};

}  // namespace trainyard::comm
