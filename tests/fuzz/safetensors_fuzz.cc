// Any bytes as a safetensors file: every tensor of an accepted header lies inside the file, in
// order, without overlap.
#include <cstddef>
#include <cstdint>
#include <span>

#include "tests/fuzz/require.h"
#include "worker/safetensors/safetensors.h"

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto header = trainyard::safetensors::parse_header(bytes, static_cast<int64_t>(size));
  if (!header) return 0;
  int64_t end = 0;
  for (const auto& entry : header->entries) {
    TRAINYARD_REQUIRE(entry.begin == end, "a hole or an overlap");
    TRAINYARD_REQUIRE(entry.end >= entry.begin, "a tensor that ends before it begins");
    for (const int64_t extent : entry.shape)
      TRAINYARD_REQUIRE(extent >= 0, "a negative extent");
    end = entry.end;
  }
  TRAINYARD_REQUIRE(header->data_offset + end == static_cast<int64_t>(size),
                    "the data does not end with the file");
  return 0;
}
