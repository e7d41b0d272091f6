// Any bytes as what a stranger says to the control port inside TLS: the verdict does not depend on
// how they are cut, and what passes is bounded as the gate promises.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "control/front/http2_gate.h"
#include "tests/fuzz/require.h"

namespace {

using trainyard::control::Http2Gate;

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string verdict(std::string_view bytes, size_t step) {
  Http2Gate gate;
  for (size_t at = 0; at < bytes.size(); at += step) {
    const std::string_view fault = gate.pass(bytes.substr(at, step));
    if (!fault.empty()) return std::string(fault);
  }
  return {};
}

/// Requests in what has passed, counted another way than the gate does.
int requests_of(std::string_view bytes) {
  int requests = 0;
  for (size_t at = kPreface.size(); at + 9 <= bytes.size();) {
    const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(bytes[i])); };
    if (byte(at + 3) == 1) ++requests;
    at += 9 + (byte(at) << 16 | byte(at + 1) << 8 | byte(at + 2));
  }
  return requests;
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The fuzzer finds frames, not the preface.
  const std::string bytes =
      std::string(kPreface) + std::string(reinterpret_cast<const char*>(data), size);
  const std::string whole = verdict(bytes, bytes.size());
  for (const size_t step : {size_t{1}, size_t{5}, size_t{13}})
    TRAINYARD_REQUIRE(verdict(bytes, step) == whole, "the cut changes the verdict");
  if (whole.empty()) TRAINYARD_REQUIRE(requests_of(bytes) <= 1, "a second request has passed");
  return 0;
}
