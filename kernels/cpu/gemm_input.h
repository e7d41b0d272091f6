#pragma once

// What a product's operands are made of. A product works on 32-bit "words" along the summed
// dimension: one fp32 element, a pair of bf16 elements (k, k + 1), or one bf16 element widened to
// fp32. How the chain of an element of C runs is canonical (docs/concepts/canonical-numerics.md):
//
//  * fp32: acc = fma(a, b, acc) over ascending k;
//  * bf16: kSumWords words, which are 32 elements, at a time, acc = acc + (even + odd), where
//    `even` and `odd` are chains of fused multiply-adds from +0 over the elements of even and of
//    odd k; what the last words lack is padded with +0.
//
// The second is what the instruction TDPBF16PS computes. Where VDPBF16PS takes its place, packed
// operands hold the words "separated": two words (e0, o0), (e1, o1) lie there as (e1, e0),
// (o1, o0), because that instruction takes the high half of its words first. Where multiply-adds
// take its place, packed operands hold widened elements: widening them in the inner loop would
// take two operations for every three multiply-adds.

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE {

// Tiles of C. In registers, accumulators + B vectors + one broadcast must fit the register file
// (AVX-512: 8 * 3 + 3 + 1 of 32; AVX2: 6 * 2 + 2 + 1 of 16); AMX has eight registers of 16 by 16,
// four of which hold C.
#if TRAINYARD_CPU_ISA == TRAINYARD_ISA_AMX
constexpr int kTileRows = 32;
constexpr int kMaxVectors = 2;
#elif TRAINYARD_CPU_ISA >= TRAINYARD_ISA_AVX512
constexpr int kTileRows = 8;
constexpr int kMaxVectors = 3;
#elif TRAINYARD_CPU_ISA == TRAINYARD_ISA_AVX2
constexpr int kTileRows = 6;
constexpr int kMaxVectors = 1;
#else
constexpr int kTileRows = 4;
constexpr int kMaxVectors = 1;
#endif
constexpr int kTileColumns = kMaxVectors * kLanes;

/// fp32 operands: a word is one element.
struct Float32Input {
  using Element = float;
  static constexpr int kPerWord = 1;
  /// Packed chains are padded to a multiple of this.
  static constexpr int kWordStep = 1;
  /// Words whose end the chain's state can be read or split at.
  static constexpr int kSumWords = 1;
  /// Packed words are separated, two and two.
  static constexpr bool kSeparated = false;
  /// The rows of A can be read where they lie.
  static constexpr bool kReadsRows = true;

  /// 16 words from `count` (0..16) elements, zero beyond.
  __attribute__((always_inline)) static U32x16 load_words(const float* p, int count) {
    return as_bits(load_partial(p, count));
  }
  /// Words of 16 columns from the row at p, all there; there is no second row.
  __attribute__((always_inline)) static U32x16 load_full_rows(const float* p, const float*) {
    return as_bits(load(p));
  }
  /// The same for `count` columns.
  __attribute__((always_inline)) static U32x16 load_rows(const float* p, const float*, int count) {
    return as_bits(load_partial(p, count));
  }
  /// One step of a chain over packed words.
  __attribute__((always_inline)) static F32x16 multiply_add(U32x16 a, U32x16 b, F32x16 chain) {
    return fma(as_float(a), as_float(b), chain);
  }
};

#if TRAINYARD_CPU_ISA >= TRAINYARD_ISA_AVX512_BF16

/// bf16 operands: a word is the pair of elements k (low half) and k + 1.
struct BFloat16Input {
  using Element = uint16_t;
  static constexpr int kPerWord = 2;
  static constexpr int kSumWords = 16;
#if TRAINYARD_CPU_ISA == TRAINYARD_ISA_AMX
  static constexpr int kWordStep = kSumWords;
  static constexpr bool kSeparated = false;
#else
  static constexpr int kWordStep = 2;
  static constexpr bool kSeparated = true;
#endif
  static constexpr bool kReadsRows = false;

  __attribute__((always_inline)) static U32x16 load_words(const uint16_t* p, int count) {
    return load_pairs_partial(p, count);
  }
  __attribute__((always_inline)) static U32x16 load_full_rows(const uint16_t* p,
                                                              const uint16_t* next) {
    return load_u16(p) | shift_left(load_u16(next), 16);
  }
  /// Words of 16 columns from rows k and k + 1 (null: zeros).
  __attribute__((always_inline)) static U32x16 load_rows(const uint16_t* p, const uint16_t* next,
                                                         int count) {
    if (p == nullptr) return broadcast_u32(0);
    const U32x16 low = load_u16_partial(p, count);
    return next == nullptr ? low : low | shift_left(load_u16_partial(next, count), 16);
  }
  __attribute__((always_inline)) static U32x16 separate_neighbours(U32x16 words) {
    return kernels::TRAINYARD_ISA_NAMESPACE::separate_neighbours(words);
  }
  __attribute__((always_inline)) static F32x16 multiply_add(U32x16 a, U32x16 b, F32x16 chain) {
    return dot_bf16(a, b, chain);
  }
};

#else

/// bf16 operands: a word is one element, widened to fp32.
struct BFloat16Input {
  using Element = uint16_t;
  static constexpr int kPerWord = 1;
  static constexpr int kSumWords = 32;
  static constexpr int kWordStep = 2;
  static constexpr bool kSeparated = false;
  static constexpr bool kReadsRows = false;

  __attribute__((always_inline)) static U32x16 load_words(const uint16_t* p, int count) {
    return shift_left(load_u16_partial(p, count), 16);
  }
  __attribute__((always_inline)) static U32x16 load_full_rows(const uint16_t* p, const uint16_t*) {
    return shift_left(load_u16(p), 16);
  }
  /// Words of 16 columns from row k (null: zeros).
  __attribute__((always_inline)) static U32x16 load_rows(const uint16_t* p, const uint16_t*,
                                                         int count) {
    return p == nullptr ? broadcast_u32(0) : load_words(p, count);
  }
  __attribute__((always_inline)) static F32x16 multiply_add(U32x16 a, U32x16 b, F32x16 chain) {
    return fma(as_float(a), as_float(b), chain);
  }
};

#endif

/// Words that `elements` of a chain take when packed.
template <class Input>
constexpr int64_t words_of(int64_t elements) {
  const int64_t words = (elements + Input::kPerWord - 1) / Input::kPerWord;
  return (words + Input::kWordStep - 1) / Input::kWordStep * Input::kWordStep;
}

/// Two words of each lane, separated.
TRAINYARD_INLINE void separate(U32x16& first, U32x16& second) {
  const U32x16 high = broadcast_u32(0xFFFF0000U);
  const U32x16 even = shift_left(first, 16) | shift_right(shift_left(second, 16), 16);
  second = (first & high) | shift_right(second, 16);
  first = even;
}

/// Where the words of a row tile of A come from: row i, word w is at base + i * row_bytes +
/// w * word_bytes. AMX takes kSumWords words at once, which lie side by side there: word_bytes
/// then is what separates one such group from the next, divided by kSumWords.
struct TileA {
  const char* base;
  int64_t row_bytes;
  int64_t word_bytes;
};

/// A packed panel of B: word w of its columns is at data + w * stride.
struct PanelB {
  const uint32_t* data;
  int64_t stride;
};

}  // namespace trainyard::kernels::TRAINYARD_ISA_NAMESPACE
