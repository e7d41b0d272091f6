#include "worker/comm/host/collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/layout/mesh.h"
#include "worker/comm/formulas.h"
#include "worker/comm/host/reduce.h"

namespace trainyard::comm {
namespace {

using Kind = Transfer::Kind;

/// What an owner takes from each peer at a time when it combines ascending by rank: with a few
/// peers the pieces stay in the second-level cache, and scratch memory stays bounded.
constexpr int64_t kSegmentBytes = 128 * 1024;
/// Buffers beyond what a core has of the caches are written past them where they are not read
/// again.
constexpr int64_t kPastCachesBytes = int64_t{16} << 20;

}  // namespace

Collectives::Collectives(std::shared_ptr<Group> group, std::shared_ptr<Transport> transport)
    : group_(group),
      exchange_(group, std::move(transport)),
      rank_(group->identity().member),
      size_(group->identity().size()),
      place_(group->identity().place_of(rank_)),
      sent_(static_cast<size_t>(size_), 0),
      received_(static_cast<size_t>(size_), 0) {}

void Collectives::fill(std::span<const int64_t> counts, int64_t element_bytes, Shares& shares) {
  shares.resize(counts.size());
  int64_t offset = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    shares[i] = {offset, counts[i] * element_bytes};
    offset += shares[i].bytes;
  }
}

const Collectives::Shares& Collectives::shares_of(std::span<const int64_t> counts,
                                                  int64_t element_bytes) {
  fill(counts, element_bytes, shares_);
  return shares_;
}

const Collectives::Shares& Collectives::even_shares(int64_t count, int64_t element_bytes) {
  shares_.resize(static_cast<size_t>(size_));
  for (int i = 0; i < size_; ++i) {
    const layout::Range share = layout::even_share(count, size_, i);
    shares_[static_cast<size_t>(i)] = {share.begin * element_bytes, share.size() * element_bytes};
  }
  return shares_;
}

const Collectives::Share& Collectives::share_at(const Shares& shares, int place) const {
  return shares[static_cast<size_t>(group_->identity().member_at(place))];
}

void Collectives::begin(const Signature& signature) {
  signature_ = signature;
  batch_.clear();
}

int Collectives::add(Kind kind, int peer, std::byte* data, int64_t bytes, uint32_t part,
                     int after) {
  const GroupIdentity& identity = group_->identity();
  Transfer transfer;
  transfer.kind = kind;
  transfer.peer = peer;
  transfer.data = data;
  transfer.bytes = bytes;
  transfer.after = after;
  if (kind == Kind::kReduce) {
    transfer.combine = combine_of(signature_.dtype, signature_.reduce);
    transfer.element_bytes = size_of(signature_.dtype);
  }
  const int source = kind == Kind::kSend ? rank_ : peer;
  transfer.header = encode({signature_, identity.generation, identity.id, source, part, bytes});
  batch_.push_back(transfer);
  return static_cast<int>(batch_.size()) - 1;
}

Status Collectives::run(const Retreat& retreat) {
  Status status = exchange_.run(batch_, signature_, retreat);
  batch_.clear();
  return status;
}

std::byte* Collectives::scratch(int64_t bytes) {
  if (bytes > scratch_bytes_) {
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

bool Collectives::uses_ring() const {
  // Of two operands the order does not matter: IEEE addition and multiplication commute.
  return size_ == 2 || !order_matters(signature_.dtype, signature_.reduce);
}

Status Collectives::all_reduce(const Signature& signature, std::span<std::byte> data) {
  begin(signature);
  if (size_ == 1) {
    if (signature.reduce == ReduceOp::kLor) {
      inputs_.assign(2, data.data());  // x or x: makes it 0 or 1
      combine_all_of(signature.dtype, signature.reduce)(data.data(), inputs_, signature.count);
    }
    return {};
  }
  const auto bytes = static_cast<int64_t>(data.size());
  if (bytes <= (size_ == 2 ? kDirectAllReduceBytesOfTwo : kDirectAllReduceBytes)) {
    return direct_all_reduce(data);
  }
  const Shares& shares = even_shares(signature.count, size_of(signature.dtype));
  int own_complete = -1;
  if (uses_ring()) {
    own_complete = add_ring_reduce_scatter(data, shares);
  } else {
    TRAINYARD_TRY(direct_reduce_scatter(data, shares));
  }
  add_ring_all_gather(data, shares, own_complete);
  return run();
}

Status Collectives::direct_all_reduce(std::span<std::byte> data) {
  const auto bytes = static_cast<int64_t>(data.size());
  std::byte* received = scratch(bytes * size_);
  inputs_.clear();
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) {
      inputs_.push_back(data.data());
      continue;
    }
    std::byte* into = received + bytes * peer;
    inputs_.push_back(into);
    add(Kind::kSend, peer, data.data(), bytes, 0);
    add(Kind::kReceive, peer, into, bytes, 0);
  }
  TRAINYARD_TRY(run());
  if (size_ == 2 && !order_matters(signature_.dtype, signature_.reduce)) {
    // One pass over memory; either order gives the same bits.
    combine_of(signature_.dtype, signature_.reduce)(data.data(), received + bytes * (1 - rank_),
                                                    signature_.count);
    return {};
  }
  combine_all_of(signature_.dtype, signature_.reduce)(data.data(), inputs_, signature_.count);
  return {};
}

