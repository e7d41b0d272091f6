#include "operator/kube/inlet.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::kube {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kLineMax = 1 << 20;
constexpr Duration kLong = seconds(60);

MonoTime in(Duration duration) {
  return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()) + duration;
}

Inlet::Flow push(Inlet& inlet, std::string_view bytes) {
  return inlet.push(bytes, [] {});
}

/// All lines until the end; the last entry is the error's message, if there was one.
std::vector<std::string> lines_of(Inlet& inlet) {
  std::vector<std::string> lines;
  while (true) {
    const auto line = inlet.await_line(kLineMax, kLong, {});
    if (!line) {
      lines.push_back(line.error().message);
      return lines;
    }
    if (!*line) return lines;
    lines.push_back(**line);
  }
}

TEST(InletTest, FramesLinesWhereverTheyAreCut) {
  const std::string stream = "first\n\nthird line\n";
  for (size_t cut = 0; cut <= stream.size(); ++cut) {
    for (size_t second = cut; second <= stream.size(); ++second) {
      Inlet inlet("x");
      push(inlet, stream.substr(0, cut));
      push(inlet, stream.substr(cut, second - cut));
      push(inlet, stream.substr(second));
      inlet.end();
      EXPECT_THAT(lines_of(inlet), ElementsAre("first", "", "third line"));
    }
  }
}

TEST(InletTest, GivesALineAsSoonAsItIsWhole) {
  Inlet inlet("x");
  push(inlet, "whole\nhal");
  EXPECT_EQ(inlet.await_line(kLineMax, kLong, {}).value(), "whole");
  std::jthread network([&] { push(inlet, "f\n"); });
  EXPECT_EQ(inlet.await_line(kLineMax, kLong, {}).value(), "half");
}

TEST(InletTest, AnEndWithinALineIsNoEnd) {
  Inlet inlet("GET /x");
  push(inlet, "a\nbroken");
  inlet.end();
  EXPECT_THAT(lines_of(inlet),
              ElementsAre("a", HasSubstr("GET /x: the stream ended within a line, after 6 bytes")));
}

TEST(InletTest, LinesBeforeAFailureAreGiven) {
  Inlet inlet("x");
  push(inlet, "a\nb");
  inlet.fail({ErrorCode::kUnavailable, "reset"});
  EXPECT_THAT(lines_of(inlet), ElementsAre("a", "reset"));
}

TEST(InletTest, RefusesAnEndlessLineWithinItsLimit) {
  constexpr int64_t kMax = 1000;
  Inlet inlet("x");
  std::atomic<int64_t> pushed = 0;
  std::jthread network([&] {
    while (push(inlet, "abcdefghij") != Inlet::Flow::kClosed)
      if (++pushed > 10'000'000) return;
  });
  const auto line = inlet.await_line(kMax, kLong, {});
  inlet.close();
  ASSERT_FALSE(line.has_value());
  EXPECT_EQ(line.error().code, ErrorCode::kInvalidData);
  EXPECT_THAT(line.error().message, HasSubstr("more than 1000 bytes"));
}

TEST(InletTest, RefusesALongLineThatIsWhole) {
  Inlet inlet("x");
  push(inlet, "12345\n123456\n");
  EXPECT_TRUE(inlet.await_line(5, kLong, {}).has_value());
  EXPECT_EQ(inlet.await_line(5, kLong, {}).error().code, ErrorCode::kInvalidData);
}

TEST(InletTest, HoldsTheNetworkBackUntilThereIsRoom) {
  Inlet inlet("x");
  const std::string line(256 << 10, 'x');
  std::atomic<int> resumed = 0;
  int pushed = 0;
  while (inlet.push(line + "\n", [&] { ++resumed; }) == Inlet::Flow::kGoOn)
    ASSERT_LT(++pushed, 100);
  EXPECT_EQ(pushed + 1, 4) << "1 MiB is held";
  int taken = 0;
  while (resumed == 0) {
    ASSERT_TRUE(inlet.await_line(kLineMax, kLong, {}).value().has_value());
    ASSERT_LT(++taken, 100);
  }
  EXPECT_EQ(resumed, 1);
  EXPECT_GT(taken, 1);
}

TEST(InletTest, ALineLargerThanWhatIsHeldComesThrough) {
  Inlet inlet("x");
  const std::string line(3 << 20, 'y');
  std::jthread network([&] {
    std::atomic<bool> go{true};
    for (size_t at = 0; at < line.size(); at += 64 << 10) {
      go = false;
      const auto flow = inlet.push(std::string_view(line).substr(at, 64 << 10), [&] {
        go = true;
        go.notify_one();
      });
      if (flow == Inlet::Flow::kWait) go.wait(false);
    }
    push(inlet, "\n");
  });
  const auto got = inlet.await_line(8 << 20, kLong, {});
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(*got, line);
}

