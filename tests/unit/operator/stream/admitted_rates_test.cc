// How much the agent of a pod may say, over however many streams.
#include "common/contract/progress_figures.h"
#include "tests/unit/operator/stream/admitted_transport.h"

namespace trainyard::stream {
namespace {

using testing::IsEmpty;
using testing::SizeIs;
using Kind = ServerEvent::Kind;

TEST_F(AdmittedTransportTest, OneThatSaysTooMuchIsClosedAndSilentForAWhile) {
  ASSERT_NO_FATAL_FAILURE(let_in(1));
  inner_.open(2, "other");
  ASSERT_THAT(take(1), SizeIs(1));
  for (int i = 0; i < 2 * AdmittedTransport::kMessagesAtOnce; ++i)
    inner_.say(1, heartbeat("uid-of-pod"));
  inner_.say(2, heartbeat("uid-of-other"));
  // The hello was one of them.
  const auto events = take(AdmittedTransport::kMessagesAtOnce + 1);
  ASSERT_THAT(events, SizeIs(AdmittedTransport::kMessagesAtOnce + 1));
  EXPECT_EQ(events[events.size() - 2].kind, Kind::kClosed);
  EXPECT_EQ(events.back().connection, 2U) << "the others are heard";
  EXPECT_TRUE(inner_.closed().contains(1));
  inner_.open(3, "pod");
  EXPECT_TRUE(is_closed(3));
  clock_.advance(AdmittedTransport::kSilence);
  ASSERT_NO_FATAL_FAILURE(let_in(4));
  EXPECT_FALSE(inner_.closed().contains(4));
}

TEST_F(AdmittedTransportTest, OneThatSaysItInFewWordsOfManyBytesIsClosed) {
  ASSERT_NO_FATAL_FAILURE(let_in(1));
  constexpr size_t kBytes = 1 << 20;
  constexpr size_t kFit = AdmittedTransport::kBytesAtOnce / kBytes - 1;  // with what is around them
  for (size_t i = 0; i < kFit + 2; ++i)
    inner_.say(1, long_words(kBytes));
  const auto events = take(kFit + 1);
  ASSERT_THAT(events, SizeIs(kFit + 1));
  EXPECT_EQ(events.back().kind, Kind::kClosed);
  EXPECT_TRUE(inner_.closed().contains(1));
}

TEST_F(AdmittedTransportTest, AnAgentOfTheMostRanksMaySayAllThatItHasToSay) {
  FromAgent message = heartbeat("uid-of-pod");
  for (int rank = 0; rank < 1024; ++rank) {
    auto& progress = *message.mutable_heartbeat()->add_ranks();
    progress.set_rank(100'000 + rank);
    progress.set_phase(3);
    progress.set_instruction_id(1000);
    for (size_t slot = contract::kFirstFigures; slot < contract::kFigures; ++slot)
      progress.add_further_figures(0.1);
    for (const auto set :
         {&coordination::RankProgress::set_step, &coordination::RankProgress::set_total_steps,
          &coordination::RankProgress::set_samples_consumed,
          &coordination::RankProgress::set_tokens_consumed,
          &coordination::RankProgress::set_checkpoint_step, &coordination::RankProgress::set_beats,
          &coordination::RankProgress::set_arrivals})
      (progress.*set)(int64_t{1} << 40);
    for (const auto set :
         {&coordination::RankProgress::set_loss, &coordination::RankProgress::set_gradient_norm,
          &coordination::RankProgress::set_learning_rate,
          &coordination::RankProgress::set_validation_loss,
          &coordination::RankProgress::set_step_seconds,
          &coordination::RankProgress::set_tokens_per_second,
          &coordination::RankProgress::set_work_seconds})
      (progress.*set)(0.1);
    progress.set_instruction("ALL_GATHER u100");
  }
  // Seven times a second; what is left is for counters, once.
  EXPECT_LT(7 * message.ByteSizeLong(), AdmittedTransport::kBytesPerSecond * 2 / 3);
}

TEST_F(AdmittedTransportTest, ComingAgainGivesNobodyMoreToSay) {
  ASSERT_NO_FATAL_FAILURE(let_in(1));
  constexpr auto kMost = static_cast<size_t>(AdmittedTransport::kMessagesAtOnce);
  for (size_t i = 1; i < kMost; ++i)
    inner_.say(1, heartbeat("uid-of-pod"));
  ASSERT_THAT(take(kMost - 1), SizeIs(kMost - 1));
  EXPECT_THAT(inner_.closed(), IsEmpty());
  inner_.end(1);
  ASSERT_THAT(take(1), SizeIs(1));
  inner_.open(2, "pod");
  inner_.say(2, hello("uid-of-pod", "pod", "job"));
  const auto events = take(2);
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].kind, Kind::kOpened);
  EXPECT_EQ(events[1].kind, Kind::kClosed);
  EXPECT_TRUE(inner_.closed().contains(2));
}

TEST_F(AdmittedTransportTest, AllOfASilencedPodsStreamsAreSilent) {
  reviews_.hold_up("pod/second");
  inner_.open(1, "pod");
  inner_.open(2, "pod/second");
  ASSERT_THAT(take(1), SizeIs(1));
  for (int i = 0; i <= AdmittedTransport::kMessagesAtOnce; ++i)
    inner_.say(1, heartbeat("uid-of-pod"));
  ASSERT_THAT(take(AdmittedTransport::kMessagesAtOnce + 1),
              SizeIs(AdmittedTransport::kMessagesAtOnce + 1));
  ASSERT_TRUE(inner_.closed().contains(1));
  reviews_.let_go("pod/second");
  EXPECT_TRUE(is_closed(2)) << "it was in review already";
  inner_.open(3, "pod/third");
  EXPECT_TRUE(is_closed(3)) << "with a token of its own";
  const size_t reviewed = reviews_.reviewed().size();
  inner_.open(4, "pod/third");
  EXPECT_TRUE(is_closed(4));
  EXPECT_EQ(reviews_.reviewed().size(), reviewed) << "which is known by now";
  clock_.advance(AdmittedTransport::kSilence);
  ASSERT_NO_FATAL_FAILURE(let_in(5));
}

TEST_F(AdmittedTransportTest, WhatAPodHasSaidIsForgottenOnceItMeansNothing) {
  ASSERT_NO_FATAL_FAILURE(let_in(1));
  for (int i = 1; i < AdmittedTransport::kMessagesAtOnce; ++i)
    inner_.say(1, heartbeat("uid-of-pod"));
  take(AdmittedTransport::kMessagesAtOnce - 1);
  clock_.advance(std::chrono::minutes(10));
  nothing_comes();
  EXPECT_EQ(transport_.counts().known_pods, 1) << "it has a stream";
  for (int i = 1; i < AdmittedTransport::kMessagesAtOnce; ++i)
    inner_.say(1, heartbeat("uid-of-pod"));
  take(AdmittedTransport::kMessagesAtOnce - 1);
  inner_.end(1);
  ASSERT_THAT(take(1), SizeIs(1));
  clock_.advance(std::chrono::seconds(20));
  nothing_comes();
  EXPECT_EQ(transport_.counts().known_pods, 1) << "it may come again";
  clock_.advance(std::chrono::seconds(21));
  nothing_comes();
  EXPECT_EQ(transport_.counts().known_pods, 0);
}

TEST_F(AdmittedTransportTest, AnAgentsOwnRateIsNeverTooMuch) {
  ASSERT_NO_FATAL_FAILURE(let_in(1));
  for (int i = 0; i < 20'000; ++i) {
    clock_.advance(std::chrono::milliseconds(100));
    inner_.say(1, heartbeat("uid-of-pod"));
    ASSERT_THAT(take(1), SizeIs(1));
  }
  EXPECT_THAT(inner_.closed(), IsEmpty());
}

}  // namespace
}  // namespace trainyard::stream
