#include "worker/comm/host/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "common/base/check.h"
#include "worker/comm/host/half.h"

namespace trainyard::comm {
namespace {

/// Elements combined at a time in fp32: their accumulators stay in the first-level cache.
constexpr int64_t kBlock = 1024;

template <class Bits, Bits kExponent, Bits kQuietNan, Bits kOneBits>
struct FloatFormat {
  using Element = Bits;
  static constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  static constexpr Bits kMagnitude = static_cast<Bits>(~kSign);

  static bool is_nan(Bits a) { return static_cast<Bits>(a & kMagnitude) > kExponent; }
  /// Maps the order of the values onto the order of unsigned integers.
  static Bits key(Bits a) {
    return static_cast<Bits>((a & kSign) != 0 ? ~a : static_cast<Bits>(a | kSign));
  }
  static Bits min(Bits a, Bits b) {
    const Bits smaller = key(a) < key(b) ? a : b;
    return is_nan(a) || is_nan(b) ? kQuietNan : smaller;
  }
  static Bits max(Bits a, Bits b) {
    const Bits larger = key(a) < key(b) ? b : a;
    return is_nan(a) || is_nan(b) ? kQuietNan : larger;
  }
  static Bits lor(Bits a, Bits b) {
    return static_cast<Bits>((a | b) & kMagnitude) != 0 ? kOneBits : Bits{0};
  }
};

struct Float32 : FloatFormat<uint32_t, 0x7F800000U, 0x7FC00000U, 0x3F800000U> {
  using Wide = float;
  static Wide widen(uint32_t a) { return std::bit_cast<float>(a); }
  static uint32_t narrow(Wide a) { return std::bit_cast<uint32_t>(a); }
};
struct Float64
    : FloatFormat<uint64_t, 0x7FF0000000000000U, 0x7FF8000000000000U, 0x3FF0000000000000U> {
  using Wide = double;
  static Wide widen(uint64_t a) { return std::bit_cast<double>(a); }
  static uint64_t narrow(Wide a) { return std::bit_cast<uint64_t>(a); }
};
struct BFloat16 : FloatFormat<uint16_t, 0x7F80, 0x7FC0, 0x3F80> {
  using Wide = float;
  static Wide widen(uint16_t a) { return bfloat16_to_float(a); }
  static uint16_t narrow(Wide a) { return float_to_bfloat16(a); }
};
struct Float16 : FloatFormat<uint16_t, 0x7C00, 0x7E00, 0x3C00> {
  using Wide = float;
  static Wide widen(uint16_t a) { return float16_to_float(a); }
  static uint16_t narrow(Wide a) { return float_to_float16(a); }
};

template <class T>
struct Integer {
  using Element = T;
  // Arithmetic in an unsigned type of at least 32 bits: it wraps and is never promoted to int.
  using Wide = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  static Wide widen(T a) { return static_cast<Wide>(a); }
  static T narrow(Wide a) { return static_cast<T>(a); }
  static T min(T a, T b) { return b < a ? b : a; }
  static T max(T a, T b) { return a < b ? b : a; }
  static T lor(T a, T b) { return static_cast<T>((a | b) != 0 ? 1 : 0); }
};

template <class Format>
struct Sum {
  static constexpr bool kWide = true;
  static auto apply(typename Format::Wide a, typename Format::Wide b) { return a + b; }
};
template <class Format>
struct Prod {
  static constexpr bool kWide = true;
  static auto apply(typename Format::Wide a, typename Format::Wide b) { return a * b; }
};
template <class Format>
struct Min {
  static constexpr bool kWide = false;
  static auto apply(typename Format::Element a, typename Format::Element b) {
    return Format::min(a, b);
  }
};
template <class Format>
struct Max {
  static constexpr bool kWide = false;
  static auto apply(typename Format::Element a, typename Format::Element b) {
    return Format::max(a, b);
  }
};
template <class Format>
struct Lor {
  static constexpr bool kWide = false;
  static auto apply(typename Format::Element a, typename Format::Element b) {
    return Format::lor(a, b);
  }
};

template <class Format, class Operation>
void combine(std::byte* into_bytes, const std::byte* from_bytes, int64_t count) {
  using Element = typename Format::Element;
  auto* __restrict into = reinterpret_cast<Element*>(into_bytes);
  const auto* __restrict from = reinterpret_cast<const Element*>(from_bytes);
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (Operation::kWide) {
      into[i] = Format::narrow(Operation::apply(Format::widen(into[i]), Format::widen(from[i])));
    } else {
      into[i] = Operation::apply(into[i], from[i]);
    }
  }
}

template <class Format, class Operation>
void combine_all(std::byte* out_bytes, std::span<const std::byte* const> inputs, int64_t count) {
  using Element = typename Format::Element;
  using Accumulator =
      std::conditional_t<Operation::kWide, typename Format::Wide, typename Format::Element>;
  const auto load = [](Element a) -> Accumulator {
    if constexpr (Operation::kWide)
      return Format::widen(a);
    else
      return a;
  };
  Accumulator accumulator[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    const auto* first = reinterpret_cast<const Element*>(inputs[0]) + begin;
    for (int64_t i = 0; i < n; ++i)
      accumulator[i] = load(first[i]);
    for (size_t k = 1; k < inputs.size(); ++k) {
      const auto* next = reinterpret_cast<const Element*>(inputs[k]) + begin;
      for (int64_t i = 0; i < n; ++i) {
        accumulator[i] = Operation::apply(accumulator[i], load(next[i]));
      }
    }
    auto* out = reinterpret_cast<Element*>(out_bytes) + begin;
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (Operation::kWide)
        out[i] = Format::narrow(accumulator[i]);
      else
        out[i] = accumulator[i];
    }
  }
}

