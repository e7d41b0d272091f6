#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/error.h"
#include "worker/comm/communicator.h"
#include "worker/comm/exchange.h"
#include "worker/comm/message.h"

namespace trainyard::comm {

/// The algorithms, once for every transport. Each call runs one operation to its end on the calling
/// thread; `signature` is what all members must have in common. Not thread-safe.
///
/// all_reduce, reduce_scatter: small buffers by direct exchange; otherwise order-independent
/// combinations (and two ranks) by a ring, sums and products of floating point by handing every
/// part to its owner, who combines ascending by rank; all_reduce then gathers by the ring.
/// all_gather: direct or ring. broadcast: binomial tree or pipelined chain. barrier: dissemination
/// (Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", 1988).
/// Ring: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
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
  Status barrier(const Signature& signature);
  /// `sequences[i]` is the number of transfers[i] among those of its pair and direction.
  Status point_to_point(std::span<const PointToPoint> transfers,
                        std::span<const uint64_t> sequences);

  /// Of the newest operation begun.
  const Signature& signature() const { return signature_; }
  const Exchange& exchange() const { return exchange_; }

 private:
  /// A part of a buffer, in bytes.
  struct Chunk {
    int64_t offset = 0;
    int64_t bytes = 0;
  };

  static std::vector<Chunk> chunks_of(std::span<const int64_t> counts, int64_t element_bytes);
  const Chunk& chunk_at(const std::vector<Chunk>& chunks, int index) const;

  void begin(const Signature& signature);
  int add(Transfer::Kind kind, int peer, std::byte* data, int64_t bytes, uint32_t part,
          int after = -1);
  Status run();

  Status direct_all_reduce(std::span<std::byte> data);
  Status direct_reduce_scatter(std::span<std::byte> data, const std::vector<Chunk>& chunks);
  int add_ring_reduce_scatter(std::span<std::byte> data, const std::vector<Chunk>& chunks);
  void add_ring_all_gather(std::span<std::byte> data, const std::vector<Chunk>& chunks, int after);
  Status tree_broadcast(std::span<std::byte> data, int root);
  Status chain_broadcast(std::span<std::byte> data, int root);
  bool uses_ring() const;
  std::byte* scratch(int64_t bytes);

  std::shared_ptr<Group> group_;
  Exchange exchange_;
  const int rank_;
  const int size_;
  Signature signature_;
  std::vector<Transfer> batch_;
  std::vector<const std::byte*> inputs_;
  std::unique_ptr<std::byte[]> scratch_;
  int64_t scratch_bytes_ = 0;
};

}  // namespace trainyard::comm
