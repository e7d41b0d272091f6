#include "worker/comm/operation.h"

namespace trainyard::comm {

std::string_view name_of(Op op) {
  switch (op) {
    case Op::kAllReduce:
      return "all_reduce";
    case Op::kReduceScatter:
      return "reduce_scatter";
    case Op::kAllGather:
      return "all_gather";
    case Op::kBroadcast:
      return "broadcast";
    case Op::kBarrier:
      return "barrier";
    case Op::kPointToPoint:
      return "point_to_point";
    case Op::kReduce:
      return "reduce";
    case Op::kScatter:
      return "scatter";
    case Op::kGather:
      return "gather";
    case Op::kAllToAll:
      return "all_to_all";
  }
  return "?";
}

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kProd:
      return "prod";
    case ReduceOp::kLor:
      return "lor";
  }
  return "?";
}

}  // namespace trainyard::comm
