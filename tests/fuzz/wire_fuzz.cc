// Any bytes as what a stranger or a peer may send to a rank's port: what is accepted encodes to the
// same bytes.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "tests/fuzz/require.h"
#include "worker/comm/host/control_frame.h"
#include "worker/comm/host/handshake.h"
#include "worker/comm/host/message.h"

namespace {

namespace comm = trainyard::comm;

template <size_t kBytes, class Decode>
void check(const uint8_t* data, size_t size, Decode decode) {
  std::array<std::byte, kBytes> wire{};
  std::memcpy(wire.data(), data, std::min(size, wire.size()));
  const auto message = decode(std::span<const std::byte, kBytes>(wire));
  if (!message) return;
  TRAINYARD_REQUIRE(encode(*message) == wire, "a message changes on a round trip");
}

void check_proof(const uint8_t* data, size_t size) {
  std::array<std::byte, comm::kProofBytes> wire{};
  std::memcpy(wire.data(), data, std::min(size, wire.size()));
  const auto proof = comm::decode_proof(wire);
  if (proof) TRAINYARD_REQUIRE(comm::encode_proof(*proof) == wire, "a proof changes");
}

/// Long texts are cut when they are sent: what was accepted is accepted again, not the same.
void check_control(const uint8_t* data, size_t size) {
  const auto frame = comm::decode_control(std::as_bytes(std::span(data, size)));
  if (!frame) return;
  const auto again = comm::decode_control(encode(*frame));
  TRAINYARD_REQUIRE(again.has_value(), "a control frame is refused on a round trip");
  TRAINYARD_REQUIRE(again->kind == frame->kind && again->failure.lost == frame->failure.lost &&
                        again->waiting.ranks == frame->waiting.ranks,
                    "a control frame changes on a round trip");
}

/// Who is let in says all that this rank is.
void check_stranger(const uint8_t* data, size_t size) {
  std::array<std::byte, comm::kHelloBytes> wire{};
  std::memcpy(wire.data(), data, std::min(size, wire.size()));
  comm::HandshakeIdentity identity;
  identity.generation = 7;
  identity.rank = 1;
  identity.world_size = 4;
  identity.ring = 99;
  const auto hello = comm::decode_hello(wire, identity.version());
  if (!hello) return;
  const comm::Judgement judgement = comm::judge(*hello, identity);
  TRAINYARD_REQUIRE(judgement.why.empty() == (judgement.refusal == comm::Refusal::kNone),
                    "a refusal has a reason");
  if (judgement.refusal != comm::Refusal::kNone) return;
  TRAINYARD_REQUIRE(hello->generation == 7 && hello->target == 1 && hello->world_size == 4 &&
                        hello->ring == 99 && hello->build == 0 && hello->rank < 4 &&
                        hello->rank != 1,
                    "a stranger is let in");
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  check<comm::kHeaderBytes>(data, size, comm::decode_message);
  for (const uint16_t version : {comm::kOpenHandshake, comm::kKeyedHandshake}) {
    check<comm::kHelloBytes>(data, size, [=](std::span<const std::byte, comm::kHelloBytes> wire) {
      return comm::decode_hello(wire, version);
    });
    check<comm::kWelcomeBytes>(data, size,
                               [=](std::span<const std::byte, comm::kWelcomeBytes> wire) {
                                 return comm::decode_welcome(wire, version);
                               });
  }
  check<comm::kChallengeBytes>(data, size, comm::decode_challenge);
  check_proof(data, size);
  check_stranger(data, size);
  check_control(data, size);
  return 0;
}
