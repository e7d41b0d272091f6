// Any bytes as a TrainingJob manifest: what is accepted without a fault encodes to JSON that
// decodes to an equal job, and to the same JSON again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/api/decode.h"
#include "common/api/encode.h"
#include "tests/fuzz/require.h"

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace api = trainyard::api;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)api::decode_status(text);
  (void)api::decode_checkpoint_policy(text);
  const api::CheckedJob checked = api::check_training_job(text);
  if (!checked.faults.empty()) return 0;
  const std::string json = api::encode_training_job(checked.job);
  const api::CheckedJob again = api::check_training_job(json);
  TRAINYARD_REQUIRE(again.faults.empty(), json.c_str());
  TRAINYARD_REQUIRE(api::encode_training_job(again.job) == json, json.c_str());
  return 0;
}
