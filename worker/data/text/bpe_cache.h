#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "common/random/philox.h"

namespace trainyard::data {

/// Remembers what short pieces of text were encoded to. Direct-mapped: a fixed 4 MiB of one cache
/// line per piece, the newer of two that meet stays. Not thread-safe.
class BpeCache {
 public:
  BpeCache() : lines_(kLines) {}

  /// Appends the ids of `piece` if they are remembered.
  bool append_found(std::string_view piece, std::vector<int32_t>& ids) const {
    if (piece.size() > kTextBytes) return false;
    const Key key = key_of(piece);
    const Line& line = lines_[place_of(key)];
    if (line.key != key) return false;
    ids.insert(ids.end(), line.ids.begin(), line.ids.begin() + line.count);
    return true;
  }

  /// Remembers the ids of a piece that is not empty; does nothing for a long one.
  void insert(std::string_view piece, std::span<const int32_t> ids) {
    if (piece.size() > kTextBytes || ids.size() > kIds) return;
    const Key key = key_of(piece);
    Line& line = lines_[place_of(key)];
    line.key = key;
    line.count = static_cast<uint32_t>(ids.size());
    std::copy(ids.begin(), ids.end(), line.ids.begin());
  }

 private:
  static constexpr size_t kLines = size_t{1} << 16;
  static constexpr size_t kTextBytes = 23;
  static constexpr size_t kIds = 9;

  // The text, zeros, and its length in the last byte: never all zeros, as an empty line's key is.
  using Key = std::array<uint64_t, 3>;
  struct Line {
    Key key = {};
    uint32_t count = 0;
    std::array<int32_t, kIds> ids = {};
  };
  static_assert(sizeof(Line) == 64);

  static Key key_of(std::string_view piece) {
    std::array<char, sizeof(Key)> bytes = {};
    std::memcpy(bytes.data(), piece.data(), piece.size());
    bytes.back() = static_cast<char>(piece.size());
    Key key;
    std::memcpy(key.data(), bytes.data(), sizeof key);
    return key;
  }
  static size_t place_of(const Key& key) {
    return mix64(key[0] ^ mix64(key[1] ^ mix64(key[2]))) & (kLines - 1);
  }

  std::vector<Line> lines_;
};

}  // namespace trainyard::data
