#include "bench/comm/case.h"

#include <algorithm>
#include <sstream>

#include "worker/comm/formulas.h"

namespace trainyard::bench {

using comm::Operation;
using comm::ReduceOp;

std::string encode(const Case& one) {
  std::ostringstream line;
  line << comm::name_of(one.op) << ' ' << one.bytes << ' ' << name_of(one.dtype) << ' '
       << comm::name_of(one.reduce) << ' ' << one.warm_up << ' ' << one.iterations << ' '
       << (one.check ? 1 : 0);
  return line.str();
}

Result<Case> decode_case(const std::string& line) {
  std::istringstream in(line);
  std::string op;
  std::string dtype;
  std::string reduce;
  Case one;
  int check = 0;
  in >> op >> one.bytes >> dtype >> reduce >> one.warm_up >> one.iterations >> check;
  const auto known_op = op_from_name(op);
  const auto known_dtype = dtype_from_name(dtype);
  const auto known_reduce = reduce_from_name(reduce);
  if (!in || !known_op || !known_dtype || !known_reduce || one.bytes < 0 || one.iterations < 1) {
    return Error{ErrorCode::kInvalidData, "no case: '" + line + "'"};
  }
  one.op = *known_op;
  one.dtype = *known_dtype;
  one.reduce = *known_reduce;
  one.check = check != 0;
  return one;
}

std::string encode(const Sample& sample) {
  std::ostringstream line;
  line << "sample " << sample.p50_us << ' ' << sample.p99_us << ' ' << sample.bytes_sent << ' '
       << sample.bytes_expected << ' ' << sample.wrong;
  return line.str();
}

Result<Sample> decode_sample(const std::string& line) {
  std::istringstream in(line);
  std::string word;
  in >> word;
  if (word == "error") return Error{ErrorCode::kInternal, line.substr(6)};
  Sample sample;
  in >> sample.p50_us >> sample.p99_us >> sample.bytes_sent >> sample.bytes_expected >>
      sample.wrong;
  if (in && word == "sample") return sample;
  return Error{ErrorCode::kInvalidData, "no sample: '" + line + "'"};
}

std::optional<Operation> op_from_name(std::string_view name) {
  const auto found = std::find_if(comm::kOperations.begin(), comm::kOperations.end(),
                                  [&](Operation op) { return comm::name_of(op) == name; });
  return found == comm::kOperations.end() ? std::nullopt : std::optional(*found);
}

std::optional<ReduceOp> reduce_from_name(std::string_view name) {
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProd, ReduceOp::kLor}) {
    if (comm::name_of(op) == name) return op;
  }
  return std::nullopt;
}

double bus_factor(Operation op, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (op) {
    case Operation::kAllReduce:
      return 2 * others;
    case Operation::kReduceScatter:
    case Operation::kAllGather:
    case Operation::kAllToAll:
    case Operation::kScatter:
    case Operation::kGather:
      return others;
    case Operation::kBroadcast:
    case Operation::kReduce:
    case Operation::kPointToPoint:
    case Operation::kBarrier:
      return 1;
  }
  return 1;
}

bool needs_barrier(Operation op) {
  return op == Operation::kBroadcast || op == Operation::kReduce || op == Operation::kScatter ||
         op == Operation::kGather;
}

int64_t expected_bytes(const Case& one, int size, int rank, const std::vector<int>& ring) {
  const auto counts = comm::even_counts(one.count(), size);
  const int64_t bytes = one.count() * size_of(one.dtype);
  switch (one.op) {
    case Operation::kAllReduce:
      return comm::all_reduce_bytes_sent(size, rank, one.count(), one.dtype, ring);
    case Operation::kReduceScatter:
      return comm::reduce_scatter_bytes_sent(rank, counts, one.dtype);
    case Operation::kAllGather:
      return comm::all_gather_bytes_sent(rank, counts, one.dtype, ring);
    case Operation::kBroadcast:
      return comm::broadcast_bytes_sent(size, rank, 0, bytes, ring);
    case Operation::kBarrier:
      return 0;
    case Operation::kPointToPoint:
      return size > 1 ? bytes : 0;
    case Operation::kReduce:
      return comm::reduce_bytes_sent(size, rank, 0, one.count(), one.dtype, one.reduce);
    case Operation::kScatter:
      return comm::scatter_bytes_sent(rank, 0, counts, one.dtype);
    case Operation::kGather:
      return comm::gather_bytes_sent(rank, 0, counts, one.dtype);
    case Operation::kAllToAll:
      return comm::all_to_all_bytes_sent(rank, counts, one.dtype);
  }
  return 0;
}

}  // namespace trainyard::bench