Status Collectives::reduce_scatter(const Signature& signature, std::span<std::byte> data,
                                   std::span<const int64_t> counts) {
  if (size_ == 1) return all_reduce(signature, data);
  begin(signature);
  const Shares& shares = shares_of(counts, size_of(signature.dtype));
  if (static_cast<int64_t>(data.size()) <= kDirectReduceScatterBytes || !uses_ring()) {
    return direct_reduce_scatter(data, shares);
  }
  if (const int owner = sole_owner(counts); owner >= 0) return star_reduce(data, owner);
  add_ring_reduce_scatter(data, shares);
  return run();
}

Status Collectives::star_reduce(std::span<std::byte> data, int owner) {
  const auto bytes = static_cast<int64_t>(data.size());
  if (rank_ != owner) add(Kind::kSend, owner, data.data(), bytes, 0);
  for (int distance = 1; rank_ == owner && distance < size_; ++distance)
    add(Kind::kReduce, (rank_ + distance) % size_, data.data(), bytes, 0);
  return run();
}

Status Collectives::star_gather(std::span<std::byte> data, int owner) {
  const auto bytes = static_cast<int64_t>(data.size());
  if (rank_ != owner) add(Kind::kReceive, owner, data.data(), bytes, 0);
  for (int distance = 1; rank_ == owner && distance < size_; ++distance)
    add(Kind::kSend, (rank_ + distance) % size_, data.data(), bytes, 0);
  return run();
}

Status Collectives::direct_reduce_scatter(std::span<std::byte> data, const Shares& shares) {
  const Share own = shares[static_cast<size_t>(rank_)];
  const CombineAll combine_all = combine_all_of(signature_.dtype, signature_.reduce);
  std::byte* received = scratch(kSegmentBytes * size_);
  int64_t longest = 0;
  for (const Share& share : shares)
    longest = std::max(longest, share.bytes);
  uint32_t part = 0;
  // At least one round, so that signatures are compared even for empty buffers.
  for (int64_t offset = 0; offset == 0 || offset < longest; offset += kSegmentBytes, ++part) {
    const auto piece_of = [&](const Share& share) {
      return std::clamp<int64_t>(share.bytes - offset, 0, kSegmentBytes);
    };
    const int64_t own_piece = piece_of(own);
    inputs_.clear();
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) {
        inputs_.push_back(data.data() + own.offset + std::min(offset, own.bytes));
        continue;
      }
      const Share& theirs = shares[static_cast<size_t>(peer)];
      const int64_t piece = piece_of(theirs);
      if (piece > 0 || part == 0) {
        add(Kind::kSend, peer, data.data() + theirs.offset + std::min(offset, theirs.bytes), piece,
            part);
      }
      std::byte* into = received + kSegmentBytes * peer;
      inputs_.push_back(into);
      if (own_piece > 0 || part == 0) add(Kind::kReceive, peer, into, own_piece, part);
    }
    TRAINYARD_TRY(run());
    if (own_piece > 0) {
      combine_all(data.data() + own.offset + offset, inputs_,
                  own_piece / size_of(signature_.dtype));
    }
  }
  return {};
}

int Collectives::add_ring_reduce_scatter(std::span<std::byte> data, const Shares& shares) {
  int complete = -1;
  for (int step = 0; step < size_ - 1; ++step) {
    const Share& out = share_at(shares, place_ - 1 - step);
    const Share& in = share_at(shares, place_ - 2 - step);
    const auto part = static_cast<uint32_t>(step);
    add(Kind::kSend, next_member(), data.data() + out.offset, out.bytes, part, complete);
    complete = add(Kind::kReduce, previous_member(), data.data() + in.offset, in.bytes, part);
  }
  return complete;
}

void Collectives::add_ring_all_gather(std::span<std::byte> data, const Shares& shares, int after) {
  for (int step = 0; step < size_ - 1; ++step) {
    const Share& out = share_at(shares, place_ - step);
    const Share& in = share_at(shares, place_ - 1 - step);
    // Parts go on after those of the reduce-scatter before, so that a message is never taken for
    // one of the other half.
    const auto part = static_cast<uint32_t>(size_ + step);
    add(Kind::kSend, next_member(), data.data() + out.offset, out.bytes, part, after);
    after = add(Kind::kReceive, previous_member(), data.data() + in.offset, in.bytes, part);
  }
  batch_.back().past_caches = static_cast<int64_t>(data.size()) >= kPastCachesBytes;
}

Status Collectives::all_gather(const Signature& signature, std::span<std::byte> data,
                               std::span<const int64_t> counts) {
  begin(signature);
  if (size_ == 1) return {};
  const Shares& shares = shares_of(counts, size_of(signature.dtype));
  if (static_cast<int64_t>(data.size()) > kDirectAllGatherBytes) {
    if (const int owner = sole_owner(counts); owner >= 0) return star_gather(data, owner);
    add_ring_all_gather(data, shares, -1);
    return run();
  }
  const Share& own = shares[static_cast<size_t>(rank_)];
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Share& theirs = shares[static_cast<size_t>(peer)];
    add(Kind::kSend, peer, data.data() + own.offset, own.bytes, 0);
    add(Kind::kReceive, peer, data.data() + theirs.offset, theirs.bytes, 0);
  }
  return run();
}

}  // namespace trainyard::comm
