// Any bytes as a checkpoint's JSON files, each sealed with the right checksum first so that the
// fields behind it are reached, and as what a rank reports of its shard: what is accepted encodes
// to the same again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/fuzz/require.h"
#include "worker/checkpoint/lineage.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/sealed_json.h"
#include "worker/checkpoint/shard.h"

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

/// What another rank says of the only shard of a checkpoint.
void check_report(std::string_view text) {
  constexpr int64_t kChunkBytes = 256;
  const auto report = checkpoint::decode_shard_report(text, 0, 1, kChunkBytes);
  if (!report) return;
  const auto again = checkpoint::decode_shard_report(encode(*report, 0, 1), 0, 1, kChunkBytes);
  TRAINYARD_REQUIRE(again && again->shard == report->shard && again->tensors == report->tensors,
                    "a shard report changes on a round trip");
  checkpoint::Manifest manifest;
  (void)checkpoint::merge_reports({*report}, &manifest);
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(text);
  check_report(text);
  const bool is_sealable = text.size() > 2 && text.starts_with('{') && text.ends_with('}');
  if (is_sealable) check(checkpoint::seal_json(std::string(text)));
  return 0;
}
