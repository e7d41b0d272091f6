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
  header.signature = {Operation::kReduceScatter, DType::kInt64, ReduceOp::kMax, 11, 22, 33};
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
  EXPECT_EQ(bytes, (std::vector<int>{'T', 'Y', 'D', 'M', 2, 0, 2, 9, 2,  0, 6, 0, 7, 0, 0, 0,  //
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
  } cases[] = {{0, 'X', "magic"},       {4, 1, "version is 1, wanted 2"},
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
  other.signature.op = Operation::kAllReduce;
  other.signature.count = 99;
  const Status status = check_header(encode(a_header()), encode(other), 12, 6);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kInternal);
  EXPECT_THAT(status.error().message, HasSubstr("rank 12 runs reduce_scatter #11 (I64 max, 22"));
  EXPECT_THAT(status.error().message, HasSubstr("rank 6 runs all_reduce #11 (I64 max, 99"));
}

TEST(HandshakeTest, HelloAndWelcomeSurviveTheRoundTrip) {
  Hello hello;
  hello.channel = ConnectionKind::kData;
  hello.job = xxh3_128({});
  hello.generation = -1;
  hello.group = 1;
  hello.rank = 2;
  hello.target = 3;
  hello.world_size = 4;
  hello.build = 6;
  hello.nonce = 5;
  const auto wire = encode(hello);
  const auto decoded = decode_hello(wire, kOpenHandshake);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(encode(*decoded), wire);
  EXPECT_EQ(decoded->build, 6U);
  const auto answer = encode(Welcome{kKeyedHandshake, Refusal::kRing, 5, 3});
  const auto understood = decode_welcome(answer, kKeyedHandshake);
  ASSERT_TRUE(understood.has_value());
  EXPECT_EQ(understood->refusal, Refusal::kRing);
  EXPECT_EQ(encode(*understood), answer);
  Challenge challenge;
  challenge.nonce[3] = 4;
  challenge.proof[31] = 5;
  const auto asked = decode_challenge(encode(challenge));
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(encode(*asked), encode(challenge));
  EXPECT_EQ(*decode_proof(encode_proof(challenge.proof)), challenge.proof);
}

TEST(HandshakeTest, DamagedWordsAreRefused) {
  auto wire = encode(Hello{});
  wire[0] = std::byte{'G'};  // "GET /": somebody else's protocol
  const auto stranger = decode_hello(wire, kOpenHandshake);
  EXPECT_EQ(stranger.error().code, ErrorCode::kPeerLost);
  EXPECT_THAT(stranger.error().message, HasSubstr("magic"));
  wire = encode(Hello{});
  wire[4] = std::byte{9};
  EXPECT_EQ(decode_hello(wire, kOpenHandshake).error().code, ErrorCode::kConflict);
  wire = encode(Hello{});
  wire[6] = std::byte{3};
  EXPECT_THAT(decode_hello(wire, kOpenHandshake).error().message, HasSubstr("channel 3"));
  wire = encode(Hello{});
  EXPECT_EQ(decode_hello(wire, kKeyedHandshake).error().code, ErrorCode::kConflict);
  for (const uint8_t verdict : {uint8_t{0}, uint8_t{2}}) {
    auto answer = encode(Welcome{});
    answer[6] = std::byte{verdict};
    EXPECT_EQ(decode_welcome(answer, kOpenHandshake).error().code, ErrorCode::kPeerLost);
  }
  auto answer = encode(Welcome{});
  answer[20] = std::byte{4};
  EXPECT_THAT(decode_welcome(answer, kOpenHandshake).error().message, HasSubstr("reason 4"));
  for (const size_t reserved : {size_t{6}, size_t{7}}) {
    auto challenge = encode(Challenge{});
    challenge[reserved] = std::byte{1};
    EXPECT_THAT(decode_challenge(challenge).error().message, HasSubstr("challenge: reserved"));
    auto proof = encode_proof({});
    proof[reserved] = std::byte{1};
    EXPECT_THAT(decode_proof(proof).error().message, HasSubstr("proof: reserved"));
  }
}

TEST(HandshakeTest, AProofIsOfOneSideOneHelloOneChallengeAndOneKey) {
  const std::vector<std::byte> key(32, std::byte{7});
  const std::vector<std::byte> other_key(32, std::byte{8});
  Hello hello;
  hello.version = kKeyedHandshake;
  Hello other_hello = hello;
  other_hello.rank = 1;
  Hash256 other_nonce{};
  other_nonce[31] = 1;
  const Hash256 proof = prove(key, Side::kConnects, hello, {});
  EXPECT_EQ(prove(key, Side::kConnects, hello, {}), proof);
  EXPECT_NE(prove(key, Side::kAnswers, hello, {}), proof);
  EXPECT_NE(prove(key, Side::kConnects, other_hello, {}), proof);
  EXPECT_NE(prove(key, Side::kConnects, hello, other_nonce), proof);
  EXPECT_NE(prove(other_key, Side::kConnects, hello, {}), proof);
}

TEST(HandshakeTest, EveryDifferenceHasItsNumberAndIsNamedHere) {
  const HandshakeIdentity identity{xxh3_128({}), 9, 2, 4, 0, 77, {}};
  Hello fits;
  fits.job = identity.job;
  fits.generation = 9;
  fits.rank = 1;
  fits.target = 2;
  fits.world_size = 4;
  fits.build = 77;
  EXPECT_EQ(judge(fits, identity).refusal, Refusal::kNone);
  const auto expect = [&](const Hello& hello, Refusal refusal, const char* words) {
    const Judgement verdict = judge(hello, identity);
    EXPECT_EQ(verdict.refusal, refusal) << words;
    EXPECT_THAT(verdict.why, HasSubstr(words));
  };
  Hello other = fits;
  other.job[0] ^= 1;
  expect(other, Refusal::kJob, "job hash");
  other = fits;
  other.generation = 8;
  expect(other, Refusal::kGeneration, "of generation 8, this is generation 9");
  other = fits;
  other.build = 0;
  expect(other, Refusal::kBuild, "the hash 0, this one's has 77: run the same build");
  other = fits;
  other.world_size = 5;
  expect(other, Refusal::kWorldSize, "5 ranks, this one has 4");
  other = fits;
  other.target = 3;
  expect(other, Refusal::kTarget, "looks for rank 3");
  other = fits;
  other.ring = 3;
  expect(other, Refusal::kRing, "ring order has the hash 3");
  other = fits;
  other.rank = 3;
  expect(other, Refusal::kOrder, "only lower ranks");
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
  frame.waiting.ranks = {0, 4};
  EXPECT_THAT(decode_control(encode(frame))->waiting.ranks, ElementsAre(0, 4));
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
  EXPECT_THAT(decode_control(wire).error().message, HasSubstr("version is 9, wanted 2"));
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
