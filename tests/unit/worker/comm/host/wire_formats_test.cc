// The headers and frames between ranks: bytes as documented, anything else refused by name.

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/comm/host/control_frame.h"
#include "worker/comm/host/handshake.h"
#include "worker/comm/host/message.h"

namespace trainyard::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

MessageHeader a_header() {
  MessageHeader header;
  header.signature = {Op::kReduceScatter, DType::kInt64, ReduceOp::kMax, 11, 22, 33};
  header.generation = 4;
  header.group = 5;
  header.source = 6;
  header.part = 7;
  header.payload_bytes = 8;
  return header;
}

Result<MessageHeader> decode_changed(size_t at, uint8_t value) {
  WireHeader wire = encode(a_header());
  wire[at] = std::byte{value};
  return decode_message(std::span<const std::byte, kHeaderBytes>(wire));
}

TEST(MessageTest, BytesAreThoseOfTheFormatDocument) {
  const WireHeader wire = encode(a_header());
  std::vector<int> bytes;
  for (const std::byte byte : wire)
    bytes.push_back(static_cast<int>(byte));
  EXPECT_EQ(bytes, (std::vector<int>{'T', 'Y', 'D', 'M', 1, 0, 2, 9, 2,  0, 6, 0, 7, 0, 0, 0,  //
                                     4,   0,   0,   0,   0, 0, 0, 0, 5,  0, 0, 0, 0, 0, 0, 0,  //
                                     11,  0,   0,   0,   0, 0, 0, 0, 22, 0, 0, 0, 0, 0, 0, 0,  //
                                     33,  0,   0,   0,   0, 0, 0, 0, 8,  0, 0, 0, 0, 0, 0, 0}));
}

TEST(MessageTest, HeadersSurviveTheRoundTrip) {
  const auto decoded = decode_message(std::span<const std::byte, kHeaderBytes>(encode(a_header())));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(encode(*decoded), encode(a_header()));
}

TEST(MessageTest, EveryDamagedFieldIsNamed) {
  const struct {
    size_t at;
    uint8_t value;
    const char* words;
  } cases[] = {{0, 'X', "magic"},       {4, 2, "version is 2, wanted 1"},
               {6, 0, "operation 0"},   {6, 11, "operation 11"},
               {7, 10, "dtype 10"},     {8, 5, "reduce op 5"},
               {9, 1, "reserved"},      {47, 0x80, "count"},
               {46, 0x11, "count"},     {63, 0x80, "payload of"},
               {62, 0x11, "payload of"}};
  for (const auto& [at, value, words] : cases) {
    const auto decoded = decode_changed(at, value);
    ASSERT_FALSE(decoded.has_value()) << at;
    // Not kInvalidData: a restart mends it, and the job's data is not to blame.
    EXPECT_EQ(decoded.error().code, at == 4 ? ErrorCode::kConflict : ErrorCode::kPeerLost) << at;
    EXPECT_THAT(decoded.error().message, HasSubstr(words));
  }
}

TEST(MessageTest, AnotherGenerationIsRefusedByNumber) {
  MessageHeader old = a_header();
  old.generation = 3;
  const Status status = check_header(encode(a_header()), encode(old), 0, 6);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kConflict);
  EXPECT_THAT(status.error().message, HasSubstr("generation 3 is refused, this is generation 4"));
}

TEST(MessageTest, ASignatureMismatchNamesBothSides) {
  MessageHeader other = a_header();
  other.signature.op = Op::kAllReduce;
  other.signature.count = 99;
  const Status status = check_header(encode(a_header()), encode(other), 12, 6);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kInternal);
  EXPECT_THAT(status.error().message, HasSubstr("rank 12 runs reduce_scatter #11 (I64 max, 22"));
  EXPECT_THAT(status.error().message, HasSubstr("rank 6 runs all_reduce #11 (I64 max, 99"));
}

TEST(HandshakeTest, HelloAndWelcomeSurviveTheRoundTrip) {
  Hello hello;
  hello.channel = Channel::kData;
  hello.job = xxh3_128({});
  hello.generation = -1;
  hello.group = 1;
  hello.rank = 2;
  hello.target = 3;
  hello.world_size = 4;
  hello.nonce = 5;
  const auto wire = encode(hello);
  const auto decoded = decode_hello(std::span<const std::byte, kHelloBytes>(wire));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(encode(*decoded), wire);
  const Welcome welcome{true, 5, 3, 0};
  const auto answer = encode(welcome);
  const auto understood = decode_welcome(std::span<const std::byte, kWelcomeBytes>(answer));
  ASSERT_TRUE(understood.has_value());
  EXPECT_EQ(encode(*understood), answer);
}

