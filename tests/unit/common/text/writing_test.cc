#include <chrono>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "common/text/document.h"
#include "common/text/json_writer.h"
#include "common/text/rfc3339.h"

namespace trainyard::text {
namespace {

using std::chrono::nanoseconds;

TEST(JsonWriterTest, WritesCompactAndIndented) {
  const auto write = [](int indent) {
    JsonWriter json(indent);
    json.begin_object();
    json.key("a");
    json.begin_array();
    json.integer(1);
    json.number(0.5);
    json.null();
    json.end_array();
    json.key("b");
    json.begin_object();
    json.end_object();
    json.key("c");
    json.boolean(true);
    json.end_object();
    return json.take();
  };
  EXPECT_EQ(write(0), R"({"a":[1,0.5,null],"b":{},"c":true})");
  EXPECT_EQ(write(2),
            "{\n  \"a\": [\n    1,\n    0.5,\n    null\n  ],\n  \"b\": {},\n  \"c\": true\n}");
}

TEST(JsonWriterTest, WhatIsNoNumberIsNull) {
  JsonWriter json;
  json.begin_array();
  for (const std::optional<double> value :
       {std::optional<double>(), std::optional(std::numeric_limits<double>::infinity()),
        std::optional(-std::numeric_limits<double>::infinity()),
        std::optional(std::numeric_limits<double>::quiet_NaN()), std::optional(1.5)}) {
    json.number(value);
  }
  json.end_array();
  EXPECT_EQ(json.take(), "[null,null,null,null,1.5]");
}

TEST(JsonWriterTest, StringsAreAlwaysValidJson) {
  EXPECT_EQ(quote_json("a\"b\\c\n\t\r\x01\x7f"), R"("a\"b\\c\n\t\r\u0001\u007f")");
  EXPECT_EQ(quote_json("é💡"), "\"é💡\"");
  EXPECT_EQ(quote_json("a\xc2\x9b\xe2\x80\xae\xd8\x9c"), R"("a\u009b\u202e\u061c")")
      << "a terminal would obey";
  EXPECT_EQ(quote_json("a\xff"
                       "b\xc3"),
            "\"a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD\"");
  std::string all;
  for (int byte = 0; byte < 256; ++byte)
    all += static_cast<char>(byte);
  const Document document = parse_json("[" + quote_json(all) + "]");
  ASSERT_EQ(document.problems.size(), 1U);  // the NUL, which no text of ours holds
  EXPECT_TRUE(parse_json("[" + quote_json(all.substr(1)) + "]").complete);
}

TEST(ShortestTest, ReadsBackToTheSameBits) {
  for (const double value :
       {0.1, 6.0e-4, 1.0, 1e300, 5e-324, 0.30000000000000004, -2.5, 123456789.0,
        std::numeric_limits<double>::max(), std::numeric_limits<double>::min()}) {
    EXPECT_EQ(std::strtod(shortest(value).c_str(), nullptr), value) << shortest(value);
  }
  EXPECT_EQ(shortest(0.1), "0.1");
}

TEST(TimeTest, MicroTimesHaveExactlySixDigits) {
  EXPECT_EQ(format_micro_time(Time()), "1970-01-01T00:00:00.000000Z");
  EXPECT_EQ(format_micro_time(Time(nanoseconds(1'767'323'045'120'000'999))),
            "2026-01-02T03:04:05.120000Z");
}

TEST(TimeTest, FormatsAsRfc3339) {
  EXPECT_EQ(format_time(Time()), "1970-01-01T00:00:00Z");
  EXPECT_EQ(format_time(Time(nanoseconds(1'767'323'045'000'000'000))), "2026-01-02T03:04:05Z");
  EXPECT_EQ(format_time(Time(nanoseconds(1'767'323'045'120'000'000))), "2026-01-02T03:04:05.12Z");
  EXPECT_EQ(format_time(Time(nanoseconds(-1))), "1969-12-31T23:59:59.999999999Z");
}

TEST(TimeTest, ReadsBackExactly) {
  for (const int64_t ns : {int64_t{0}, int64_t{1}, int64_t{-1}, int64_t{1'767'323'045'123'456'789},
                           int64_t{951'782'400'000'000'000}, int64_t{9'000'000'000'000'000'000}}) {
    const Time time{nanoseconds(ns)};
    EXPECT_EQ(parse_time(format_time(time)), time) << format_time(time);
  }
  EXPECT_EQ(parse_time("2026-01-02T05:04:05+02:00"), parse_time("2026-01-02T03:04:05Z"));
  EXPECT_EQ(parse_time("2026-01-02t03:04:05.5z"), parse_time("2026-01-02T03:04:05.500Z"));
}

TEST(TimeTest, RefusesEverythingElse) {
  for (const char* text :
       {"", "2026-01-02", "2026-01-02T03:04:05", "2026-01-02 03:04:05Z", "2026-13-02T03:04:05Z",
        "2026-02-29T03:04:05Z", "2026-01-02T24:00:00Z", "2026-01-02T03:60:00Z",
        "2026-01-02T03:04:60Z", "2026-01-02T03:04:05.Z", "2026-01-02T03:04:05Zx",
        "2026-01-02T03:04:05+2:00", "2026-01-02T03:04:05+24:00", "0001-01-01T00:00:00Z",
        "2262-01-01T00:00:00Z", "+026-01-02T03:04:05Z", "1767323045"}) {
    EXPECT_FALSE(parse_time(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace trainyard::text
