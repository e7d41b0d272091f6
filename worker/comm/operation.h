#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace trainyard::comm {

/// What ranks do together, as it stands on the wire (docs/formats/data-plane.md).
enum class Operation : uint8_t {
  kAllReduce = 1,
  kReduceScatter = 2,
  kAllGather = 3,
  kBroadcast = 4,
  kBarrier = 5,
  kPointToPoint = 6,
  kReduce = 7,
  kScatter = 8,
  kGather = 9,
  kAllToAll = 10,
};
inline constexpr std::array kOperations = {
    Operation::kAllReduce, Operation::kReduceScatter, Operation::kAllGather, Operation::kBroadcast,
    Operation::kBarrier,   Operation::kPointToPoint,  Operation::kReduce,    Operation::kScatter,
    Operation::kGather,    Operation::kAllToAll,
};

/// "all_reduce", "point_to_point" ...
std::string_view name_of(Operation op);

/// How elements are combined. kLor is logical or (non-zero is true; results are 0 or 1).
enum class ReduceOp : uint8_t { kSum, kMin, kMax, kProd, kLor };

/// "sum", "min", "max", "prod", "lor".
std::string_view name_of(ReduceOp op);

/// What the operations of one kind have cost since the communicator was made. Bytes are payload
/// only.
struct OperationCounters {
  int64_t operations = 0;  ///< finished, failed ones too
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  /// From when the stream took an operation up until it was done, the wait for slower peers
  /// included. Operations of one communicator never overlap, so that these add up; those of
  /// several may.
  std::chrono::nanoseconds time{0};
};

/// Bytes that crossed a communicator, payload only, since it was made. Shared memory counts the
/// logical payload that the same algorithm would put on a wire, so that transports compare.
struct Counters {
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t operations = 0;  ///< issued
  std::array<OperationCounters, kOperations.size()>
      by_operation{};  ///< by the place in kOperations

  const OperationCounters& of(Operation op) const {
    return by_operation[static_cast<size_t>(op) - 1];
  }
};

}  // namespace trainyard::comm
