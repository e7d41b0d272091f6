#include "common/text/readable.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard {
namespace {

using ::testing::ElementsAre;

TEST(ReadableTest, OurLogLinesBecomeSentences) {
  EXPECT_THAT(
      readable_lines(
          {R"({"time":"t","level":"info","message":"checkpoint committed","step":40})",
           R"({"time":"t","level":"error","message":"rank failed","rank":1,"error":"disk full"})",
           R"({"time":"t","level":"warning","message":"step skipped","step":3})"}),
      ElementsAre("rank failed: disk full (rank 1)", "step skipped (step 3)"));
}

TEST(ReadableTest, OtherProgramsLinesStayAsTheyAre) {
  EXPECT_THAT(readable_lines({"Traceback (most recent call last):", "{not json", R"({"a":1})"}),
              ElementsAre("Traceback (most recent call last):", "{not json", R"({"a":1})"));
}

TEST(ReadableTest, ATextIsReadByItsLines) {
  EXPECT_EQ(readable_text("one\n{\"level\":\"info\",\"message\":\"x\"}\ntwo\n"), "one\ntwo");
  EXPECT_EQ(readable_text(""), "");
}

TEST(ReadableTest, SignalsHaveNames) {
  EXPECT_EQ(signal_text(SIGKILL), "signal 9 (SIGKILL)");
  EXPECT_EQ(signal_text(64), "signal 64");
}

}  // namespace
}  // namespace trainyard