struct Functions {
  Combine one = nullptr;
  CombineAll all = nullptr;
};

template <class Format>
Functions functions_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return {combine<Format, Sum<Format>>, combine_all<Format, Sum<Format>>};
    case ReduceOp::kMin:
      return {combine<Format, Min<Format>>, combine_all<Format, Min<Format>>};
    case ReduceOp::kMax:
      return {combine<Format, Max<Format>>, combine_all<Format, Max<Format>>};
    case ReduceOp::kProd:
      return {combine<Format, Prod<Format>>, combine_all<Format, Prod<Format>>};
    case ReduceOp::kLor:
      return {combine<Format, Lor<Format>>, combine_all<Format, Lor<Format>>};
  }
  return {};
}

Functions functions_of(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kFloat32:
      return functions_of<Float32>(op);
    case DType::kBFloat16:
      return functions_of<BFloat16>(op);
    case DType::kFloat16:
      return functions_of<Float16>(op);
    case DType::kFloat64:
      return functions_of<Float64>(op);
    case DType::kInt8:
      return functions_of<Integer<int8_t>>(op);
    case DType::kUint8:
      return functions_of<Integer<uint8_t>>(op);
    case DType::kUint16:
      return functions_of<Integer<uint16_t>>(op);
    case DType::kInt32:
      return functions_of<Integer<int32_t>>(op);
    case DType::kUint32:
      return functions_of<Integer<uint32_t>>(op);
    case DType::kInt64:
      return functions_of<Integer<int64_t>>(op);
  }
  return {};
}

}  // namespace

Combine combine_of(DType dtype, ReduceOp op) {
  const Combine function = functions_of(dtype, op).one;
  TRAINYARD_CHECK(function != nullptr);
  return function;
}

CombineAll combine_all_of(DType dtype, ReduceOp op) {
  const CombineAll function = functions_of(dtype, op).all;
  TRAINYARD_CHECK(function != nullptr);
  return function;
}

bool order_matters(DType dtype, ReduceOp op) {
  const bool floating = dtype == DType::kFloat32 || dtype == DType::kBFloat16 ||
                        dtype == DType::kFloat16 || dtype == DType::kFloat64;
  return floating && (op == ReduceOp::kSum || op == ReduceOp::kProd);
}

#if defined(__SSE__)
// MXCSR: all exceptions masked, round to nearest, flush to zero (bit 15), denormals are zero (bit
// 6). Intel SDM volume 1, 10.2.3.
constexpr uint32_t kCanonicalMxcsr = 0x1F80U | 0x8000U | 0x0040U;
ScopedFloatMode::ScopedFloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(kCanonicalMxcsr); }
ScopedFloatMode::~ScopedFloatMode() { _mm_setcsr(saved_); }
#else
ScopedFloatMode::ScopedFloatMode() = default;
ScopedFloatMode::~ScopedFloatMode() = default;
#endif

}  // namespace trainyard::comm
