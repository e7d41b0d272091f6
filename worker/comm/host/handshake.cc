#include "worker/comm/host/handshake.h"

#include <algorithm>
#include <cstring>

#include "worker/comm/host/message.h"
#include "worker/comm/host/wire.h"

namespace trainyard::comm {
namespace {

Status check_start(const std::byte* at, uint32_t wanted_magic, uint16_t wanted_version,
                   const char* what) {
  if (const auto magic = get_le<uint32_t>(at); magic != wanted_magic) {
    return Error{ErrorCode::kPeerLost, std::string(what) + ": magic is " + std::to_string(magic) +
                                           ", wanted " + std::to_string(wanted_magic) +
                                           ": the other side is not a rank of a training job"};
  }
  if (const auto version = get_le<uint16_t>(at + 4); version != wanted_version) {
    const bool is_known = version == kOpenHandshake || version == kKeyedHandshake;
    return Error{ErrorCode::kConflict,
                 std::string(what) + ": version is " + std::to_string(version) + ", wanted " +
                     std::to_string(wanted_version) +
                     (is_known ? ": one of the two ranks has no key of the generation"
                               : ": run the same build on every rank")};
  }
  return {};
}

/// Of a challenge and a proof.
Status check_reserved(const std::byte* at, const char* what) {
  const auto reserved = get_le<uint16_t>(at + 6);
  if (reserved == 0) return {};
  return Error{ErrorCode::kPeerLost, std::string(what) + ": reserved bytes are " +
                                         std::to_string(reserved) + ", wanted 0"};
}

}  // namespace

std::string_view name_of(ConnectionKind kind) {
  return kind == ConnectionKind::kControl ? "control" : "data";
}

std::array<std::byte, kHelloBytes> encode(const Hello& hello) {
  std::array<std::byte, kHelloBytes> wire{};
  std::byte* at = wire.data();
  put_le<uint32_t>(at, kHelloMagic);
  put_le<uint16_t>(at + 4, hello.version);
  put_le<uint8_t>(at + 6, static_cast<uint8_t>(hello.channel));
  std::memcpy(at + 8, hello.job.data(), hello.job.size());
  put_le<int64_t>(at + 24, hello.generation);
  put_le<uint64_t>(at + 32, hello.group);
  put_le<uint32_t>(at + 40, hello.rank);
  put_le<uint32_t>(at + 44, hello.target);
  put_le<uint32_t>(at + 48, hello.world_size);
  put_le<uint32_t>(at + 52, hello.build);
  put_le<uint64_t>(at + 56, hello.nonce);
  put_le<uint64_t>(at + 64, hello.ring);
  return wire;
}

std::array<std::byte, kWelcomeBytes> encode(const Welcome& welcome) {
  std::array<std::byte, kWelcomeBytes> wire{};
  std::byte* at = wire.data();
  put_le<uint32_t>(at, kWelcomeMagic);
  put_le<uint16_t>(at + 4, welcome.version);
  put_le<uint8_t>(at + 6, welcome.refusal == Refusal::kNone ? 1 : 0);
  put_le<uint64_t>(at + 8, welcome.nonce);
  put_le<uint32_t>(at + 16, welcome.rank);
  put_le<uint32_t>(at + 20, static_cast<uint32_t>(welcome.refusal));
  return wire;
}

std::array<std::byte, kChallengeBytes> encode(const Challenge& challenge) {
  std::array<std::byte, kChallengeBytes> wire{};
  std::byte* at = wire.data();
  put_le<uint32_t>(at, kChallengeMagic);
  put_le<uint16_t>(at + 4, kKeyedHandshake);
  std::memcpy(at + 8, challenge.nonce.data(), challenge.nonce.size());
  std::memcpy(at + 40, challenge.proof.data(), challenge.proof.size());
  return wire;
}

std::array<std::byte, kProofBytes> encode_proof(const Hash256& proof) {
  std::array<std::byte, kProofBytes> wire{};
  put_le<uint32_t>(wire.data(), kProofMagic);
  put_le<uint16_t>(wire.data() + 4, kKeyedHandshake);
  std::memcpy(wire.data() + 8, proof.data(), proof.size());
  return wire;
}

Result<Hello> decode_hello(std::span<const std::byte, kHelloBytes> wire, uint16_t version) {
  const std::byte* at = wire.data();
  TRAINYARD_TRY(check_start(at, kHelloMagic, version, "handshake"));
  const auto channel = get_le<uint8_t>(at + 6);
  if (channel != static_cast<uint8_t>(ConnectionKind::kControl) &&
      channel != static_cast<uint8_t>(ConnectionKind::kData)) {
    return Error{ErrorCode::kPeerLost,
                 "handshake: channel " + std::to_string(channel) + " is not known"};
  }
  if (get_le<uint8_t>(at + 7) != 0)
    return Error{ErrorCode::kPeerLost, "handshake: a reserved byte is not zero"};
  Hello hello;
  hello.version = version;
  hello.channel = static_cast<ConnectionKind>(channel);
  std::memcpy(hello.job.data(), at + 8, hello.job.size());
  hello.generation = get_le<int64_t>(at + 24);
  hello.group = get_le<uint64_t>(at + 32);
  hello.rank = get_le<uint32_t>(at + 40);
  hello.target = get_le<uint32_t>(at + 44);
  hello.world_size = get_le<uint32_t>(at + 48);
  hello.build = get_le<uint32_t>(at + 52);
  hello.nonce = get_le<uint64_t>(at + 56);
  hello.ring = get_le<uint64_t>(at + 64);
  return hello;
}

Result<Welcome> decode_welcome(std::span<const std::byte, kWelcomeBytes> wire, uint16_t version) {
  const std::byte* at = wire.data();
  TRAINYARD_TRY(check_start(at, kWelcomeMagic, version, "answer to the handshake"));
  const auto verdict = get_le<uint8_t>(at + 6);
  const auto refusal = get_le<uint32_t>(at + 20);
  if (verdict > 1 || (verdict == 1) != (refusal == 0) || get_le<uint8_t>(at + 7) != 0 ||
      get_le<uint64_t>(at + 24) != 0) {
    return Error{ErrorCode::kPeerLost,
                 "answer to the handshake: verdict " + std::to_string(verdict) + ", reason " +
                     std::to_string(refusal) +
                     " or its reserved bytes are wrong, wanted 1 without a reason or 0 with one"};
  }
  Welcome welcome;
  welcome.version = version;
  welcome.refusal = static_cast<Refusal>(refusal);
  welcome.nonce = get_le<uint64_t>(at + 8);
  welcome.rank = get_le<uint32_t>(at + 16);
  return welcome;
}

Result<Challenge> decode_challenge(std::span<const std::byte, kChallengeBytes> wire) {
  TRAINYARD_TRY(check_start(wire.data(), kChallengeMagic, kKeyedHandshake, "challenge"));
  TRAINYARD_TRY(check_reserved(wire.data(), "challenge"));
  Challenge challenge;
  std::memcpy(challenge.nonce.data(), wire.data() + 8, challenge.nonce.size());
  std::memcpy(challenge.proof.data(), wire.data() + 40, challenge.proof.size());
  return challenge;
}

Result<Hash256> decode_proof(std::span<const std::byte, kProofBytes> wire) {
  TRAINYARD_TRY(check_start(wire.data(), kProofMagic, kKeyedHandshake, "proof"));
  TRAINYARD_TRY(check_reserved(wire.data(), "proof"));
  Hash256 proof;
  std::memcpy(proof.data(), wire.data() + 8, proof.size());
  return proof;
}

Hash256 prove(std::span<const std::byte> key, Side side, const Hello& hello, const Hash256& nonce) {
  std::vector<std::byte> text{static_cast<std::byte>(side)};
  const auto sent = encode(hello);
  text.insert(text.end(), sent.begin(), sent.end());
  const auto bytes = std::as_bytes(std::span(nonce));
  text.insert(text.end(), bytes.begin(), bytes.end());
  return hmac_sha256(key, text);
}

std::string_view describe(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone:
      break;
    case Refusal::kMalformed:
      return "it does not understand the handshake";
    case Refusal::kVersion:
      return "it runs another build, or has no key of the generation";
    case Refusal::kProof:
      return "it has another key of the generation";
    case Refusal::kJob:
      return "it is of another job";
    case Refusal::kGeneration:
      return "it is of another generation";
    case Refusal::kWorldSize:
      return "its world has another size";
    case Refusal::kTarget:
      return "it has another rank: addresses in the rank table are mixed up";
    case Refusal::kRing:
      return "it has another ring order: give every rank the same ringOrder";
    case Refusal::kOrder:
      return "only lower ranks connect to it";
    case Refusal::kTaken:
      return "it has this connection already";
    case Refusal::kFull:
      return "too many connections wait there";
    case Refusal::kBuild:
      return "it runs another build";
  }
  return "for a reason that this build does not know";
}

