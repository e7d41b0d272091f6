#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace trainyard::comm {

/// Little-endian integers at fixed offsets.
template <class T>
void put_le(std::byte* at, T value) {
  static_assert(std::is_integral_v<T> && std::endian::native == std::endian::little);
  std::memcpy(at, &value, sizeof(T));
}

template <class T>
T get_le(const std::byte* at) {
  static_assert(std::is_integral_v<T> && std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

}  // namespace trainyard::comm
