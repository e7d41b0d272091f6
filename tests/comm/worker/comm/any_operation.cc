#include "tests/comm/worker/comm/any_operation.h"

#include <span>

#include "worker/comm/formulas.h"

namespace trainyard::comm::testing {

AnyOperation::AnyOperation(Communicator& communicator, int64_t elements)
    : comm_(communicator),
      data_(static_cast<size_t>(elements), 1),
      other_(static_cast<size_t>(elements), 0),
      // Even, so that in all_to_all what ranks send is what their peers await.
      counts_(static_cast<size_t>(communicator.size()), elements / communicator.size()) {
  const auto whole = static_cast<size_t>(counts_[0] * communicator.size());
  data_.resize(whole);
  other_.resize(whole);
}

WorkPtr AnyOperation::start(Operation op) {
  const auto data = std::as_writable_bytes(std::span(data_));
  const auto other = std::as_writable_bytes(std::span(other_));
  const auto own = other.first(static_cast<size_t>(8 * counts_[0]));
  const int size = comm_.size();
  switch (op) {
    case Operation::kAllReduce:
      return comm_.all_reduce(data, DType::kInt64, ReduceOp::kMax);
    case Operation::kReduceScatter:
      return comm_.reduce_scatter(data, counts_, DType::kInt64, ReduceOp::kMax);
    case Operation::kAllGather:
      return comm_.all_gather(data, counts_, DType::kInt64);
    case Operation::kBroadcast:
      return comm_.broadcast(data, 0);
    case Operation::kReduce:
      return comm_.reduce(data, DType::kInt64, ReduceOp::kMax, 0);
    case Operation::kScatter:
      return comm_.scatter(data, own, counts_, DType::kInt64, 0);
    case Operation::kGather:
      return comm_.gather(own, data, counts_, DType::kInt64, 0);
    case Operation::kAllToAll:
      return comm_.all_to_all(data, counts_, other, counts_, DType::kInt64);
    case Operation::kPointToPoint:
      return comm_.batch_point_to_point(
          {{PointToPoint::Kind::kSend, (comm_.rank() + 1) % size, data},
           {PointToPoint::Kind::kReceive, (comm_.rank() + size - 1) % size, other}});
    case Operation::kBarrier:
      return comm_.barrier();
  }
  return comm_.barrier();
}

}  // namespace trainyard::comm::testing
