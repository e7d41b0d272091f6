// Any bytes as a checkpoint's JSON files, each sealed with the right checksum first so that the
// fields behind it are reached: what is accepted encodes to the same again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/fuzz/require.h"
#include "worker/checkpoint/lineage.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/sealed_json.h"

namespace {

namespace checkpoint = trainyard::checkpoint;

void check(std::string_view text) {
  if (const auto record = checkpoint::decode_lineage(text)) {
    const auto again = checkpoint::decode_lineage(encode(*record));
    TRAINYARD_REQUIRE(again && *again == *record, "a lineage record changes on a round trip");
  }
  if (const auto manifest = checkpoint::decode_manifest(text)) {
    const auto encoded = encode(*manifest);
    TRAINYARD_REQUIRE(encoded.has_value(), "an accepted manifest cannot be encoded");
    const auto again = checkpoint::decode_manifest(*encoded);
    TRAINYARD_REQUIRE(again.has_value(), encoded->c_str());
    TRAINYARD_REQUIRE(*again == *manifest, "a manifest changes on a round trip");
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(text);
  const bool is_sealable = text.size() > 2 && text.starts_with('{') && text.ends_with('}');
  if (is_sealable) check(checkpoint::seal_json(std::string(text)));
  return 0;
}
