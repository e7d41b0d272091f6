#include "common/log/log.h"

#include <filesystem>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "common/log/text.h"

namespace trainyard {
namespace {

class LogTest : public ::testing::Test {
 protected:
  LogTest() : path_(std::filesystem::path(::testing::TempDir()) / "log_test.log") {
    std::filesystem::remove(path_);
  }
  ~LogTest() override { std::filesystem::remove(path_); }

  std::unique_ptr<Logger> open(LogFormat format) {
    return *Logger::to_file(path_, LogLevel::kInfo, format);
  }
  std::string content() const { return *read_file(path_, 1 << 20); }

  const std::filesystem::path path_;
};

TEST_F(LogTest, JsonLinesHoldMessageAndKeys) {
  open(LogFormat::kJson)
      ->warning("rank exited", {{"rank", 1},
                                {"loss", 2.5},
                                {"nan", std::numeric_limits<double>::quiet_NaN()},
                                {"expected", false},
                                {"reason", "said \"no\"\nand left\xff"}});
  const std::string line = content();
  EXPECT_EQ(line.find('\n'), line.size() - 1) << "one event must be one line";
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json.at("level"), "warning");
  EXPECT_EQ(json.at("message"), "rank exited");
  EXPECT_EQ(json.at("rank"), 1);
  EXPECT_EQ(json.at("loss"), 2.5);
  EXPECT_EQ(json.at("nan"), "nan");
  EXPECT_EQ(json.at("expected"), false);
  EXPECT_EQ(json.at("reason"), "said \"no\"\nand left\xef\xbf\xbd");
  EXPECT_THAT(json.at("time").get<std::string>(),
              ::testing::MatchesRegex("....-..-..T..:..:..\\.......Z"));
}

TEST_F(LogTest, TextLinesQuoteWhatWouldMislead) {
  open(LogFormat::kText)
      ->info("rank exited", {{"plain", "a-b"}, {"text", "a b"}, {"esc", "\x1b[2J"}});
  EXPECT_THAT(content(), ::testing::EndsWith(
                             "info    rank exited plain=a-b text=\"a b\" esc=\"\\u001b[2J\"\n"));
}

TEST_F(LogTest, DropsWhatIsBelowItsLevel) {
  open(LogFormat::kJson)->debug("step", {});
  EXPECT_EQ(content(), "");
}

TEST_F(LogTest, AFileThatCannotBeOpenedIsAnError) {
  const auto logger = Logger::to_file("/proc/none/x.log", LogLevel::kInfo, LogFormat::kJson);
  ASSERT_FALSE(logger);
  EXPECT_EQ(logger.error().code, ErrorCode::kIo);
  EXPECT_THAT(logger.error().message, ::testing::HasSubstr("/proc/none/x.log"));
}

TEST(TextTest, EscapesWhatTerminalsObey) {
  EXPECT_EQ(escape_text("a\tb\r\n\"\\\x7f"), "a\\tb\\r\\n\\\"\\\\\\u007f");
  EXPECT_EQ(escape_text("\xc2\x9b"
                        "2J"),
            "\\u009b2J")
      << "a C1 control sequence introducer";
  EXPECT_EQ(escape_text("a\u202eb\u2066c\u200fd\u061ce\u2028f"),
            "a\\u202eb\\u2066c\\u200fd\\u061ce\\u2028f")
      << "what reads otherwise than it is";
  EXPECT_EQ(printable_text("a\u202eb\u009bc\u2069", 99), "a\ufffdb\ufffdc\ufffd");
  EXPECT_EQ(escape_text("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
}

TEST(TextTest, ReplacesWhatIsNoUtf8) {
  for (const char* bad : {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc3"}) {
    EXPECT_THAT(escape_text(bad), ::testing::StartsWith("\xef\xbf\xbd")) << bad;
    EXPECT_THAT(printable_text(bad, 99), ::testing::StartsWith("\xef\xbf\xbd")) << bad;
  }
}

TEST(TextTest, CutsPrintableTextBetweenCharacters) {
  EXPECT_EQ(printable_text("ab\xc3\xa9", 3), "ab");
  EXPECT_EQ(printable_text("ab\xc3\xa9", 4), "ab\xc3\xa9");
  EXPECT_EQ(printable_text("a\tb\x1b", 99), "a b\xef\xbf\xbd");
}

}  // namespace
}  // namespace trainyard
