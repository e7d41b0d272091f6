#include "worker/comm/host/group_communicator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/random/philox.h"
#include "worker/comm/host/reduce.h"

namespace trainyard::comm {
namespace {

int64_t total_of(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

Result<std::unique_ptr<Communicator>> GroupCommunicator::make(GroupIdentity identity,
                                                              std::shared_ptr<Connector> connector,
                                                              std::shared_ptr<WaitBoard> board) {
  auto group = std::make_shared<Group>(std::move(identity), std::move(board));
  std::shared_ptr<Transport> transport;
  if (group->identity().size() > 1) {
    TRAINYARD_ASSIGN(transport, connector->connect(group));
  }
  return std::unique_ptr<Communicator>(
      new GroupCommunicator(std::move(group), std::move(connector), std::move(transport)));
}

GroupCommunicator::GroupCommunicator(std::shared_ptr<Group> group,
                                     std::shared_ptr<Connector> connector,
                                     std::shared_ptr<Transport> transport)
    : group_(std::move(group)),
      connector_(std::move(connector)),
      stream_(std::make_shared<Stream>(group_, std::move(transport))) {
  stream_->start();
}

GroupCommunicator::~GroupCommunicator() { stream_->shut_down(); }

WorkPtr GroupCommunicator::refuse(Operation op, const std::string& why) {
  group_->fail(Failure(Error{ErrorCode::kInvalidConfig, std::string(name_of(op)) + ": " + why}));
  return stream_->enqueue(op, 0, [](Collectives&, const auto&) -> Status { return {}; });
}

Signature GroupCommunicator::next(Operation op, DType dtype, ReduceOp reduce, int64_t count,
                                  uint64_t detail) {
  return {op, dtype, reduce, sequence_++, count, detail};
}

std::string GroupCommunicator::mismatch_of(std::span<const std::byte> data,
                                           std::span<const int64_t> counts, DType dtype) const {
  if (counts.size() != static_cast<size_t>(size())) {
    return std::to_string(counts.size()) + " counts, wanted one for each of " +
           std::to_string(size()) + " ranks";
  }
  if (std::any_of(counts.begin(), counts.end(), [](int64_t count) { return count < 0; })) {
    return "a negative count";
  }
  const int64_t bytes = total_of(counts) * size_of(dtype);
  if (bytes != static_cast<int64_t>(data.size())) {
    return "counts make " + std::to_string(bytes) + " bytes, the buffer has " +
           std::to_string(data.size());
  }
  return {};
}

std::string GroupCommunicator::bad_root(int root) const {
  if (root >= 0 && root < size()) return {};
  return "root " + std::to_string(root) + " is not a rank of 0.." + std::to_string(size() - 1);
}

std::string GroupCommunicator::bad_elements(std::span<const std::byte> data, DType dtype) const {
  const auto bytes = static_cast<int64_t>(data.size());
  if (bytes % size_of(dtype) == 0) return {};
  return "a buffer of " + std::to_string(bytes) + " bytes holds no whole number of " +
         std::string(name_of(dtype)) + " elements";
}

std::string GroupCommunicator::bad_parts(std::span<const std::byte> whole,
                                         std::span<const std::byte> own,
                                         std::span<const int64_t> counts, DType dtype,
                                         int root) const {
  if (auto why = bad_root(root); !why.empty()) return why;
  if (rank() == root) {
    if (auto why = mismatch_of(whole, counts, dtype); !why.empty()) return why;
  } else if (counts.size() != static_cast<size_t>(size())) {
    return std::to_string(counts.size()) + " counts, wanted one for each of " +
           std::to_string(size()) + " ranks";
  }
  const int64_t own_count = counts[static_cast<size_t>(rank())];
  const int64_t wanted = own_count * size_of(dtype);
  if (own_count < 0) return "a negative count";
  if (static_cast<int64_t>(own.size()) == wanted) return {};
  return "this rank's count makes " + std::to_string(wanted) + " bytes, its buffer has " +
         std::to_string(own.size());
}

WorkPtr GroupCommunicator::all_reduce(std::span<std::byte> data, DType dtype, ReduceOp op) {
  if (const auto why = bad_elements(data, dtype); !why.empty())
    return refuse(Operation::kAllReduce, why);
  const auto bytes = static_cast<int64_t>(data.size());
  const Signature signature = next(Operation::kAllReduce, dtype, op, bytes / size_of(dtype), 0);
  return stream_->enqueue(Operation::kAllReduce, data.size(),
                          [signature, data](Collectives& collectives, const auto&) {
                            return collectives.all_reduce(signature, data);
                          });
}

WorkPtr GroupCommunicator::reduce_scatter(std::span<std::byte> data,
                                          std::span<const int64_t> counts, DType dtype,
                                          ReduceOp op) {
  if (const auto why = mismatch_of(data, counts, dtype); !why.empty()) {
    return refuse(Operation::kReduceScatter, why);
  }
  const Signature signature =
      next(Operation::kReduceScatter, dtype, op, static_cast<int64_t>(data.size()) / size_of(dtype),
           hash_counts(counts));
  return stream_->enqueue(Operation::kReduceScatter, data.size(),
                          [signature, data, known = known_counts_.of(counts, signature.detail)](
                              Collectives& collectives, const auto&) {
                            return collectives.reduce_scatter(signature, data, *known);
                          });
}

WorkPtr GroupCommunicator::all_gather(std::span<std::byte> data, std::span<const int64_t> counts,
                                      DType dtype) {
  if (const auto why = mismatch_of(data, counts, dtype); !why.empty()) {
    return refuse(Operation::kAllGather, why);
  }
  const Signature signature =
      next(Operation::kAllGather, dtype, ReduceOp::kSum,
           static_cast<int64_t>(data.size()) / size_of(dtype), hash_counts(counts));
  return stream_->enqueue(Operation::kAllGather, data.size(),
                          [signature, data, known = known_counts_.of(counts, signature.detail)](
                              Collectives& collectives, const auto&) {
                            return collectives.all_gather(signature, data, *known);
                          });
}

WorkPtr GroupCommunicator::broadcast(std::span<std::byte> data, int root) {
  if (const auto why = bad_root(root); !why.empty()) return refuse(Operation::kBroadcast, why);
  const Signature signature = next(Operation::kBroadcast, DType::kUint8, ReduceOp::kSum,
                                   static_cast<int64_t>(data.size()), static_cast<uint64_t>(root));
  return stream_->enqueue(Operation::kBroadcast, data.size(),
                          [signature, data, root](Collectives& collectives, const auto&) {
                            return collectives.broadcast(signature, data, root);
                          });
}

WorkPtr GroupCommunicator::reduce(std::span<std::byte> data, DType dtype, ReduceOp op, int root) {
  std::string why = bad_root(root);
  if (why.empty()) why = bad_elements(data, dtype);
  if (!why.empty()) return refuse(Operation::kReduce, why);
  const auto count = static_cast<int64_t>(data.size()) / size_of(dtype);
  const Signature signature =
      next(Operation::kReduce, dtype, op, count, static_cast<uint64_t>(root));
  return stream_->enqueue(Operation::kReduce, data.size(),
                          [signature, data, root](Collectives& collectives, const auto&) {
                            return collectives.reduce(signature, data, root);
                          });
}

WorkPtr GroupCommunicator::scatter(std::span<const std::byte> send, std::span<std::byte> receive,
                                   std::span<const int64_t> counts, DType dtype, int root) {
  if (const auto why = bad_parts(send, receive, counts, dtype, root); !why.empty()) {
    return refuse(Operation::kScatter, why);
  }
  const Signature signature = next(Operation::kScatter, dtype, ReduceOp::kSum, total_of(counts),
                                   root_and_counts(root, counts));
  // Only read: what sends a transfer's data does not write it.
  Collectives::Parts whole{const_cast<std::byte*>(send.data()), {counts.begin(), counts.end()}};
  return stream_->enqueue(
      Operation::kScatter, std::max(send.size(), receive.size()),
      [signature, whole = std::move(whole), receive, root](Collectives& collectives, const auto&) {
        return collectives.scatter(signature, whole, receive, root);
      });
}

WorkPtr GroupCommunicator::gather(std::span<const std::byte> send, std::span<std::byte> receive,
                                  std::span<const int64_t> counts, DType dtype, int root) {
  if (const auto why = bad_parts(receive, send, counts, dtype, root); !why.empty()) {
    return refuse(Operation::kGather, why);
  }
  const Signature signature = next(Operation::kGather, dtype, ReduceOp::kSum, total_of(counts),
                                   root_and_counts(root, counts));
  const std::span<std::byte> own(const_cast<std::byte*>(send.data()), send.size());
  Collectives::Parts whole{receive.data(), {counts.begin(), counts.end()}};
  return stream_->enqueue(
      Operation::kGather, std::max(send.size(), receive.size()),
      [signature, own, whole = std::move(whole), root](Collectives& collectives, const auto&) {
        return collectives.gather(signature, own, whole, root);
      });
}

WorkPtr GroupCommunicator::all_to_all(std::span<const std::byte> send,
                                      std::span<const int64_t> send_counts,
                                      std::span<std::byte> receive,
                                      std::span<const int64_t> receive_counts, DType dtype) {
  const auto own = static_cast<size_t>(rank());
  std::string why = mismatch_of(send, send_counts, dtype);
  if (!why.empty()) why = "send: " + why;
  if (why.empty()) {
    why = mismatch_of(receive, receive_counts, dtype);
    if (!why.empty()) why = "receive: " + why;
  }
  if (why.empty() && send_counts[own] != receive_counts[own]) {
    why = "this rank sends itself " + std::to_string(send_counts[own]) + " elements and awaits " +
          std::to_string(receive_counts[own]);
  }
  if (!why.empty()) return refuse(Operation::kAllToAll, why);
  // Counts differ from rank to rank: each message carries its own pair's.
  const Signature signature = next(Operation::kAllToAll, dtype, ReduceOp::kSum, 0, 0);
  Collectives::Parts out{const_cast<std::byte*>(send.data()),
                         {send_counts.begin(), send_counts.end()}};
  Collectives::Parts in{receive.data(), {receive_counts.begin(), receive_counts.end()}};
  return stream_->enqueue(
      Operation::kAllToAll, std::max(send.size(), receive.size()),
      [signature, out = std::move(out), in = std::move(in)](Collectives& collectives, const auto&) {
        return collectives.all_to_all(signature, out, in);
      });
}

WorkPtr GroupCommunicator::barrier() {
  const Signature signature = next(Operation::kBarrier, DType::kUint8, ReduceOp::kSum, 0, 0);
  return stream_->enqueue(Operation::kBarrier, 0,
                          [signature](Collectives& collectives, const auto&) {
                            return collectives.barrier(signature);
                          });
}

WorkPtr GroupCommunicator::batch_point_to_point(std::vector<PointToPoint> transfers,
                                                const PointToPointOptions& options) {
  size_t bytes = 0;
  for (const PointToPoint& transfer : transfers) {
    if (transfer.peer < 0 || transfer.peer >= size() || transfer.peer == rank()) {
      return refuse(Operation::kPointToPoint, "peer " + std::to_string(transfer.peer) +
                                                  " is not another rank of 0.." +
                                                  std::to_string(size() - 1));
    }
    bytes += transfer.data.size();
  }
  return stream_->enqueue(Operation::kPointToPoint, bytes,
                          [transfers = std::move(transfers), patience = options.patience](
                              Collectives& collectives, const std::atomic<bool>& cancelled) {
                            return collectives.point_to_point(transfers, {&cancelled, patience});
                          });
}

Result<std::unique_ptr<Communicator>> GroupCommunicator::sub_group(std::span<const int> ranks,
                                                                   Waits waits) {
  int before = -1;
  for (const int member : ranks) {
    if (member <= before || member >= size()) {
      return Error{ErrorCode::kInvalidConfig, "sub_group: rank " + std::to_string(member) +
                                                  " after " + std::to_string(before) +
                                                  ": wanted ascending ranks of 0.." +
                                                  std::to_string(size() - 1)};
    }
    before = member;
  }
  if (std::find(ranks.begin(), ranks.end(), rank()) == ranks.end()) {
    return Error{ErrorCode::kInvalidConfig, "sub_group: rank " + std::to_string(rank()) +
                                                " calls it but is not among its members"};
  }
  const GroupIdentity& parent = group_->identity();
  GroupIdentity identity = parent;
  identity.global_ranks.clear();
  for (const int member : ranks) {
    if (member == rank()) identity.member = identity.size();
    identity.global_ranks.push_back(parent.rank_of(member));
  }
  identity.ring.clear();
  if (!parent.ring.empty()) {
    for (const int member : parent.ring) {
      const auto found = std::find(ranks.begin(), ranks.end(), member);
      if (found != ranks.end()) {
        identity.ring.push_back(static_cast<int>(found - ranks.begin()));
      }
    }
  }
  if (group_->failed()) return group_->error();
  // All members count the same calls with the same members, so that they agree without a message.
  const uint64_t ordinal = sub_groups_[identity.global_ranks]++;
  uint64_t id = mix64(mix64(parent.id) ^ ordinal);
  for (const int member : identity.global_ranks)
    id = mix64(id ^ static_cast<uint64_t>(member));
  identity.id = id == 0 ? 1 : id;  // 0 is the world
  return make(std::move(identity), connector_,
              waits == Waits::kTogether ? group_->board() : nullptr);
}

void GroupCommunicator::abort(const Error& reason, std::span<const int> lost_ranks) {
  group_->fail(Failure(reason, {lost_ranks.begin(), lost_ranks.end()}));
}

std::vector<int> GroupCommunicator::lost_ranks() const {
  const auto failure = group_->failure();
  return failure ? failure->lost : std::vector<int>{};
}

}  // namespace trainyard::comm
