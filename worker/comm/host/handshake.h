#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "common/hash/hash.h"

/// The first bytes on every connection between ranks. docs/formats/data-plane.md is the definition.
namespace trainyard::comm {

inline constexpr uint32_t kHelloMagic = 0x48445954;      // "TYDH" read as bytes
inline constexpr uint32_t kWelcomeMagic = 0x57445954;    // "TYDW" read as bytes
inline constexpr uint32_t kChallengeMagic = 0x51445954;  // "TYDQ" read as bytes
inline constexpr uint32_t kProofMagic = 0x50445954;      // "TYDP" read as bytes
inline constexpr int64_t kHelloBytes = 72;
inline constexpr int64_t kWelcomeBytes = 32;
inline constexpr int64_t kChallengeBytes = 72;
inline constexpr int64_t kProofBytes = 40;
/// Of a handshake in a generation without a key, and of one in which both sides prove that they
/// have it.
inline constexpr uint16_t kOpenHandshake = 1;
inline constexpr uint16_t kKeyedHandshake = 2;

/// What a connection is for.
enum class ConnectionKind : uint8_t {
  kControl = 1,  ///< news beside the data: abort, goodbye, waiting; for shm also its set-up
  kData = 2,     ///< messages (message.h)
};
std::string_view name_of(ConnectionKind kind);

/// Why a connection is refused: all that goes over the wire. The values that differ stay with the
/// rank that refuses.
enum class Refusal : uint32_t {
  kNone = 0,
  kMalformed = 1,
  kVersion = 2,
  kProof = 3,
  kJob = 4,
  kGeneration = 5,
  kWorldSize = 6,
  kTarget = 7,
  kRing = 8,
  kOrder = 9,
  kTaken = 10,
  kFull = 11,
  kBuild = 12,
};
/// "it is of another generation" and so on; "for a reason that this build does not know".
std::string_view describe(Refusal refusal);

/// Sent by the side that connects.
struct Hello {
  uint16_t version = kOpenHandshake;
  ConnectionKind channel = ConnectionKind::kControl;
  Hash128 job{};  ///< XXH3-128 of the job uid
  int64_t generation = 0;
  uint64_t group = 0;
  uint32_t rank = 0;        ///< who connects (global rank)
  uint32_t target = 0;      ///< whom it believes to reach
  uint32_t world_size = 0;  ///< of the world, not of the group
  uint32_t build = 0;       ///< of a hash of the build ID; 0: not known
  uint64_t nonce = 0;       ///< random; the answer repeats it, and the proofs are over it
  uint64_t ring = 0;        ///< hash of the ring order (ring_order.h)
};

/// The answer to a keyed Hello: what the other side's proof is over, and this side's proof.
struct Challenge {
  Hash256 nonce{};
  Hash256 proof{};
};

/// The answer.
struct Welcome {
  uint16_t version = kOpenHandshake;
  Refusal refusal = Refusal::kNone;
  uint64_t nonce = 0;
  uint32_t rank = 0;  ///< who answers; 2^32 - 1 in a refusal
};

std::array<std::byte, kHelloBytes> encode(const Hello& hello);
std::array<std::byte, kWelcomeBytes> encode(const Welcome& welcome);
std::array<std::byte, kChallengeBytes> encode(const Challenge& challenge);
std::array<std::byte, kProofBytes> encode_proof(const Hash256& proof);

/// Errors: kPeerLost for other magic or reserved bytes, kConflict for a version that is not
/// `version`.
Result<Hello> decode_hello(std::span<const std::byte, kHelloBytes> wire, uint16_t version);
Result<Welcome> decode_welcome(std::span<const std::byte, kWelcomeBytes> wire, uint16_t version);
Result<Challenge> decode_challenge(std::span<const std::byte, kChallengeBytes> wire);
Result<Hash256> decode_proof(std::span<const std::byte, kProofBytes> wire);

/// Which side of a connection proves that it has the key; a proof of one is none of the other.
enum class Side : uint8_t { kConnects = 'c', kAnswers = 'a' };

/// HMAC-SHA-256 under the generation's key over the side, the Hello as sent and the challenge's
/// nonce.
Hash256 prove(std::span<const std::byte> key, Side side, const Hello& hello, const Hash256& nonce);

/// Who answers, to judge a Hello by.
struct HandshakeIdentity {
  Hash128 job{};
  int64_t generation = 0;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  uint64_t ring = 0;
  uint32_t build = 0;
  /// Secret of the generation; empty: whoever knows the values above may connect.
  std::vector<std::byte> key;

  uint16_t version() const { return key.empty() ? kOpenHandshake : kKeyedHandshake; }
};

/// A refusal and its reason for this side's error messages, with the values.
struct Judgement {
  Refusal refusal = Refusal::kNone;
  std::string why;
};

/// Whether `hello` may join.
Judgement judge(const Hello& hello, const HandshakeIdentity& identity);

}  // namespace trainyard::comm
