#include "tests/comm/worker/comm/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "common/random/philox.h"

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

namespace {

/// How a floating-point format splits its bits.
struct Fields {
  int bytes, mantissa_bits, exponent_bias;
};
Fields fields_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:  // the machine's own
      return {8, 0, 0};
    case DType::kFloat32:
      return {4, 0, 0};
    case DType::kBFloat16:
      return {2, 7, 127};
    case DType::kFloat16:
      return {2, 10, 15};
    default:
      return {0, 0, 0};
  }
}

/// A normal number or zero.
double decoded(const Fields& f, const std::byte* at) {
  uint64_t bits = 0;
  std::memcpy(&bits, at, static_cast<size_t>(f.bytes));
  if (f.bytes == 8) return std::bit_cast<double>(bits);
  if (f.bytes == 4) return std::bit_cast<float>(static_cast<uint32_t>(bits));
  const int sign_bit = 8 * f.bytes - 1;
  const double sign = (bits >> sign_bit & 1) != 0 ? -1 : 1;
  const uint64_t magnitude = bits & ((uint64_t{1} << sign_bit) - 1);
  if (magnitude == 0) return 0;
  const uint64_t mantissa = magnitude & ((uint64_t{1} << f.mantissa_bits) - 1);
  const auto exponent = static_cast<int>(magnitude >> f.mantissa_bits) - f.exponent_bias;
  return sign *
         std::ldexp(1 + std::ldexp(static_cast<double>(mantissa), -f.mantissa_bits), exponent);
}

/// Rounds to nearest even; what is too large becomes infinite. No result here is subnormal.
void encode(const Fields& f, double value, std::byte* at) {
  uint64_t bits = std::signbit(value) ? 1 : 0;
  bits <<= 8 * f.bytes - 1;
  if (f.bytes == 8) {
    bits = std::bit_cast<uint64_t>(value);
  } else if (f.bytes == 4) {
    bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  } else if (value != 0) {
    int exponent = 0;
    const double fraction = std::frexp(std::abs(value), &exponent);  // in [0.5, 1)
    // With the hidden bit; a carry moves on into the exponent.
    const double rounded = std::nearbyint(std::ldexp(fraction, f.mantissa_bits + 1));
    const uint64_t biased = static_cast<uint64_t>(exponent - 1 + f.exponent_bias);
    const uint64_t infinite = static_cast<uint64_t>(2 * f.exponent_bias + 1) << f.mantissa_bits;
    bits |= std::min(infinite, ((biased - 1) << f.mantissa_bits) + static_cast<uint64_t>(rounded));
  }
  std::memcpy(at, &bits, static_cast<size_t>(f.bytes));
}

/// Sums and products of 16 and 32 bits accumulate in fp32.
double combined(ReduceOp op, bool is_double, double a, double b) {
  switch (op) {
    case ReduceOp::kSum:
      return is_double ? a + b : static_cast<double>(static_cast<float>(a + b));
    case ReduceOp::kProd:
      return is_double ? a * b : static_cast<double>(static_cast<float>(a * b));
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kLor:
      return a != 0 || b != 0 ? 1 : 0;
  }
  return 0;
}

/// Of every integer type: it fits, and what wraps has the same low bits.
int64_t decoded(DType dtype, const std::byte* at) {
  uint64_t bits = 0;
  const auto size = static_cast<size_t>(size_of(dtype));
  std::memcpy(&bits, at, size);
  const bool is_signed = dtype == DType::kInt8 || dtype == DType::kInt32 || dtype == DType::kInt64;
  if (is_signed && size < 8 && (bits >> (8 * size - 1)) != 0) bits |= ~uint64_t{0} << (8 * size);
  return static_cast<int64_t>(bits);
}
int64_t combined(ReduceOp op, int64_t a, int64_t b) {
  switch (op) {
    case ReduceOp::kSum:
      return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    case ReduceOp::kProd:
      return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kLor:
      return a != 0 || b != 0 ? 1 : 0;
  }
  return 0;
}

}  // namespace

std::vector<std::byte> compute_reference(DType dtype, ReduceOp op, int64_t count, int size,
                                         uint64_t salt) {
  std::vector<std::vector<std::byte>> all;
  for (int rank = 0; rank < size; ++rank)
    all.push_back(contribution(dtype, count, rank, salt));
  if (size == 1 && op != ReduceOp::kLor) return all[0];
  if (size == 1) all.push_back(all[0]);  // kLor changes even one contribution
  std::vector<std::byte> out(all[0].size());
  const Fields fields = fields_of(dtype);
  const bool is_double = dtype == DType::kFloat64;
  for (size_t at = 0; at < out.size(); at += static_cast<size_t>(size_of(dtype))) {
    if (fields.bytes > 0) {
      double value = decoded(fields, all[0].data() + at);
      for (size_t rank = 1; rank < all.size(); ++rank)
        value = combined(op, is_double, value, decoded(fields, all[rank].data() + at));
      encode(fields, value, out.data() + at);
    } else {
      int64_t value = decoded(dtype, all[0].data() + at);
      for (size_t rank = 1; rank < all.size(); ++rank)
        value = combined(op, value, decoded(dtype, all[rank].data() + at));
      std::memcpy(out.data() + at, &value, static_cast<size_t>(size_of(dtype)));  // little-endian
    }
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
