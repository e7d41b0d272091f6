#include "common/text/yaml_writer.h"

#include <string>

#include <gtest/gtest.h>

namespace trainyard::text {
namespace {

TEST(YamlWriterTest, WritesBlocks) {
  const Document document = parse_json(
      R"({"a": 1, "b": {"c": [true, null, 0.5], "d": {}}, "e": [], "f": [{"g": 1, "h": [2]}, [3, 4]]})");
  EXPECT_EQ(to_yaml(document.root),
            "a: 1\nb:\n  c:\n  - true\n  - null\n  - 0.5\n  d: {}\ne: []\nf:\n- g: 1\n  h:\n  - "
            "2\n- - 3\n"
            "  - 4\n");
}

TEST(YamlWriterTest, QuotesWhatAReaderCouldTakeForSomethingElse) {
  for (const char* text :
       {"",     "y",    "No",  "on", "null", "~",  "1",          "1e3", "0x1",  ".5",
        "a: b", "a #b", "- a", "*a", "&a",   "!a", "{",          "[",   "a\nb", "'",
        "\"",   "%",    "@",   " a", "a ",   "é",  "2026-01-01", "=",   "<<"}) {
    Node node;
    node.kind = Kind::kString;
    node.string = text;
    const std::string yaml = to_yaml(node);
    EXPECT_EQ(yaml[0], '"') << yaml;
    const Document read = parse_yaml(yaml);
    EXPECT_EQ(read.root.kind, Kind::kString) << yaml;
    EXPECT_EQ(read.root.string, text);
  }
}

TEST(YamlWriterTest, NumbersWithAnExponentHaveAPoint) {
  EXPECT_EQ(to_yaml(parse_json("[6e-4, 1.5e-7, 0.5, 1e300]").root),
            "- 6.0e-04\n- 1.5e-07\n- 0.5\n- 1.0e+300\n");
}

TEST(YamlWriterTest, WhatIsReadAgainIsTheSameTree) {
  const std::string json =
      R"({"x-kubernetes-list-type":"map","$ref":"#/a","on":{"off":"yes","k":["a","b: c",-7,6e-05]},)"
      R"("deep":[[{"a":{"b":[{}]}}]],"big":1000000000000})";
  EXPECT_EQ(to_json(parse_yaml(to_yaml(parse_json(json).root)).root), json);
}

}  // namespace
}  // namespace trainyard::text
