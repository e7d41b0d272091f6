#include <string>

#include <gtest/gtest.h>

#include "common/text/document.h"

/// Text from an enemy costs no more than large honest text, and is refused by name.
namespace trainyard::text {
namespace {

void expect_refused(const Document& document, const std::string& found_or_wanted) {
  ASSERT_FALSE(document.problems.empty());
  EXPECT_FALSE(document.complete);
  EXPECT_EQ(document.root.kind, Kind::kNull);
  const Problem& problem = document.problems.back();
  EXPECT_NE((problem.found + "|" + problem.wanted).find(found_or_wanted), std::string::npos)
      << problem.found << "|" << problem.wanted;
}

std::string repeat(const std::string& piece, int times) {
  std::string text;
  for (int i = 0; i < times; ++i)
    text += piece;
  return text;
}

TEST(HostileYamlTest, AliasBombIsDefused) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int level = 1; level < 12; ++level) {
    const std::string below = "*a" + std::to_string(level - 1);
    const std::string name = "a" + std::to_string(level);
    bomb += name + ": &" + name + " [" + below + repeat(", " + below, 8) + "]\n";
  }
  expect_refused(parse_yaml(bomb), "more than 100000 values, aliases expanded");
}

TEST(HostileYamlTest, NestedAnchorsDoNotMultiplyMemory) {
  std::string text = "a: ";
  for (int level = 0; level < 50; ++level)
    text += "&a" + std::to_string(level) + " [";
  text += "x" + repeat(", x", 50'000) + repeat("]", 50);
  expect_refused(parse_yaml(text), "more than 100000 values, aliases expanded");
}

TEST(HostileYamlTest, AliasesOfLongTextDoNotMultiplyMemory) {
  const std::string text(500'000, 'x');
  const std::string refused = "more than 4194304 bytes of text in copies, aliases expanded";
  expect_refused(parse_yaml("a: &a " + text + "\nb: [*a" + repeat(", *a", 4000) + "]"), refused);
  expect_refused(parse_yaml("a: &a {? " + text + "\n: 1}\nb: [*a" + repeat(", *a", 4000) + "]"),
                 refused);
  std::string nested = "a: ";  // every anchor keeps a copy of what is below it
  for (int level = 0; level < 50; ++level)
    nested += "&a" + std::to_string(level) + " [";
  expect_refused(parse_yaml(nested + text + repeat("]", 50)), refused);
}

TEST(HostileYamlTest, LongTextMayBeUsedAgain) {
  const std::string text(100'000, 'x');
  const Document document = parse_yaml("a: &a " + text + "\nb: [*a, *a, *a]");
  ASSERT_TRUE(document.complete);
  EXPECT_EQ(document.root.find("b")->items[2].string, text);
}

TEST(HostileYamlTest, AliasOfItselfIsRefused) {
  const Document document = parse_yaml("a: &a [*a]");
  EXPECT_FALSE(document.problems.empty());
  EXPECT_FALSE(document.complete);
}

TEST(HostileTest, DeepNestingIsRefused) {
  expect_refused(parse_yaml(repeat("[", 200) + repeat("]", 200)), "nesting deeper than 64 levels");
  expect_refused(parse_yaml(repeat("[", 200)), "bracket not closed");
  expect_refused(parse_yaml(repeat("{a: ", 200) + "1" + repeat("}", 200)),
                 "nesting deeper than 64 levels");
  expect_refused(parse_json(repeat("[", 500'000)), "nesting deeper than 64 levels");
  expect_refused(parse_json(repeat("{\"a\":", 200'000)), "nesting deeper than 64 levels");
  EXPECT_TRUE(parse_json(repeat("[", 64) + repeat("]", 64)).complete);
  EXPECT_FALSE(parse_json(repeat("[", 65) + repeat("]", 65)).complete);
  EXPECT_FALSE(parse_yaml(repeat("- ", 200'000)).complete);
  EXPECT_FALSE(parse_yaml(repeat("? ", 200'000)).complete);
}

TEST(HostileTest, SizesAreBounded) {
  const Limits limits{.bytes = 100, .nodes = 10};
  expect_refused(parse_json(std::string(101, ' '), limits), "at most 100 bytes");
  expect_refused(parse_yaml("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]", limits), "more than 10 values");
  expect_refused(parse_json("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]", limits), "more than 10 values");
  EXPECT_TRUE(parse_json("[1, 2, 3, 4, 5, 6, 7, 8, 9]", limits).complete);
}

TEST(HostileTest, ManyProblemsEndTheReading) {
  const Document document = parse_yaml(repeat("- yes\n", 10'000));
  EXPECT_EQ(document.problems.size(), 100U);
  EXPECT_FALSE(document.complete);
}

TEST(HostileTest, ManyKeysTakeLinearTime) {
  std::string yaml;
  std::string json = "{";
  for (int i = 0; i < 40'000; ++i) {
    yaml += "key" + std::to_string(i) + ": 1\n";
    json += (i > 0 ? ",\"key" : "\"key") + std::to_string(i) + "\":1";
  }
  EXPECT_EQ(parse_yaml(yaml).root.members.size(), 40'000U);
  EXPECT_EQ(parse_json(json + "}").root.members.size(), 40'000U);
}

TEST(HostileTest, BytesThatAreNoTextAreRefused) {
  using namespace std::string_literals;
  for (const std::string& bytes : {"a: \0"s, "\0"s, "a: \x01"s, "a: \x7f"s}) {
    expect_refused(parse_yaml(bytes), "control character");
    expect_refused(parse_json("\"" + bytes + "\""), "control character");
  }
  for (const std::string& bytes : {"\xff\xfe"
                                   "a\0"s,
                                   "\xc0\xaf"s, "\xed\xa0\x80"s, "\xf4\x90\x80\x80"s, "\xe2\x82"s,
                                   "\x80"s, "\xf8\x88\x80\x80\x80"s}) {
    expect_refused(parse_yaml("a: " + bytes), "not UTF-8");
    expect_refused(parse_json("\"" + bytes + "\""), "not UTF-8");
  }
  const Document document = parse_yaml("a: 1\nb: \xff\n");
  EXPECT_EQ(document.problems[0].line, 2);
  EXPECT_EQ(document.problems[0].column, 4);
}

TEST(HostileTest, TabsForIndentationAreRefused) {
  expect_refused(parse_yaml("a:\n\tb: 1\n"), "valid YAML");
}

}  // namespace
}  // namespace trainyard::text
