#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "common/base/dtype.h"
#include "tests/support/extent.h"
#include "worker/comm/operation.h"

/// What collectives must give, computed by one thread, with no code of the product.
namespace trainyard::comm::testing {

inline constexpr DType kAllDTypes[] = {
    DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64, DType::kInt8,
    DType::kUint8,   DType::kUint16,   DType::kInt32,   DType::kUint32,  DType::kInt64};
inline constexpr ReduceOp kAllReductions[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                              ReduceOp::kProd, ReduceOp::kLor};

/// Whether a test of every type and operation has these two. Under a sanitizer each type has one
/// operation and each operation two types: who touches what when depends on neither, and the values
/// are the same on every build.
inline bool is_combined(DType dtype, ReduceOp op) {
  return !testing_support::kSanitized || static_cast<int>(dtype) % 5 == static_cast<int>(op);
}

/// What rank `rank` contributes: random bits, made finite and of moderate size where floating point
/// (a rank's values differ by orders of magnitude, so that the order of a sum shows).
std::vector<std::byte> contribution(DType dtype, int64_t count, int rank, uint64_t salt);

/// All contributions of ranks 0..size-1 combined ascending by rank.
std::vector<std::byte> compute_reference(DType dtype, ReduceOp op, int64_t count, int size,
                                         uint64_t salt);

/// References of one world, computed by the first rank that asks. Thread-safe.
class References {
 public:
  std::vector<std::byte> get(DType dtype, ReduceOp op, int64_t count, int size, uint64_t salt);

 private:
  std::mutex mutex_;
  std::map<std::tuple<DType, ReduceOp, int64_t, uint64_t>, std::vector<std::byte>> entries_;
};

/// `size` random counts, some of them zero, that add up to `count`.
std::vector<int64_t> uneven_counts(int64_t count, int size, uint64_t salt);

/// [sum(counts[0..rank)), + counts[rank]) of `whole`, in bytes.
std::vector<std::byte> part_of(const std::vector<std::byte>& whole,
                               const std::vector<int64_t>& counts, int rank, DType dtype);

}  // namespace trainyard::comm::testing
