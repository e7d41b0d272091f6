#include "bench/comm/pattern.h"

#include <algorithm>
#include <cstring>

#include "worker/comm/host/half.h"

namespace trainyard::bench {
namespace {

using comm::ReduceOp;

/// Element i of a rank, before it becomes an element of a type.
int64_t value_of(int rank, int64_t i, ReduceOp reduce) {
  switch (reduce) {
    case ReduceOp::kProd:
      return rank == 0 ? 1 + i % 3 : 1;
    case ReduceOp::kLor:
      return (i + rank) % 5 == 0 ? 3 : 0;
    case ReduceOp::kSum:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return (i * 7 + int64_t{rank} * 3) % 5;
  }
  return 0;
}

int64_t combine(int64_t a, int64_t b, ReduceOp reduce) {
  switch (reduce) {
    case ReduceOp::kSum:
      return a + b;
    case ReduceOp::kProd:
      return a * b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kLor:
      return a != 0 || b != 0 ? 1 : 0;
  }
  return 0;
}

template <class T, class Value>
std::vector<std::byte> fill_as(int64_t count, const Value& value) {
  std::vector<std::byte> bytes(static_cast<size_t>(count) * sizeof(T));
  for (int64_t i = 0; i < count; ++i) {
    const T element = static_cast<T>(value(i));
    std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(T), &element, sizeof(T));
  }
  return bytes;
}

template <class Value>
std::vector<std::byte> fill(int64_t count, DType dtype, const Value& value) {
  switch (dtype) {
    case DType::kFloat32:
      return fill_as<float>(count, value);
    case DType::kFloat64:
      return fill_as<double>(count, value);
    case DType::kBFloat16:
      return fill_as<uint16_t>(
          count, [&](int64_t i) { return comm::float_to_bfloat16(static_cast<float>(value(i))); });
    case DType::kFloat16:
      return fill_as<uint16_t>(
          count, [&](int64_t i) { return comm::float_to_float16(static_cast<float>(value(i))); });
    case DType::kInt8:
    case DType::kUint8:
      return fill_as<uint8_t>(count, value);
    case DType::kUint16:
      return fill_as<uint16_t>(count, value);
    case DType::kInt32:
    case DType::kUint32:
      return fill_as<uint32_t>(count, value);
    case DType::kInt64:
      return fill_as<uint64_t>(count, value);
  }
  return {};
}

}  // namespace

std::vector<std::byte> pattern_of(int rank, int64_t count, DType dtype, ReduceOp reduce) {
  return fill(count, dtype, [&](int64_t i) { return value_of(rank, i, reduce); });
}

std::vector<std::byte> combined_pattern(int size, int64_t count, DType dtype, ReduceOp reduce) {
  return fill(count, dtype, [&](int64_t i) {
    int64_t value = value_of(0, i, reduce);
    for (int rank = 1; rank < size; ++rank)
      value = combine(value, value_of(rank, i, reduce), reduce);
    // Alone, a logical or still gives 0 or 1.
    return size == 1 && reduce == ReduceOp::kLor ? combine(value, value, reduce) : value;
  });
}

int64_t differing_elements(const std::byte* found, const std::byte* wanted, int64_t count,
                           DType dtype) {
  const auto bytes = static_cast<size_t>(size_of(dtype));
  if (count == 0 || std::memcmp(found, wanted, static_cast<size_t>(count) * bytes) == 0) return 0;
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(i) * bytes;
    if (std::memcmp(found + at, wanted + at, bytes) != 0) ++wrong;
  }
  return wrong;
}

}  // namespace trainyard::bench
