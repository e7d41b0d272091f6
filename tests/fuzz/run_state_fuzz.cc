// Any bytes as the files of a run directory that hold its state, status.json's object, pod.json and
// the exit in exit.json: what is accepted encodes to a text that decodes to the same again, and
// never names a process that a signal must not reach.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/api/decode.h"
#include "common/api/encode.h"
#include "control/exit_json.h"
#include "control/local/json_fault.h"
#include "control/local/pod_record.h"
#include "tests/fuzz/require.h"

namespace {

/// How a container ended, as its supervisor wrote it.
void check_exit(std::string_view text) {
  namespace control = trainyard::control;
  try {
    const auto exit = control::exit_from_json(control::local::parse_record(std::string(text)));
    const std::string line = control::to_line(exit, 64 << 10);
    const auto again = control::exit_from_json(control::local::parse_record(line));
    const bool whole = exit.message.size() <= control::kMaxExitMessageBytes;
    TRAINYARD_REQUIRE(!whole || control::to_json(again) == control::to_json(exit), line.c_str());
  } catch (const nlohmann::json::exception&) {
  }
}

}  // namespace

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
  check_exit(text);
  if (const auto record = local::decode_pod_record(text)) {
    TRAINYARD_REQUIRE(record->process.pid > 1, "a process id that names init or a group");
    const std::string json = local::encode_pod_record(*record);
    const auto again = local::decode_pod_record(json);
    TRAINYARD_REQUIRE(again.has_value(), json.c_str());
    TRAINYARD_REQUIRE(local::encode_pod_record(*again) == json, json.c_str());
  }
  return 0;
}
