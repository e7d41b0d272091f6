#include "worker/comm/group_communicator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/random/philox.h"
#include "worker/comm/reduce.h"

namespace trainyard::comm {

Result<std::unique_ptr<Communicator>> GroupCommunicator::make(
    GroupIdentity identity, std::shared_ptr<Connector> connector) {
  auto group = std::make_shared<Group>(std::move(identity));
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
      stream_(std::make_shared<Stream>(group_, std::move(transport))),
      sent_(static_cast<size_t>(group_->identity().size()), 0),
      received_(static_cast<size_t>(group_->identity().size()), 0) {
  stream_->start();
}

GroupCommunicator::~GroupCommunicator() { stream_->shut_down(); }

WorkPtr GroupCommunicator::refuse(const std::string& why) {
  group_->fail(Failure(Error{ErrorCode::kInvalidConfig, why}));
  return stream_->enqueue(0, [](Collectives&) -> Status { return {}; });
}

Signature GroupCommunicator::next(Op op, DType dtype, ReduceOp reduce, int64_t count,
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
  const int64_t bytes = std::accumulate(counts.begin(), counts.end(), int64_t{0}) * size_of(dtype);
  if (bytes != static_cast<int64_t>(data.size())) {
    return "counts make " + std::to_string(bytes) + " bytes, the buffer has " +
           std::to_string(data.size());
  }
  return {};
}

WorkPtr GroupCommunicator::all_reduce(std::span<std::byte> data, DType dtype, ReduceOp op) {
  const auto bytes = static_cast<int64_t>(data.size());
  if (bytes % size_of(dtype) != 0) {
    return refuse("all_reduce: a buffer of " + std::to_string(bytes) + " bytes holds no whole " +
                  "number of " + std::string(name_of(dtype)) + " elements");
  }
  const Signature signature = next(Op::kAllReduce, dtype, op, bytes / size_of(dtype), 0);
  return stream_->enqueue(data.size(), [signature, data](Collectives& collectives) {
    return collectives.all_reduce(signature, data);
  });
}

WorkPtr GroupCommunicator::reduce_scatter(std::span<std::byte> data,
                                          std::span<const int64_t> counts, DType dtype,
                                          ReduceOp op) {
  if (const auto why = mismatch_of(data, counts, dtype); !why.empty()) {
    return refuse("reduce_scatter: " + why);
  }
  const Signature signature =
      next(Op::kReduceScatter, dtype, op, static_cast<int64_t>(data.size()) / size_of(dtype),
           hash_counts(counts));
  return stream_->enqueue(
      data.size(), [signature, data, counts = std::vector<int64_t>(counts.begin(), counts.end())](
                       Collectives& collectives) {
        return collectives.reduce_scatter(signature, data, counts);
      });
}

WorkPtr GroupCommunicator::all_gather(std::span<std::byte> data, std::span<const int64_t> counts,
                                      DType dtype) {
  if (const auto why = mismatch_of(data, counts, dtype); !why.empty()) {
    return refuse("all_gather: " + why);
  }
  const Signature signature =
      next(Op::kAllGather, dtype, ReduceOp::kSum,
           static_cast<int64_t>(data.size()) / size_of(dtype), hash_counts(counts));
  return stream_->enqueue(
      data.size(),
      [signature, data, counts = std::vector<int64_t>(counts.begin(), counts.end())](
          Collectives& collectives) { return collectives.all_gather(signature, data, counts); });
}

WorkPtr GroupCommunicator::broadcast(std::span<std::byte> data, int root) {
  if (root < 0 || root >= size()) {
    return refuse("broadcast: root " + std::to_string(root) + " is no rank of 0.." +
                  std::to_string(size() - 1));
  }
  const Signature signature = next(Op::kBroadcast, DType::kUint8, ReduceOp::kSum,
                                   static_cast<int64_t>(data.size()), static_cast<uint64_t>(root));
  return stream_->enqueue(data.size(), [signature, data, root](Collectives& collectives) {
    return collectives.broadcast(signature, data, root);
  });
}

WorkPtr GroupCommunicator::barrier() {
  const Signature signature = next(Op::kBarrier, DType::kUint8, ReduceOp::kSum, 0, 0);
  return stream_->enqueue(
      0, [signature](Collectives& collectives) { return collectives.barrier(signature); });
}

WorkPtr GroupCommunicator::batch_point_to_point(std::vector<PointToPoint> transfers) {
  size_t bytes = 0;
  std::vector<uint64_t> sequences;
  sequences.reserve(transfers.size());
  for (const PointToPoint& transfer : transfers) {
    if (transfer.peer < 0 || transfer.peer >= size() || transfer.peer == rank()) {
      return refuse("batch_point_to_point: peer " + std::to_string(transfer.peer) +
                    " is not another rank of 0.." + std::to_string(size() - 1));
    }
    bytes += transfer.data.size();
    auto& counts = transfer.kind == PointToPoint::Kind::kSend ? sent_ : received_;
    sequences.push_back(counts[static_cast<size_t>(transfer.peer)]++);
  }
  return stream_->enqueue(bytes, [transfers = std::move(transfers),
                                  sequences = std::move(sequences)](Collectives& collectives) {
    return collectives.point_to_point(transfers, sequences);
  });
}

Result<std::unique_ptr<Communicator>> GroupCommunicator::sub_group(std::span<const int> ranks) {
  const GroupIdentity& parent = group_->identity();
  GroupIdentity identity = parent;
  identity.global_ranks.clear();
  identity.member = -1;
  int before = -1;
  for (const int member : ranks) {
    if (member <= before || member >= size()) {
      return Error{ErrorCode::kInvalidConfig, "sub_group: rank " + std::to_string(member) +
                                                  " after " + std::to_string(before) +
                                                  ": wanted ascending ranks of 0.." +
                                                  std::to_string(size() - 1)};
    }
    if (member == rank()) identity.member = static_cast<int>(identity.global_ranks.size());
    identity.global_ranks.push_back(parent.rank_of(member));
    before = member;
  }
  if (identity.member < 0) {
    return Error{ErrorCode::kInvalidConfig, "sub_group: rank " + std::to_string(rank()) +
                                                " calls it but is not among its members"};
  }
  if (group_->failed()) return group_->error();
  // All members count the same calls with the same members, so that they agree without a message.
  const uint64_t ordinal = sub_groups_[identity.global_ranks]++;
  uint64_t id = mix64(mix64(parent.id) ^ ordinal);
  for (const int member : identity.global_ranks)
    id = mix64(id ^ static_cast<uint64_t>(member));
  identity.id = id == 0 ? 1 : id;  // 0 is the world
  return make(std::move(identity), connector_);
}

void GroupCommunicator::abort(const Error& reason) { group_->fail(Failure(reason)); }

std::vector<int> GroupCommunicator::lost_ranks() const {
  const auto failure = group_->failure();
  return failure ? failure->lost : std::vector<int>{};
}

}  // namespace trainyard::comm
