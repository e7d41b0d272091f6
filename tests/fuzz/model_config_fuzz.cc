// Any bytes as a Hugging Face config.json and as a data set's dataset.json: what is accepted is
// written so that it is read back equal.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/fuzz/require.h"
#include "worker/data/dataset_manifest.h"
#include "worker/hf/config.h"

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  namespace data = trainyard::data;
  namespace hf = trainyard::hf;
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  if (const auto parsed = hf::parse_config(text)) {
    const auto json = hf::make_config(parsed->spec, parsed->facts, std::nullopt);
    TRAINYARD_REQUIRE(json.has_value(), "accepted a family that cannot be written");
    const auto again = hf::parse_config(*json);
    TRAINYARD_REQUIRE(again.has_value(), json->c_str());
    TRAINYARD_REQUIRE(again->spec == parsed->spec, json->c_str());
    TRAINYARD_REQUIRE(again->facts == parsed->facts, json->c_str());
  }
  if (const auto manifest = data::decode_manifest(text)) {
    const std::string json = data::encode_manifest(*manifest);
    const auto again = data::decode_manifest(json);
    TRAINYARD_REQUIRE(again.has_value(), json.c_str());
    TRAINYARD_REQUIRE(*again == *manifest, json.c_str());
  }
  return 0;
}
