#include "worker/comm/host/handshake.h"

#include <algorithm>
#include <cstring>

#include "worker/comm/host/message.h"
#include "worker/comm/host/wire.h"

namespace trainyard::comm {
namespace {

Status check_start(const std::byte* at, uint32_t wanted_magic, const char* what) {
  if (const auto magic = get_le<uint32_t>(at); magic != wanted_magic) {
    return Error{ErrorCode::kPeerLost, std::string(what) + ": magic is " + std::to_string(magic) +
                                           ", wanted " + std::to_string(wanted_magic) +
                                           ": the other side is no rank of a training job"};
  }
  if (const auto version = get_le<uint16_t>(at + 4); version != kProtocolVersion) {
    return Error{ErrorCode::kConflict, std::string(what) + ": protocol version is " +
                                           std::to_string(version) + ", wanted " +
                                           std::to_string(kProtocolVersion) +
                                           ": run the same build on every rank"};
  }
  return {};
}

}  // namespace

std::string_view name_of(Channel channel) {
  return channel == Channel::kControl ? "control" : "data";
}

std::array<std::byte, kHelloBytes> encode(const Hello& hello) {
  std::array<std::byte, kHelloBytes> wire{};
  std::byte* at = wire.data();
  put_le<uint32_t>(at, kHelloMagic);
  put_le<uint16_t>(at + 4, kProtocolVersion);
  put_le<uint8_t>(at + 6, static_cast<uint8_t>(hello.channel));
  std::memcpy(at + 8, hello.job.data(), hello.job.size());
  put_le<int64_t>(at + 24, hello.generation);
  put_le<uint64_t>(at + 32, hello.group);
  put_le<uint32_t>(at + 40, hello.rank);
  put_le<uint32_t>(at + 44, hello.target);
  put_le<uint32_t>(at + 48, hello.world_size);
  put_le<uint64_t>(at + 56, hello.nonce);
  put_le<uint64_t>(at + 64, hello.ring);
  return wire;
}

std::array<std::byte, kWelcomeBytes> encode(const Welcome& welcome) {
  std::array<std::byte, kWelcomeBytes> wire{};
  std::byte* at = wire.data();
  put_le<uint32_t>(at, kWelcomeMagic);
  put_le<uint16_t>(at + 4, kProtocolVersion);
  put_le<uint8_t>(at + 6, welcome.accepted ? 1 : 0);
  put_le<uint64_t>(at + 8, welcome.nonce);
  put_le<uint32_t>(at + 16, welcome.rank);
  put_le<uint32_t>(at + 20, welcome.text_bytes);
  return wire;
}

Result<Hello> decode_hello(std::span<const std::byte, kHelloBytes> wire) {
  const std::byte* at = wire.data();
  TRAINYARD_TRY(check_start(at, kHelloMagic, "handshake"));
  const auto channel = get_le<uint8_t>(at + 6);
  if (channel != static_cast<uint8_t>(Channel::kControl) &&
      channel != static_cast<uint8_t>(Channel::kData)) {
    return Error{ErrorCode::kPeerLost,
                 "handshake: channel " + std::to_string(channel) + " is not known"};
  }
  const bool reserved = get_le<uint8_t>(at + 7) != 0 || get_le<uint32_t>(at + 52) != 0;
  if (reserved) return Error{ErrorCode::kPeerLost, "handshake: reserved bytes are not zero"};
  Hello hello;
  hello.channel = static_cast<Channel>(channel);
  std::memcpy(hello.job.data(), at + 8, hello.job.size());
  hello.generation = get_le<int64_t>(at + 24);
  hello.group = get_le<uint64_t>(at + 32);
  hello.rank = get_le<uint32_t>(at + 40);
  hello.target = get_le<uint32_t>(at + 44);
  hello.world_size = get_le<uint32_t>(at + 48);
  hello.nonce = get_le<uint64_t>(at + 56);
  hello.ring = get_le<uint64_t>(at + 64);
  return hello;
}

Result<Welcome> decode_welcome(std::span<const std::byte, kWelcomeBytes> wire) {
  const std::byte* at = wire.data();
  TRAINYARD_TRY(check_start(at, kWelcomeMagic, "answer to the handshake"));
  const auto verdict = get_le<uint8_t>(at + 6);
  if (verdict > 1 || get_le<uint8_t>(at + 7) != 0 || get_le<uint64_t>(at + 24) != 0) {
    return Error{ErrorCode::kPeerLost,
                 "answer to the handshake: verdict " + std::to_string(verdict) +
                     " or its reserved bytes are wrong, wanted 0 or 1 and zeros"};
  }
  Welcome welcome;
  welcome.accepted = verdict == 1;
  welcome.nonce = get_le<uint64_t>(at + 8);
  welcome.rank = get_le<uint32_t>(at + 16);
  welcome.text_bytes = get_le<uint32_t>(at + 20);
  if (welcome.text_bytes > kRefusalTextBytesMax) {
    return Error{ErrorCode::kPeerLost, "answer to the handshake: a reason of " +
                                           std::to_string(welcome.text_bytes) + " bytes, at most " +
                                           std::to_string(kRefusalTextBytesMax) + " are allowed"};
  }
  return welcome;
}

Status judge(const Hello& hello, const HandshakeIdentity& identity) {
  const auto refuse = [&](const std::string& why) {
    return Error{ErrorCode::kConflict, "rank " + std::to_string(identity.rank) +
                                           " refuses a connection from rank " +
                                           std::to_string(hello.rank) + ": " + why};
  };
  if (hello.job != identity.job) {
    return refuse("it belongs to job hash " + to_hex(hello.job) + ", this is job hash " +
                  to_hex(identity.job));
  }
  if (hello.generation != identity.generation) {
    return refuse("it is of generation " + std::to_string(hello.generation) +
                  ", this is generation " + std::to_string(identity.generation));
  }
  if (hello.world_size != identity.world_size) {
    return refuse("its world has " + std::to_string(hello.world_size) + " ranks, this one has " +
                  std::to_string(identity.world_size));
  }
  if (hello.target != identity.rank) {
    return refuse("it looks for rank " + std::to_string(hello.target) + ", this is rank " +
                  std::to_string(identity.rank) + ": addresses in the rank table are mixed up");
  }
  if (hello.ring != identity.ring) {
    return refuse("its ring order has the hash " + std::to_string(hello.ring) +
                  ", this one's has " + std::to_string(identity.ring) +
                  ": give every rank the same ringOrder");
  }
  // Lower ranks connect to higher ones, so that no pair ever connects twice.
  if (hello.rank >= identity.rank) {
    return refuse("only lower ranks connect to this one");
  }
  return {};
}

}  // namespace trainyard::comm
