#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

/// Cuts a fuzzer's bytes into messages: an operation, a length of two bytes (little-endian, cut to
/// what is left), the bytes themselves.
class Frames {
 public:
  struct Frame {
    uint8_t operation = 0;
    std::span<const uint8_t> bytes;
  };

  explicit Frames(std::span<const uint8_t> data) : rest_(data) {}

  /// Nullopt at the end.
  std::optional<Frame> next() {
    if (rest_.size() < 3) return std::nullopt;
    const size_t stated = static_cast<size_t>(rest_[1]) | static_cast<size_t>(rest_[2]) << 8;
    const size_t length = std::min(stated, rest_.size() - 3);
    const Frame frame = {rest_[0], rest_.subspan(3, length)};
    rest_ = rest_.subspan(3 + length);
    return frame;
  }

 private:
  std::span<const uint8_t> rest_;
};
