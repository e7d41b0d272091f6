// Any line through the decoders of the agent-rank socket: what one accepts must encode to a line
// that it decodes to the same again.
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/worker_contract.h"
#include "tests/fuzz/require.h"

namespace {

template <class Decode>
void check(const std::string& line, Decode decode) {
  const auto message = decode(line);
  if (!message) return;
  const std::string encoded = encode(*message);
  const auto again = decode(encoded);
  TRAINYARD_REQUIRE(again.has_value(), encoded.c_str());
  TRAINYARD_REQUIRE(encode(*again) == encoded, "a message changes on a round trip");
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace contract = trainyard::contract;
  const std::string line(reinterpret_cast<const char*>(data), size);
  (void)contract::message_type(line);
  check(line, contract::decode_listening);
  check(line, contract::decode_start);
  check(line, contract::decode_peer_lost);
  check(line, contract::decode_failing);
  check(line, contract::decode_run_result);
  return 0;
}
