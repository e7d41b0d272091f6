#include "worker/comm/operation.h"

namespace trainyard::comm {

std::string_view name_of(Operation op) {
  switch (op) {
    case Operation::kAllReduce:
      return "all_reduce";
    case Operation::kReduceScatter:
      return "reduce_scatter";
    case Operation::kAllGather:
      return "all_gather";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kBarrier:
      return "barrier";
    case Operation::kPointToPoint:
      return "point_to_point";
    case Operation::kReduce:
      return "reduce";
    case Operation::kScatter:
      return "scatter";
    case Operation::kGather:
      return "gather";
    case Operation::kAllToAll:
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
