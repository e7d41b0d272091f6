// Any bytes through the strict YAML and JSON readers: they stay within their limits, and what they
// accept is read back from its JSON form as the same tree.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/text/document.h"
#include "tests/fuzz/require.h"

namespace {

using trainyard::text::Document;
using trainyard::text::Kind;
using trainyard::text::Limits;
using trainyard::text::Node;

constexpr Limits kLimits = {.bytes = 1 << 16, .depth = 32, .nodes = 5000, .problems = 20};

int64_t count_nodes(const Node& node, int depth) {
  TRAINYARD_REQUIRE(depth <= kLimits.depth + 1, "a tree deeper than the limit");
  int64_t count = 1;
  for (const Node& item : node.items)
    count += count_nodes(item, depth + 1);
  for (const auto& member : node.members)
    count += count_nodes(member.value, depth + 1);
  return count;
}

int64_t text_bytes(const Node& node) {
  auto bytes = static_cast<int64_t>(node.string.size());
  for (const Node& item : node.items)
    bytes += text_bytes(item);
  for (const auto& member : node.members)
    bytes += static_cast<int64_t>(member.key.size()) + text_bytes(member.value);
  return bytes;
}

void check(const Document& document) {
  TRAINYARD_REQUIRE(static_cast<int64_t>(document.problems.size()) <= kLimits.problems,
                    "more problems than the limit");
  if (!document.complete) {
    TRAINYARD_REQUIRE(!document.problems.empty(), "an incomplete document must say why");
    return;
  }
  TRAINYARD_REQUIRE(count_nodes(document.root, 1) <= kLimits.nodes + 1,
                    "more nodes than the limit");
  TRAINYARD_REQUIRE(text_bytes(document.root) <= 5 * kLimits.bytes,
                    "more text than was read and its copies may have");
  if (!document.problems.empty()) return;
  const std::string json = to_json(document.root);
  const Document again = trainyard::text::parse_json(json);
  TRAINYARD_REQUIRE(again.complete && again.problems.empty(), json.c_str());
  TRAINYARD_REQUIRE(to_json(again.root) == json, "JSON changes on a round trip");
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(trainyard::text::parse_yaml(text, kLimits));
  check(trainyard::text::parse_json(text, kLimits));
  return 0;
}