TEST(HandshakeTest, DamagedWordsAreRefused) {
  auto wire = encode(Hello{});
  wire[0] = std::byte{'G'};  // "GET /": somebody else's protocol
  const auto stranger = decode_hello(std::span<const std::byte, kHelloBytes>(wire));
  EXPECT_EQ(stranger.error().code, ErrorCode::kPeerLost);
  EXPECT_THAT(stranger.error().message, HasSubstr("magic"));
  wire = encode(Hello{});
  wire[4] = std::byte{9};
  EXPECT_EQ(decode_hello(std::span<const std::byte, kHelloBytes>(wire)).error().code,
            ErrorCode::kConflict);
  wire = encode(Hello{});
  wire[6] = std::byte{3};
  EXPECT_THAT(decode_hello(std::span<const std::byte, kHelloBytes>(wire)).error().message,
              HasSubstr("channel 3"));
  auto answer = encode(Welcome{true, 0, 0, 0});
  answer[6] = std::byte{2};
  EXPECT_EQ(decode_welcome(std::span<const std::byte, kWelcomeBytes>(answer)).error().code,
            ErrorCode::kPeerLost);
  answer = encode(Welcome{false, 0, 0, 513});
  EXPECT_THAT(decode_welcome(std::span<const std::byte, kWelcomeBytes>(answer)).error().message,
              HasSubstr("513"));
}

TEST(HandshakeTest, EveryDifferenceIsNamed) {
  const HandshakeIdentity identity{xxh3_128({}), 9, 2, 4};
  Hello fits;
  fits.job = identity.job;
  fits.generation = 9;
  fits.rank = 1;
  fits.target = 2;
  fits.world_size = 4;
  EXPECT_TRUE(judge(fits, identity).has_value());
  Hello other = fits;
  other.job[0] ^= 1;
  EXPECT_THAT(judge(other, identity).error().message, HasSubstr("job hash"));
  other = fits;
  other.generation = 8;
  EXPECT_THAT(judge(other, identity).error().message,
              HasSubstr("of generation 8, this is generation 9"));
  other = fits;
  other.world_size = 5;
  EXPECT_THAT(judge(other, identity).error().message, HasSubstr("5 ranks, this one has 4"));
  other = fits;
  other.target = 3;
  EXPECT_THAT(judge(other, identity).error().message, HasSubstr("looks for rank 3"));
  other = fits;
  other.rank = 3;
  EXPECT_EQ(judge(other, identity).error().code, ErrorCode::kConflict);
}

TEST(ControlFrameTest, FramesSurviveTheRoundTrip) {
  ControlFrame frame;
  frame.kind = ControlKind::kAbort;
  frame.failure = Failure(Error{ErrorCode::kPeerLost, "rank 2 is lost"}, {2, 5});
  frame.failure.origin = 3;
  const auto decoded = decode_control(encode(frame));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  EXPECT_EQ(decoded->failure.error.code, ErrorCode::kPeerLost);
  EXPECT_EQ(decoded->failure.error.message, "rank 2 is lost");
  EXPECT_THAT(decoded->failure.lost, ElementsAre(2, 5));
  EXPECT_EQ(decoded->failure.origin, 3);
  frame.kind = ControlKind::kWaiting;
  frame.waiting = {true, {0, 4}};
  EXPECT_THAT(decode_control(encode(frame))->waiting.members, ElementsAre(0, 4));
  frame.kind = ControlKind::kSharedMemory;
  frame.address = "name";
  EXPECT_EQ(decode_control(encode(frame))->address, "name");
}

TEST(ControlFrameTest, DamageIsALostPeerAndAnotherVersionAConflict) {
  auto wire = encode(ControlFrame{});
  wire[6] = std::byte{9};
  EXPECT_EQ(decode_control(wire).error().code, ErrorCode::kPeerLost);
  wire = encode(ControlFrame{});
  wire[4] = std::byte{9};
  EXPECT_EQ(decode_control(wire).error().code, ErrorCode::kConflict);
  EXPECT_THAT(decode_control(wire).error().message, HasSubstr("version is 9, wanted 1"));
}

TEST(ControlFrameTest, LongTextsAndListsAreCutToTheLimit) {
  ControlFrame frame;
  frame.kind = ControlKind::kAbort;
  frame.failure =
      Failure(Error{ErrorCode::kAborted, std::string(100'000, 'x')}, std::vector<int>(5000, 1));
  const auto wire = encode(frame);
  EXPECT_LE(wire.size(), static_cast<size_t>(kControlHeaderBytes + kControlPayloadBytesMax));
  EXPECT_TRUE(decode_control(wire).has_value());
}

TEST(ControlFrameTest, AnyBytesAreEitherAFrameOrAnError) {
  std::mt19937_64 random(20);
  ControlFrame frame;
  frame.kind = ControlKind::kAbort;
  frame.failure = Failure(Error{ErrorCode::kAborted, "why"}, {1});
  const auto good = encode(frame);
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    auto wire = good;
    for (int change = 0; change < 3; ++change) {
      wire[random() % wire.size()] = static_cast<std::byte>(random() & 0xFF);
    }
    wire.resize(random() % (wire.size() + 1));
    refused += decode_control(wire).has_value() ? 0 : 1;
  }
  EXPECT_GT(refused, 10'000);
}

}  // namespace
}  // namespace trainyard::comm
