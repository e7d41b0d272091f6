// Any bytes as the header of a token shard, with its own checksum set right so that the fields
// behind it are reached: what is accepted describes a file of exactly the size given and encodes to
// the same bytes.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "common/hash/hash.h"
#include "tests/fuzz/require.h"
#include "worker/data/token_format.h"

namespace {

constexpr size_t kHashOffset = 240;  // docs/formats/tokens.md

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace format = trainyard::data;
  // The first eight bytes are the file's size, the rest its header.
  int64_t file_bytes = 0;
  if (size < sizeof file_bytes) return 0;
  std::memcpy(&file_bytes, data, sizeof file_bytes);
  format::TokenHeaderBytes header{};
  std::memcpy(header.data(), data + sizeof file_bytes,
              std::min(size - sizeof file_bytes, header.size()));
  const auto hash = trainyard::xxh3_128(std::span(header).first(kHashOffset));
  std::memcpy(header.data() + kHashOffset, hash.data(), hash.size());

  const auto info = format::decode_header(header, file_bytes);
  if (!info) return 0;
  TRAINYARD_REQUIRE(format::layout_of(info->tokens, info->token_bytes).file_bytes == file_bytes,
                    "a size that the header does not state");
  TRAINYARD_REQUIRE(format::encode_header(*info) == header, "a header changes on a round trip");
  return 0;
}
