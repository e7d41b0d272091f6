#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/error.h"
#include "worker/comm/operation.h"

/// One thing that `trainyard bench comm` measures, and the formulas it is judged by. Pure.
namespace trainyard::bench {

/// One operation on buffers of one size.
struct Case {
  comm::Operation op = comm::Operation::kAllReduce;
  /// S: the buffer of all_reduce, reduce and broadcast; all parts together of reduce_scatter,
  /// all_gather, scatter and gather; what one rank sends in all_to_all; the message of
  /// point_to_point, where every rank sends to the next and receives from the one before.
  int64_t bytes = 0;
  DType dtype = DType::kFloat32;
  comm::ReduceOp reduce = comm::ReduceOp::kSum;
  int warm_up = 0;
  int iterations = 1;
  bool check = false;  ///< also compare the result with a reference

  int64_t count() const { return bytes / size_of(dtype); }
};

/// One line, without its end; what members of a world are told.
std::string encode(const Case& one);
/// Errors: kInvalidData.
Result<Case> decode_case(const std::string& line);

/// What one rank measured. Times are those of its own clock.
struct Sample {
  double p50_us = 0;
  double p99_us = 0;
  int64_t bytes_sent = 0;      ///< payload of one operation
  int64_t bytes_expected = 0;  ///< by the formula
  int64_t wrong = 0;           ///< elements that differ from the reference
};
std::string encode(const Sample& sample);
/// Errors: kInternal with the words of a member that failed; kInvalidData.
Result<Sample> decode_sample(const std::string& line);

/// "all_reduce" ...; nullopt for what is none.
std::optional<comm::Operation> op_from_name(std::string_view name);
/// "sum" ...
std::optional<comm::ReduceOp> reduce_from_name(std::string_view name);

/// busbw / algbw: the bytes that must pass each rank's link, over S, so that a perfect algorithm
/// shows the speed of the link whatever the operation and the number of ranks P. As nccl-tests has
/// it: all_reduce 2(P-1)/P; reduce_scatter, all_gather, all_to_all, scatter, gather (P-1)/P;
/// broadcast, reduce, point_to_point 1. Source: NVIDIA nccl-tests, doc/PERFORMANCE.md.
double bus_factor(comm::Operation op, int ranks);

/// True where a rank may be done before the others have begun, so that iterations are kept apart by
/// a barrier that is not timed.
bool needs_barrier(comm::Operation op);

/// Payload bytes this rank sends in one operation (worker/comm/formulas.h).
int64_t expected_bytes(const Case& one, int size, int rank, const std::vector<int>& ring);

}  // namespace trainyard::bench
