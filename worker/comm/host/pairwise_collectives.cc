// Those in which pairs of ranks talk to each other: all_to_all, barrier, point-to-point.

#include <cstring>

#include "worker/comm/host/collectives.h"

namespace trainyard::comm {
namespace {

using Kind = Transfer::Kind;

}  // namespace

Status Collectives::all_to_all(const Signature& signature, const Parts& send,
                               const Parts& receive) {
  begin(signature);
  const int64_t element_bytes = size_of(signature.dtype);
  const Shares& out = shares_of(send.counts, element_bytes);
  Shares in;
  fill(receive.counts, element_bytes, in);
  const auto own = static_cast<size_t>(rank_);
  if (out[own].bytes > 0) {
    std::memcpy(receive.data + in[own].offset, send.data + out[own].offset,
                static_cast<size_t>(out[own].bytes));
  }
  // Everyone begins with another peer, so that no rank is everyone's first.
  for (int distance = 1; distance < size_; ++distance) {
    const auto to = static_cast<size_t>((rank_ + distance) % size_);
    const auto from = static_cast<size_t>((rank_ + size_ - distance) % size_);
    signature_.count = send.counts[to];
    add(Kind::kSend, static_cast<int>(to), send.data + out[to].offset, out[to].bytes, 0);
    signature_.count = receive.counts[from];
    add(Kind::kReceive, static_cast<int>(from), receive.data + in[from].offset, in[from].bytes, 0);
  }
  signature_.count = signature.count;
  return run();
}

Status Collectives::barrier(const Signature& signature) {
  // A round tells of all rounds before it, so it begins when they have been heard.
  begin(signature);
  uint32_t part = 0;
  for (int distance = 1; distance < size_; distance *= 2, ++part) {
    add(Kind::kSend, (rank_ + distance) % size_, nullptr, 0, part);
    add(Kind::kReceive, (rank_ + size_ - distance) % size_, nullptr, 0, part);
    TRAINYARD_TRY(run());
  }
  return {};
}

Status Collectives::point_to_point(std::span<const PointToPoint> transfers,
                                   const Retreat& retreat) {
  Signature signature;
  signature.op = Operation::kPointToPoint;
  begin(signature);
  // Numbers count what has been done: an operation that was taken back leaves no gap.
  auto sent = sent_;
  auto received = received_;
  for (const PointToPoint& transfer : transfers) {
    const auto bytes = static_cast<int64_t>(transfer.data.size());
    const bool sends = transfer.kind == PointToPoint::Kind::kSend;
    signature_.sequence = (sends ? sent : received)[static_cast<size_t>(transfer.peer)]++;
    signature_.count = bytes;
    add(sends ? Kind::kSend : Kind::kReceive, transfer.peer, transfer.data.data(), bytes, 0);
  }
  TRAINYARD_TRY(run(retreat));
  sent_ = std::move(sent);
  received_ = std::move(received);
  return {};
}

}  // namespace trainyard::comm
