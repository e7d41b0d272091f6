#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace trainyard {

/// XXH3-128 in canonical (big-endian) byte order.
using Hash128 = std::array<uint8_t, 16>;
/// SHA-256.
using Hash256 = std::array<uint8_t, 32>;

/// XXH3-128 of one buffer.
Hash128 xxh3_128(std::span<const std::byte> data);

/// Lower-case hexadecimal.
std::string to_hex(std::span<const uint8_t> digest);

/// XXH3-128 of a stream of buffers; equal to xxh3_128 of their concatenation.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(const Xxh3Stream&) = delete;
  Xxh3Stream& operator=(const Xxh3Stream&) = delete;
  void update(std::span<const std::byte> data);
  Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// SHA-256 of a stream of buffers. `digest` may be called once.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(const Sha256Stream&) = delete;
  Sha256Stream& operator=(const Sha256Stream&) = delete;
  void update(std::span<const std::byte> data);
  Hash256 digest();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// HMAC-SHA-256 (RFC 2104) of `data` under `key`.
Hash256 hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data);

/// Whether two digests are equal, in a time that does not depend on where they differ.
bool equal_in_constant_time(std::span<const uint8_t> a, std::span<const uint8_t> b);

}  // namespace trainyard
