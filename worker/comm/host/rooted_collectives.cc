// Those with a root: broadcast, reduce, scatter, gather.

#include <cstring>

#include "worker/comm/formulas.h"
#include "worker/comm/host/collectives.h"
#include "worker/comm/host/reduce.h"

namespace trainyard::comm {
namespace {

using Kind = Transfer::Kind;

/// Parts of the hand-over to the root, after those of the reduce-scatter before it (whose part
/// numbers a share of 2^44 bytes in segments does not reach).
constexpr uint32_t kHandOverPart = 0xFFFF'FFFF;

/// Copies a rank's own part where it is not in its place already.
void keep_own(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, static_cast<size_t>(bytes));
}

}  // namespace

Status Collectives::broadcast(const Signature& signature, std::span<std::byte> data, int root) {
  begin(signature);
  if (size_ == 1) return {};
  if (static_cast<int64_t>(data.size()) <= kTreeBroadcastBytes) return tree_broadcast(data, root);
  return chain_broadcast(data, root);
}

Status Collectives::tree_broadcast(std::span<std::byte> data, int root) {
  const auto bytes = static_cast<int64_t>(data.size());
  const int place = (rank_ - root + size_) % size_;  // the root's place is 0
  const auto member_at = [&](int at) { return (at + root) % size_; };
  int from = -1;
  int step = 1;
  // The parent of a place is the place without its lowest bit.
  while (step < size_ && (place & step) == 0)
    step <<= 1;
  if (place != 0) {
    from = add(Kind::kReceive, member_at(place - step), data.data(), bytes, 0);
  }
  for (step >>= 1; step > 0; step >>= 1) {
    if (place + step < size_) {
      add(Kind::kSend, member_at(place + step), data.data(), bytes, 0, from);
    }
  }
  return run();
}

Status Collectives::chain_broadcast(std::span<std::byte> data, int root) {
  // One message a hop: each send follows what has been received piece by piece.
  const auto bytes = static_cast<int64_t>(data.size());
  int from = -1;
  if (rank_ != root) from = add(Kind::kReceive, previous_member(), data.data(), bytes, 0);
  if (next_member() != root) add(Kind::kSend, next_member(), data.data(), bytes, 0, from);
  return run();
}

Status Collectives::reduce(const Signature& signature, std::span<std::byte> data, int root) {
  if (size_ == 1) return all_reduce(signature, data);
  begin(signature);
  if (static_cast<int64_t>(data.size()) <= kDirectReduceBytes) return direct_reduce(data, root);
  return uses_ring() ? chain_reduce(data, root) : owner_reduce(data, root);
}

Status Collectives::direct_reduce(std::span<std::byte> data, int root) {
  const auto bytes = static_cast<int64_t>(data.size());
  if (rank_ != root) {
    add(Kind::kSend, root, data.data(), bytes, 0);
    return run();
  }
  std::byte* received = scratch(bytes * size_);
  inputs_.clear();
  for (int peer = 0; peer < size_; ++peer) {
    inputs_.push_back(peer == rank_ ? data.data() : received + bytes * peer);
    if (peer != rank_) add(Kind::kReceive, peer, received + bytes * peer, bytes, 0);
  }
  TRAINYARD_TRY(run());
  combine_all_of(signature_.dtype, signature_.reduce)(data.data(), inputs_, signature_.count);
  return {};
}

Status Collectives::chain_reduce(std::span<std::byte> data, int root) {
  const auto bytes = static_cast<int64_t>(data.size());
  int combined = -1;
  if (previous_member() != root) {
    combined = add(Kind::kReduce, previous_member(), data.data(), bytes, 0);
  }
  if (rank_ != root) add(Kind::kSend, next_member(), data.data(), bytes, 0, combined);
  return run();
}

Status Collectives::owner_reduce(std::span<std::byte> data, int root) {
  const Shares& shares = even_shares(signature_.count, size_of(signature_.dtype));
  TRAINYARD_TRY(direct_reduce_scatter(data, shares));
  for (int member = 0; member < size_; ++member) {
    const Share& share = shares[static_cast<size_t>(member)];
    if (member == root) continue;
    if (rank_ == member) {
      add(Kind::kSend, root, data.data() + share.offset, share.bytes, kHandOverPart);
    } else if (rank_ == root) {
      add(Kind::kReceive, member, data.data() + share.offset, share.bytes, kHandOverPart);
    }
  }
  return run();
}

Status Collectives::scatter(const Signature& signature, const Parts& whole,
                            std::span<std::byte> own, int root) {
  begin(signature);
  const Shares& shares = shares_of(whole.counts, size_of(signature.dtype));
  const auto own_bytes = static_cast<int64_t>(own.size());
  if (rank_ != root) {
    add(Kind::kReceive, root, own.data(), own_bytes, 0);
    return run();
  }
  keep_own(own.data(), whole.data + shares[static_cast<size_t>(root)].offset, own_bytes);
  for (int distance = 1; distance < size_; ++distance) {
    const int peer = (rank_ + distance) % size_;
    const Share& share = shares[static_cast<size_t>(peer)];
    add(Kind::kSend, peer, whole.data + share.offset, share.bytes, 0);
  }
  return run();
}

Status Collectives::gather(const Signature& signature, std::span<std::byte> own, const Parts& whole,
                           int root) {
  begin(signature);
  const Shares& shares = shares_of(whole.counts, size_of(signature.dtype));
  const auto own_bytes = static_cast<int64_t>(own.size());
  if (rank_ != root) {
    add(Kind::kSend, root, own.data(), own_bytes, 0);
    return run();
  }
  keep_own(whole.data + shares[static_cast<size_t>(root)].offset, own.data(), own_bytes);
  for (int distance = 1; distance < size_; ++distance) {
    const int peer = (rank_ + distance) % size_;
    const Share& share = shares[static_cast<size_t>(peer)];
    add(Kind::kReceive, peer, whole.data + share.offset, share.bytes, 0);
  }
  return run();
}

}  // namespace trainyard::comm
