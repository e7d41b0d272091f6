#include "common/text/document.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace trainyard::text {
namespace {

const Node& value_of(const Document& document, std::string_view key) {
  static const Node kNone;
  const Node* node = document.root.find(key);
  EXPECT_NE(node, nullptr) << key;
  return node == nullptr ? kNone : *node;
}

Kind kind_of(const std::string& scalar) { return value_of(parse_yaml("a: " + scalar), "a").kind; }

TEST(YamlTest, PlainScalarsHaveOneMeaning) {
  for (const char* text : {"true", "True", "FALSE"})
    EXPECT_EQ(kind_of(text), Kind::kBool) << text;
  for (const char* text : {"0", "-7", "9223372036854775807", "-9223372036854775808"}) {
    EXPECT_EQ(kind_of(text), Kind::kInteger) << text;
  }
  for (const char* text : {"0.5", "6.0e-4", "1e3", "-1E+5"}) {
    EXPECT_EQ(kind_of(text), Kind::kNumber) << text;
  }
  for (const char* text : {"", "~", "null", "NULL"})
    EXPECT_EQ(kind_of(text), Kind::kNull) << text;
  for (const char* text : {"word", "1.2.3", "2026-01-02", "8080:80", "'yes'", "\"010\"", "1h",
                           "8Gi", "e5", "0b", "node-1", "yes it is"}) {
    EXPECT_EQ(kind_of(text), Kind::kString) << text;
  }
}

TEST(YamlTest, WhatReadersDisagreeAboutIsRefused) {
  for (const char* text : {"yes",
                           "No",
                           "ON",
                           "off",
                           "y",
                           "N",
                           "010",
                           "0777",
                           "-012",
                           "0o17",
                           "0x1F",
                           "0b101",
                           "1_000",
                           "+5",
                           ".5",
                           "5.",
                           "1:30",
                           "12:30:45",
                           ".inf",
                           "-.INF",
                           ".nan",
                           "1e999",
                           "99999999999999999999",
                           "-9223372036854775809"}) {
    const Document document = parse_yaml(std::string("a: ") + text);
    EXPECT_EQ(value_of(document, "a").kind, Kind::kRefused) << text;
    ASSERT_EQ(document.problems.size(), 1U) << text;
    EXPECT_EQ(document.problems[0].path, "a");
    EXPECT_EQ(document.problems[0].found, text);
    EXPECT_FALSE(document.problems[0].wanted.empty());
    EXPECT_TRUE(document.complete);
  }
}

TEST(YamlTest, PositionsAreThoseOfTheText) {
  const Document document = parse_yaml("a: 1\nb:\n  - x\n  - {c: 2}\n");
  EXPECT_EQ(value_of(document, "a").line, 1);
  EXPECT_EQ(value_of(document, "a").column, 4);
  const Node& list = value_of(document, "b");
  ASSERT_EQ(list.items.size(), 2U);
  EXPECT_EQ(list.items[0].line, 3);
  EXPECT_EQ(list.items[0].column, 5);
  EXPECT_EQ(list.items[1].members[0].line, 4);
  EXPECT_EQ(list.items[1].members[0].column, 6);
}

TEST(YamlTest, DuplicateKeysNameBothLinesAndKeepTheFirst) {
  const Document document = parse_yaml("a:\n  b: 1\n  c: 2\n  b: {d: 3}\n");
  ASSERT_EQ(document.problems.size(), 1U);
  EXPECT_EQ(document.problems[0],
            (Problem{4, 3, "a.b", "a second key \"b\"", "each key once (the first is on line 2)"}));
  EXPECT_EQ(value_of(document, "a").find("b")->integer, 1);
  EXPECT_EQ(value_of(document, "a").members.size(), 2U);
}

TEST(YamlTest, AliasesAreExpanded) {
  const Document document = parse_yaml("a: &x {b: [1, 2]}\nc: *x\nd: [*x, &y 5, *y]\n");
  EXPECT_TRUE(document.problems.empty());
  EXPECT_EQ(to_json(document.root), R"({"a":{"b":[1,2]},"c":{"b":[1,2]},"d":[{"b":[1,2]},5,5]})");
}

TEST(YamlTest, OneDocumentAFile) {
  const Document document = parse_yaml("---\na: 1\n---\nb: 2\n");
  EXPECT_FALSE(document.complete);
  ASSERT_EQ(document.problems.size(), 1U);
  EXPECT_EQ(document.problems[0].line, 4);
  EXPECT_EQ(document.problems[0].found, "a second document");
  EXPECT_EQ(document.problems[0].wanted, "one document per file (the first starts on line 2)");
  for (const char* text : {"---\na: 1\n...\n", "---\n---\na: 1\n", "a: 1\n---\n"}) {
    EXPECT_TRUE(parse_yaml(text).complete) << text;
    EXPECT_EQ(to_json(parse_yaml(text).root), R"({"a":1})") << text;
  }
}

TEST(YamlTest, TagsMergeKeysAndOddKeysAreRefused) {
  for (const char* text : {"a: !!str 5", "a: !local {b: 1}", "a: {<<: {b: 1}}", "yes: 1", "1: 2",
                           "~: 2", "? [a]\n: 1", "{a: 1}: 2", "a: &x b\n*x : c"}) {
    EXPECT_FALSE(parse_yaml(text).problems.empty()) << text;
  }
}

TEST(YamlTest, SyntaxErrorsSayWhere) {
  const Document document = parse_yaml("a: 1\nb: [1, 2\nc: 3\n");
  EXPECT_FALSE(document.complete);
  EXPECT_EQ(document.root.kind, Kind::kNull);
  ASSERT_EQ(document.problems.size(), 1U);
  EXPECT_EQ(document.problems[0].wanted.substr(0, 11), "valid YAML:");
  EXPECT_GE(document.problems[0].line, 2);
}

TEST(JsonTest, ReadsEveryKindOfValue) {
  const std::string text =
      R"({"a":null,"b":[true,false],"c":-5,"d":0.5,"e":"x\n\u00e9\ud83d\ude00\/","f":{}})";
  const Document document = parse_json(text);
  EXPECT_TRUE(document.complete);
  EXPECT_TRUE(document.problems.empty());
  EXPECT_EQ(value_of(document, "e").string, "x\né😀/");
  EXPECT_EQ(to_json(document.root),
            "{\"a\":null,\"b\":[true,false],\"c\":-5,\"d\":0.5,\"e\":\"x\\né😀/\",\"f\":{}}");
}

TEST(JsonTest, PositionsAreThoseOfTheText) {
  const Document document = parse_json("{\n  \"a\": [\n    1,\n    2\n  ]\n}");
  EXPECT_EQ(document.root.members[0].line, 2);
  EXPECT_EQ(document.root.members[0].column, 3);
  EXPECT_EQ(document.root.members[0].value.items[1].line, 4);
  EXPECT_EQ(document.root.members[0].value.items[1].column, 5);
}

TEST(JsonTest, WhatIsNotJsonIsRefused) {
  for (const char* text : {"{",
                           "[",
                           "\"",
                           "{\"a\"}",
                           "{\"a\":}",
                           "{\"a\":1,}",
                           "[1,]",
                           "[1 2]",
                           "{a: 1}",
                           "'a'",
                           "nul",
                           "True",
                           "01",
                           "+1",
                           ".5",
                           "1.",
                           "1e",
                           "0x1",
                           "NaN",
                           "Infinity",
                           "-",
                           "1 2",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\\ud800\"",
                           "\"\\ud800\\u0041\"",
                           "\"\\udc00\"",
                           "\"a\nb\"",
                           "\"\\u0000\"",
                           "// c\n1",
                           "{\"a\":1}}",
                           "1e999",
                           "99999999999999999999",
                           "]"}) {
    EXPECT_FALSE(parse_json(text).problems.empty()) << text;
  }
}

TEST(JsonTest, DuplicateKeysAreRefused) {
  const Document document = parse_json("{\"a\": 1,\n \"a\": 2}");
  ASSERT_EQ(document.problems.size(), 1U);
  EXPECT_EQ(document.problems[0].line, 2);
  EXPECT_EQ(document.problems[0].path, "a");
}

TEST(ParseTest, TakesJsonForJsonOnly) {
  EXPECT_EQ(value_of(parse("{\"a\": 1}"), "a").integer, 1);
  EXPECT_EQ(value_of(parse("{a: 1}"), "a").integer, 1);
  EXPECT_FALSE(parse("{\"a\": 1, # no comment in JSON\n}").complete);
  EXPECT_TRUE(parse(" {} ").complete);
  EXPECT_EQ(value_of(parse("\xEF\xBB\xBF{\"a\": 1}"), "a").integer, 1);
  EXPECT_EQ(value_of(parse("\xEF\xBB\xBF"
                           "a: 1"),
                     "a")
                .integer,
            1);
}

TEST(DescribeTest, IsShortAndHarmless) {
  EXPECT_EQ(describe("a\x1b[31m"), "\"a\\u001b[31m\"");
  EXPECT_LT(describe(std::string(5000, 'x')).size(), 80U);
  EXPECT_EQ(describe(Node{}), "nothing");
  EXPECT_EQ(join_path("a", "b"), "a.b");
  EXPECT_EQ(join_path("", "b"), "b");
  EXPECT_EQ(join_path("a", size_t{3}), "a[3]");
  EXPECT_EQ(join_path("a", "b c"), "a.\"b c\"");
}

}  // namespace
}  // namespace trainyard::text