Judgement judge(const Hello& hello, const HandshakeIdentity& identity) {
  if (hello.job != identity.job) {
    return {Refusal::kJob, "it belongs to job hash " + to_hex(hello.job) + ", this is job hash " +
                               to_hex(identity.job)};
  }
  if (hello.generation != identity.generation) {
    return {Refusal::kGeneration, "it is of generation " + std::to_string(hello.generation) +
                                      ", this is generation " +
                                      std::to_string(identity.generation)};
  }
  if (hello.build != identity.build) {
    return {Refusal::kBuild, "its build has the hash " + std::to_string(hello.build) +
                                 ", this one's has " + std::to_string(identity.build) +
                                 ": run the same build on every rank"};
  }
  if (hello.world_size != identity.world_size) {
    return {Refusal::kWorldSize, "its world has " + std::to_string(hello.world_size) +
                                     " ranks, this one has " + std::to_string(identity.world_size)};
  }
  if (hello.target != identity.rank) {
    return {Refusal::kTarget, "it looks for rank " + std::to_string(hello.target) +
                                  ", this is rank " + std::to_string(identity.rank) +
                                  ": addresses in the rank table are mixed up"};
  }
  if (hello.ring != identity.ring) {
    return {Refusal::kRing, "its ring order has the hash " + std::to_string(hello.ring) +
                                ", this one's has " + std::to_string(identity.ring) +
                                ": give every rank the same ringOrder"};
  }
  // Lower ranks connect to higher ones, so that no pair ever connects twice.
  if (hello.rank >= identity.rank) {
    return {Refusal::kOrder, "only lower ranks connect to this one"};
  }
  return {};
}

}  // namespace trainyard::comm
