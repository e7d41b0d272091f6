// Any bytes as the files of a run directory that hold its state, status.json's object and pod.json:
// what is accepted encodes to a text that decodes to the same again, and never names a process that
// a signal must not reach.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/api/decode.h"
#include "common/api/encode.h"
#include "control/local/pod_record.h"
#include "tests/fuzz/require.h"

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace api = trainyard::api;
  namespace local = trainyard::control::local;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto status = api::decode_status(text)) {
    const std::string json = api::encode_status(*status);
    const auto again = api::decode_status(json);
    TRAINYARD_REQUIRE(again.has_value(), json.c_str());
    TRAINYARD_REQUIRE(api::encode_status(*again) == json, json.c_str());
  }
  if (const auto record = local::decode_pod_record(text)) {
    TRAINYARD_REQUIRE(record->process.pid > 1, "a process id that names init or a group");
    const std::string json = local::encode_pod_record(*record);
    const auto again = local::decode_pod_record(json);
    TRAINYARD_REQUIRE(again.has_value(), json.c_str());
    TRAINYARD_REQUIRE(local::encode_pod_record(*again) == json, json.c_str());
  }
  return 0;
}