TEST(InletTest, ANetworkThatIsHeldBackAgainAtOnceGoesOn) {
  Inlet inlet("x");
  const std::string part(kLineMax + 1, 'a');
  int parts = 0;
  // What comes between two waits of the reader: the next part, which is held back as well.
  std::function<void()> resume = [&] {
    ++parts;
    inlet.push(parts < 4 ? part : "\n", resume);
  };
  EXPECT_EQ(inlet.push(part, resume), Inlet::Flow::kWait);
  const auto line = inlet.await_line(16 * kLineMax, kLong, {});
  ASSERT_TRUE(line.has_value()) << line.error().message;
  EXPECT_EQ((*line)->size(), 4 * part.size());
}

TEST(InletTest, SilenceEndsTheWait) {
  Inlet inlet("GET /x");
  push(inlet, "no end of line");
  const auto line = inlet.await_line(kLineMax, milliseconds(1), {});
  EXPECT_EQ(line.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(line.error().message, HasSubstr("GET /x: more of the stream did not come within"));
  EXPECT_EQ(inlet.await_head(in(milliseconds(1)), {}).error().code, ErrorCode::kDeadline);
  EXPECT_EQ(inlet.await_body(100, in(milliseconds(1)), {}).error().code, ErrorCode::kDeadline);
}

TEST(InletTest, AStopEndsEveryWait) {
  Inlet inlet("x");
  std::stop_source stop;
  std::jthread stopper([&] { stop.request_stop(); });
  EXPECT_EQ(inlet.await_line(kLineMax, kLong, stop.get_token()).error().code, ErrorCode::kAborted);
  EXPECT_EQ(inlet.await_head(in(kLong), stop.get_token()).error().code, ErrorCode::kAborted);
  EXPECT_EQ(inlet.await_body(100, in(kLong), stop.get_token()).error().code, ErrorCode::kAborted);
  push(inlet, "a line\n");
  EXPECT_EQ(inlet.await_line(kLineMax, kLong, stop.get_token()).error().code, ErrorCode::kAborted);
}

TEST(InletTest, GivesHeadAndWholeBody) {
  Inlet inlet("x");
  push(inlet, "bo");  // may come before the head is passed on
  inlet.head({201, seconds(3)});
  inlet.head({500, {}});
  EXPECT_EQ(inlet.await_head(in(kLong), {}).value().status, 201);
  EXPECT_EQ(inlet.await_head(in(kLong), {}).value().retry_after, seconds(3));
  push(inlet, "dy");
  inlet.end();
  EXPECT_EQ(push(inlet, "more"), Inlet::Flow::kClosed);
  EXPECT_EQ(inlet.await_body(4, in(kLong), {}).value(), "body");
  EXPECT_TRUE(inlet.ended());
}

TEST(InletTest, ABodyHasItsOwnLimit) {
  Inlet inlet("x");
  inlet.head({200, {}});
  const std::string part(1 << 20, 'z');
  std::atomic<bool> resumed = false;
  push(inlet, part);
  ASSERT_EQ(inlet.push(part, [&] { resumed = true; }), Inlet::Flow::kWait);
  std::jthread network([&] {
    while (!resumed)
      std::this_thread::yield();
    EXPECT_EQ(push(inlet, part), Inlet::Flow::kGoOn);
    push(inlet, "!");
  });
  const auto body = inlet.await_body(3 << 20, in(kLong), {});
  ASSERT_FALSE(body.has_value());
  EXPECT_EQ(body.error().code, ErrorCode::kInvalidData);
}

TEST(InletTest, AClosedOneTellsTheNetwork) {
  Inlet inlet("x");
  std::atomic<int> resumed = 0;
  ASSERT_EQ(inlet.push(std::string(2 << 20, 'z'), [&] { ++resumed; }), Inlet::Flow::kWait);
  inlet.close();
  EXPECT_EQ(resumed, 1);
  EXPECT_EQ(push(inlet, "x"), Inlet::Flow::kClosed);
}

TEST(InletTest, AnEndWithoutAHeadIsAnError) {
  Inlet inlet("x");
  inlet.end();
  EXPECT_EQ(inlet.await_head(in(kLong), {}).error().code, ErrorCode::kUnavailable);
  inlet.fail({ErrorCode::kIo, "late"});
  EXPECT_EQ(inlet.await_head(in(kLong), {}).error().code, ErrorCode::kUnavailable)
      << "nothing changes after the end";
}

}  // namespace
}  // namespace trainyard::kube
