// Any bytes as what a stranger may send to a rank's port: what is accepted encodes to the same
// bytes.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "tests/fuzz/require.h"
#include "worker/comm/handshake.h"
#include "worker/comm/message.h"

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

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  check<comm::kHeaderBytes>(data, size, comm::decode_message);
  check<comm::kHelloBytes>(data, size, comm::decode_hello);
  check<comm::kWelcomeBytes>(data, size, comm::decode_welcome);
  return 0;
}
