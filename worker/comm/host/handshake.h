#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/base/error.h"
#include "common/hash/hash.h"

/// The first bytes on every connection between ranks. docs/formats/data-plane.md is the definition.
namespace trainyard::comm {

inline constexpr uint32_t kHelloMagic = 0x48445954;    // "TYDH" read as bytes
inline constexpr uint32_t kWelcomeMagic = 0x57445954;  // "TYDW" read as bytes
inline constexpr int64_t kHelloBytes = 72;
inline constexpr int64_t kWelcomeBytes = 32;
/// The reason in a refusal is cut there.
inline constexpr int64_t kRefusalTextBytesMax = 512;

/// What a connection is for.
enum class Channel : uint8_t {
  kControl = 1,  ///< news beside the data: abort, goodbye, waiting; for shm also its set-up
  kData = 2,     ///< messages (message.h)
};
std::string_view name_of(Channel channel);

/// Sent by the side that connects.
struct Hello {
  Channel channel = Channel::kControl;
  Hash128 job{};  ///< XXH3-128 of the job uid
  int64_t generation = 0;
  uint64_t group = 0;
  uint32_t rank = 0;        ///< who connects (global rank)
  uint32_t target = 0;      ///< whom it believes to reach
  uint32_t world_size = 0;  ///< of the world, not of the group
  uint64_t nonce = 0;       ///< random; the answer repeats it
  uint64_t ring = 0;        ///< hash of the ring order (ring_order.h)
};

/// The answer.
struct Welcome {
  bool accepted = false;
  uint64_t nonce = 0;
  uint32_t rank = 0;        ///< who answers
  uint32_t text_bytes = 0;  ///< of the reason that follows a refusal
};

std::array<std::byte, kHelloBytes> encode(const Hello& hello);
std::array<std::byte, kWelcomeBytes> encode(const Welcome& welcome);

/// Errors: kPeerLost for other magic or reserved bytes, kConflict for another version.
Result<Hello> decode_hello(std::span<const std::byte, kHelloBytes> wire);
/// Errors: as decode_hello; kPeerLost for a reason longer than the limit.
Result<Welcome> decode_welcome(std::span<const std::byte, kWelcomeBytes> wire);

/// Who answers, to judge a Hello by.
struct HandshakeIdentity {
  Hash128 job{};
  int64_t generation = 0;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  uint64_t ring = 0;
};

/// Success if `hello` may join. Errors: kConflict, naming what differs and both values.
Status judge(const Hello& hello, const HandshakeIdentity& identity);

}  // namespace trainyard::comm
