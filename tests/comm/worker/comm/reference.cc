#include "tests/comm/worker/comm/reference.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "common/random/philox.h"
#include "worker/comm/host/reduce.h"

namespace trainyard::comm::testing {

std::vector<std::byte> contribution(DType dtype, int64_t count, int rank, uint64_t salt) {
  std::vector<std::byte> data(static_cast<size_t>(count * size_of(dtype)));
  const int64_t step = dtype == DType::kUint8 ? 3 : 1;  // long byte buffers: mostly zeros will do
  for (int64_t i = 0; i < count; i += step) {
    const uint64_t random =
        mix64(salt ^ mix64(static_cast<uint64_t>(i) * 131 + static_cast<uint64_t>(rank)));
    std::byte* at = data.data() + i * size_of(dtype);
    const double sign = (random & 1) != 0 ? -1.0 : 1.0;
    const double real = sign * (1.0 + static_cast<double>((random >> 8) & 0xFFFF) / 65536.0) *
                        static_cast<double>(1 << ((random >> 2) & 7));
    switch (dtype) {
      case DType::kFloat32: {
        const auto value = std::bit_cast<uint32_t>(static_cast<float>(real));
        std::memcpy(at, &value, sizeof(value));
        break;
      }
      case DType::kFloat64:
        std::memcpy(at, &real, sizeof(real));
        break;
      case DType::kBFloat16:
      case DType::kFloat16: {
        // 1.x * 2^k with a small exponent, by its fields.
        const auto bits =
            static_cast<uint16_t>(((random & 1) << 15) |
                                  (dtype == DType::kBFloat16 ? (126 + ((random >> 2) & 3)) << 7
                                                             : (14 + ((random >> 2) & 3)) << 10) |
                                  ((random >> 8) & (dtype == DType::kBFloat16 ? 0x7F : 0x3FF)));
        std::memcpy(at, &bits, sizeof(bits));
        break;
      }
      default: {
        const uint64_t sparse = (random >> 60) < 6 ? 0 : random >> 3;  // zeros for kLor
        std::memcpy(at, &sparse, static_cast<size_t>(size_of(dtype)));
      }
    }
  }
  return data;
}

std::vector<std::byte> compute_reference(DType dtype, ReduceOp op, int64_t count, int size,
                                         uint64_t salt) {
  std::vector<std::vector<std::byte>> all;
  for (int rank = 0; rank < size; ++rank)
    all.push_back(contribution(dtype, count, rank, salt));
  std::vector<const std::byte*> inputs;
  for (const auto& one : all)
    inputs.push_back(one.data());
  if (size == 1) inputs.push_back(all[0].data());  // only kLor changes the one contribution
  std::vector<std::byte> out = all[0];
  if (size > 1 || op == ReduceOp::kLor) {
    const ScopedFloatMode mode;
    combine_all_of(dtype, op)(out.data(), inputs, count);
  }
  return out;
}

std::vector<std::byte> References::get(DType dtype, ReduceOp op, int64_t count, int size,
                                       uint64_t salt) {
  const std::lock_guard lock(mutex_);
  auto& entry = entries_[{dtype, op, count, salt}];
  if (entry.empty() && count > 0) entry = compute_reference(dtype, op, count, size, salt);
  return entry;
}

std::vector<int64_t> uneven_counts(int64_t count, int size, uint64_t salt) {
  std::vector<int64_t> cuts{0, count};
  for (int i = 1; i < size; ++i) {
    cuts.push_back(static_cast<int64_t>(mix64(salt + static_cast<uint64_t>(i)) %
                                        static_cast<uint64_t>(count + 1)));
  }
  std::sort(cuts.begin(), cuts.end());
  std::vector<int64_t> counts;
  for (int i = 0; i < size; ++i) {
    counts.push_back(cuts[static_cast<size_t>(i) + 1] - cuts[static_cast<size_t>(i)]);
  }
  return counts;
}

std::vector<std::byte> part_of(const std::vector<std::byte>& whole,
                               const std::vector<int64_t>& counts, int rank, DType dtype) {
  const int64_t begin =
      std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0}) * size_of(dtype);
  const int64_t bytes = counts[static_cast<size_t>(rank)] * size_of(dtype);
  return {whole.begin() + begin, whole.begin() + begin + bytes};
}

}  // namespace trainyard::comm::testing
