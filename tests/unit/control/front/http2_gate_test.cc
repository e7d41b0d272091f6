#include "control/front/http2_gate.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::control {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint8_t kData = 0;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kReset = 3;
constexpr uint8_t kSettings = 4;
constexpr uint8_t kPing = 6;
constexpr uint8_t kContinuation = 9;
constexpr uint8_t kEndHeaders = 4;

std::string frame(uint8_t type, uint8_t flags, size_t size) {
  std::string text;
  for (const size_t byte : {size >> 16, size >> 8, size, size_t{type}, size_t{flags}})
    text += static_cast<char>(byte);
  return text + std::string("\0\0\0\1", 4) + std::string(size, 'x');
}

const std::string kGreeting = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(kSettings, 0, 6);
const std::string kRequest = frame(kHeaders, kEndHeaders, 300);

/// What is wrong with it, however it is cut; all ways to cut must agree.
std::string fault_of(const std::string& bytes) {
  Http2Gate whole;
  const std::string fault(whole.pass(bytes));
  for (const size_t step : {size_t{1}, size_t{7}, size_t{100}}) {
    Http2Gate gate;
    std::string found;
    for (size_t at = 0; at < bytes.size() && found.empty(); at += step)
      found = gate.pass(std::string_view(bytes).substr(at, step));
    EXPECT_EQ(found, fault) << step;
  }
  return fault;
}

TEST(Http2GateTest, AnAgentPasses) {
  std::string agent = kGreeting + frame(kSettings, 1, 0) + kRequest;
  for (int i = 0; i < 3000; ++i)
    agent += frame(kData, 0, 200) + frame(kPing, 0, 8);
  EXPECT_THAT(fault_of(agent + frame(kData, 1, 0) + frame(kReset, 0, 4)), IsEmpty());
}

TEST(Http2GateTest, AHeaderMayComeInPieces) {
  EXPECT_THAT(fault_of(kGreeting + frame(kHeaders, 0, 9000) + frame(kContinuation, 0, 5000) +
                       frame(kContinuation, kEndHeaders, 100) + frame(kData, 0, 20)),
              IsEmpty());
}

TEST(Http2GateTest, WhatIsNotHttp2IsRefusedAtOnce) {
  EXPECT_THAT(fault_of("GET / HTTP/1.1\r\n"), HasSubstr("HTTP/2"));
  EXPECT_THAT(fault_of("PRI * HTTP/2.0\r\n\r\nSM\r\n\rX"), HasSubstr("HTTP/2"));
}

TEST(Http2GateTest, AConnectionHasOneRequest) {
  EXPECT_THAT(fault_of(kGreeting + kRequest + frame(kReset, 0, 4) + kRequest),
              HasSubstr("second request"));
  EXPECT_THAT(fault_of(kGreeting + kRequest + frame(kReset, 0, 4) + frame(kReset, 0, 4)),
              HasSubstr("again and again"));
  EXPECT_THAT(fault_of(kGreeting + frame(5, kEndHeaders, 10)), HasSubstr("promises"));
}

TEST(Http2GateTest, AHeaderEnds) {
  std::string endless = kGreeting + frame(kHeaders, 0, 1);
  for (int i = 0; i < 100; ++i)
    endless += frame(kContinuation, 0, 0);
  EXPECT_THAT(fault_of(endless), HasSubstr("header is longer"));
  EXPECT_THAT(fault_of(kGreeting + frame(kHeaders, kEndHeaders, (16 << 10) + 1)),
              HasSubstr("header is longer"));
  EXPECT_THAT(fault_of(kGreeting + frame(kHeaders, 0, 10) + frame(kPing, 0, 8)),
              HasSubstr("does not end"));
  EXPECT_THAT(fault_of(kGreeting + frame(kContinuation, kEndHeaders, 10)),
              HasSubstr("does not end"));
}

TEST(Http2GateTest, FramesHaveContent) {
  std::string empty = kGreeting + kRequest;
  for (int i = 0; i <= Http2Gate::kMaxEmptyFrames; ++i)
    empty += frame(kData, 0, 0);
  EXPECT_THAT(fault_of(empty), HasSubstr("without content"));
}

TEST(Http2GateTest, WhoAsksHasSomethingToSay) {
  for (const uint8_t type : {kSettings, kPing}) {
    std::string asks = kGreeting + kRequest;
    for (int i = 0; i <= Http2Gate::kMaxQuestions; ++i)
      asks += frame(type, 0, type == kPing ? 8 : 0);
    EXPECT_THAT(fault_of(asks), HasSubstr("asks and says nothing"));
  }
  std::string answers = kGreeting + kRequest;
  for (int i = 0; i <= Http2Gate::kMaxQuestions; ++i)
    answers += frame(kPing, 1, 8);
  EXPECT_THAT(fault_of(answers), IsEmpty()) << "it was asked";
}

}  // namespace
}  // namespace trainyard::control
