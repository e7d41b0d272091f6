#pragma once

#include <cstdint>
#include <span>

/// Made by tools/oracle/make_unicode_tables.py; read through unicode.h and nfc.h.
namespace trainyard::data {

/// Runs of code points with the same value, in order: first << 8 | value. The value is the general
/// category (its place in unicode.cc) in bits 0 to 4, bit 5 for a word character, bit 6 for what
/// the Digits splitter takes for a number.
std::span<const uint32_t> category_runs();

/// Runs of code points with the same canonical combining class, in order: first << 8 | class.
std::span<const uint32_t> combining_runs();

/// Canonical decompositions in the order of their code points: bit 63 where the two compose again,
/// then code point, first and second, 21 bits each; second 0: none. Hangul is computed.
std::span<const uint64_t> decompositions();

}  // namespace trainyard::data
