#include "tests/unit/operator/stream/admitted_transport.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <thread>

namespace trainyard::stream {
namespace {

using testing::IsEmpty;
using testing::SizeIs;
using Kind = ServerEvent::Kind;

TEST_F(AdmittedTransportTest, WhoeverIsKnownComesThroughWithWhatWasSaidMeanwhile) {
  inner_.open(1, "pod");
  inner_.say(1, hello("uid-of-pod", "pod", "job"));
  inner_.say(1, heartbeat("uid-of-pod"));
  const auto events = take(3);
  ASSERT_THAT(events, SizeIs(3));
  EXPECT_EQ(events[0].kind, Kind::kOpened);
  EXPECT_TRUE(events[0].credential.empty()) << "nobody behind needs the token";
  EXPECT_TRUE(events[1].message->has_hello());
  EXPECT_TRUE(events[2].message->has_heartbeat());
  EXPECT_EQ(transport_.counts().open, 1);
  inner_.end(1);
  EXPECT_EQ(take(1).at(0).kind, Kind::kClosed);
  EXPECT_EQ(transport_.counts().open, 0);
}

TEST_F(AdmittedTransportTest, WhoeverIsNotIsNeverSeen) {
  inner_.open(1, "forged");
  inner_.say(1, hello("uid", "pod", "job"));
  EXPECT_TRUE(is_closed(1));
  inner_.open(2, "");
  EXPECT_TRUE(is_closed(2));
  inner_.open(3, "stray");
  EXPECT_TRUE(is_closed(3));
  inner_.say(3, hello("uid-of-stray", "stray", "job"));
  inner_.end(3);
  EXPECT_THAT(transport_.take(std::chrono::milliseconds(50)), IsEmpty());
  EXPECT_EQ(transport_.counts().refused, 3);
}

TEST_F(AdmittedTransportTest, WhatCouldBeNoAgentsTokenCostsNoReview) {
  ConnectionId id = 0;
  for (int i = 0; i < 10'000; ++i)
    inner_.open(++id, i % 2 == 0 ? "nonsense/" + std::to_string(i) : "stray");
  EXPECT_TRUE(is_closed(id));
  EXPECT_EQ(transport_.counts().refused, 10'000);
  EXPECT_THAT(reviews_.reviewed(), IsEmpty());
  ASSERT_NO_FATAL_FAILURE(let_in(++id));
}

TEST_F(AdmittedTransportTest, AJobThatGoesDuringTheReviewHasNoAgents) {
  reviews_.hold_up("pod");
  inner_.open(1, "pod");
  nothing_comes();
  jobs_are_gone_ = true;
  reviews_.let_go("pod");
  EXPECT_TRUE(is_closed(1));
}

TEST_F(AdmittedTransportTest, OnlySoManyStreamsOfAPodWait) {
  ConnectionId id = 0;
  for (; id < AdmittedTransport::kReviewers; ++id) {
    reviews_.hold_up("slow-" + std::to_string(id));
    inner_.open(id, "slow-" + std::to_string(id));
  }
  nothing_comes();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (reviews_.reviewed().size() < AdmittedTransport::kReviewers &&
         std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  for (int i = 0; i < AdmittedTransport::kMaxWaitingOfCaller; ++i)
    inner_.open(++id, "pod/" + std::to_string(i));
  nothing_comes();
  EXPECT_THAT(inner_.closed(), IsEmpty());
  inner_.open(++id, "pod/one-more");
  EXPECT_TRUE(is_closed(id));
  inner_.open(++id, "other");
  inner_.end(id - 2);  // one of those that wait
  inner_.open(++id, "pod/another");
  nothing_comes();
  EXPECT_THAT(inner_.closed(), testing::ElementsAre(id - 2));
  inner_.open(++id, "pod/the-agents-own", "10.0.0.2");
  nothing_comes();
  EXPECT_FALSE(inner_.closed().contains(id))
      << "others who claim to be the pod take no place of it";
}

TEST_F(AdmittedTransportTest, OnlySoOftenAPodComes) {
  constexpr size_t kAtOnce = AdmittedTransport::kCallsAtOnce;
  ConnectionId id = 0;
  for (size_t i = 0; i < kAtOnce; ++i) {
    inner_.open(++id, "forged");
    ASSERT_TRUE(is_closed(id));
  }
  inner_.open(++id, "forged");
  EXPECT_TRUE(is_closed(id));
  EXPECT_THAT(reviews_.reviewed(), SizeIs(kAtOnce)) << "the server is not asked";
  inner_.open(++id, "forged", "10.0.0.2");
  EXPECT_TRUE(is_closed(id));
  EXPECT_THAT(reviews_.reviewed(), SizeIs(kAtOnce + 1)) << "who comes from elsewhere is";
  clock_.advance(std::chrono::seconds(1));
  inner_.open(++id, "forged");
  EXPECT_TRUE(is_closed(id));
  EXPECT_THAT(reviews_.reviewed(), SizeIs(kAtOnce + 2));
}

TEST_F(AdmittedTransportTest, TheServerIsAskedOnlySoOften) {
  constexpr size_t kAtOnce = AdmittedTransport::kReviewsAtOnce;
  constexpr size_t kMore = 10;
  for (size_t i = 0; i < kAtOnce + kMore; ++i)
    inner_.open(i, "pod-" + std::to_string(i));
  ASSERT_THAT(take(kAtOnce), SizeIs(kAtOnce));
  nothing_comes();
  EXPECT_THAT(reviews_.reviewed(), SizeIs(kAtOnce));
  clock_.advance(std::chrono::seconds(1));
  ASSERT_THAT(take(kMore), SizeIs(kMore));
}

TEST_F(AdmittedTransportTest, NobodySpeaksForAnother) {
  const FromAgent lies[] = {hello("uid-of-other", "pod", "job"),
                            hello("uid-of-pod", "other", "job"),
                            hello("uid-of-pod", "pod", "another-job"), heartbeat("uid-of-other")};
  ConnectionId id = 0;
  for (const FromAgent& lie : lies) {
    inner_.open(++id, "pod");
    ASSERT_EQ(take(1).at(0).kind, Kind::kOpened);
    inner_.say(id, lie);
    const auto events = take(1);
    ASSERT_THAT(events, SizeIs(1)) << lie.DebugString();
    EXPECT_EQ(events[0].kind, Kind::kClosed);
    EXPECT_TRUE(inner_.closed().contains(id));
    inner_.say(id, heartbeat("uid-of-pod"));
  }
  EXPECT_THAT(transport_.take(std::chrono::milliseconds(50)), IsEmpty());
  EXPECT_EQ(transport_.counts().open, 0);
}

TEST_F(AdmittedTransportTest, OneThatDoesNotWaitIsClosed) {
  // Nothing is taken before all of it is there, so that no verdict comes between.
  inner_.open(1, "pod");
  for (size_t i = 0; i <= AdmittedTransport::kMaxHeld; ++i)
    inner_.say(1, hello("uid-of-pod", "pod", "job"));
  EXPECT_TRUE(is_closed(1));
  inner_.open(2, "pod");
  for (int i = 0; i <= AdmittedTransport::kMessagesAtOnceBeforeReview; ++i)
    inner_.say(2, heartbeat("uid-of-pod"));
  EXPECT_TRUE(is_closed(2));
}

FromAgent heartbeat_of_step(int64_t step, bool with_counters = false, int ranks = 1) {
  FromAgent message = heartbeat("uid-of-pod");
  for (int rank = 0; rank < ranks; ++rank) {
    auto& progress = *message.mutable_heartbeat()->add_ranks();
    progress.set_step(step);
    if (with_counters) progress.mutable_counters();
  }
  return message;
}

TEST_F(AdmittedTransportTest, AnAgentMayWaitForAsLongAsItsReviewTakes) {
  reviews_.hold_up("pod");
  inner_.open(1, "pod");
  inner_.say(1, hello("uid-of-pod", "pod", "job"));
  for (int64_t step = 0; step < 1000; ++step) {
    clock_.advance(std::chrono::milliseconds(150));
    inner_.say(1, heartbeat_of_step(step, step % 100 == 0));
    // One that fills what is kept is left out, and no fault.
    if (step == 500) inner_.say(1, heartbeat_of_step(step, true, 10'000));
    ASSERT_THAT(transport_.take(Duration::zero()), IsEmpty());
  }
  EXPECT_THAT(inner_.closed(), IsEmpty());
  reviews_.let_go("pod");
  const auto events = take(4);
  ASSERT_THAT(events, SizeIs(4)) << "the newest heartbeat, and the newest with counters";
  EXPECT_TRUE(events[1].message->has_hello());
  EXPECT_EQ(events[2].message->heartbeat().ranks(0).step(), 900);
  EXPECT_EQ(events[3].message->heartbeat().ranks(0).step(), 999);
}

TEST_F(AdmittedTransportTest, WhoIsNotKnownYetCannotFillTheMemory) {
  constexpr auto kMost = static_cast<size_t>(AdmittedTransport::kMaxHeldBytes);
  constexpr auto kRoom = static_cast<size_t>(AdmittedTransport::kMaxHeldBytesOfAll);
  reviews_.hold_up("pod");
  inner_.open(1, "pod");
  inner_.say(1, long_words(kMost));
  ASSERT_TRUE(is_closed(1));
  // Each says less than one may; all of them together more than there is room for.
  ConnectionId id = 1;
  const auto another = [&] {
    const std::string pod = "pod-" + std::to_string(++id);
    reviews_.hold_up(pod);
    inner_.open(id, pod);
    inner_.say(id, long_words(kMost / 2));
    EXPECT_THAT(transport_.take(Duration::zero()), IsEmpty());
    return !inner_.closed().contains(id);
  };
  size_t kept = 0;
  while (kept * kMost / 2 < kRoom && another())
    ++kept;
  EXPECT_LT(kept * kMost / 2, kRoom);
  EXPECT_GT(kept * kMost / 2, kRoom * 9 / 10);
  EXPECT_THAT(inner_.closed(), testing::ElementsAre(1, id)) << "those who were first stay";
  inner_.end(2);
  EXPECT_TRUE(another()) << "where one goes there is room for another";
  EXPECT_FALSE(another());
}

TEST_F(AdmittedTransportTest, WhoHasGoneIsNotReviewed) {
  for (int i = 0; i < AdmittedTransport::kReviewers; ++i)
    reviews_.hold_up("slow-" + std::to_string(i));
  ConnectionId id = 0;
  for (int i = 0; i < AdmittedTransport::kReviewers; ++i)
    inner_.open(++id, "slow-" + std::to_string(i));
  nothing_comes();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (reviews_.reviewed().size() < AdmittedTransport::kReviewers &&
         std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  inner_.open(100, "gone");
  inner_.end(100);
  inner_.open(101, "pod");
  nothing_comes();
  reviews_.let_all_go();
  bool came = false;
  for (const ServerEvent& event : take(AdmittedTransport::kReviewers + 1))
    came = came || event.connection == 101;
  EXPECT_TRUE(came);
  EXPECT_THAT(reviews_.reviewed(), testing::Contains("pod"));
  EXPECT_THAT(reviews_.reviewed(), testing::Not(testing::Contains("gone")));
}

TEST_F(AdmittedTransportTest, APodHasOneStreamItsNewest) {
  ASSERT_NO_FATAL_FAILURE(let_in(1));
  inner_.open(2, "pod");
  const auto events = take(2);
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].connection, 1U);
  EXPECT_EQ(events[0].kind, Kind::kClosed);
  EXPECT_EQ(events[1].connection, 2U);
  EXPECT_EQ(events[1].kind, Kind::kOpened);
  EXPECT_THAT(inner_.closed(), testing::ElementsAre(1));
  EXPECT_EQ(transport_.counts().open, 1);
  // What comes late of the older one ends nothing of the newer one.
  inner_.say(1, heartbeat("uid-of-pod"));
  inner_.end(1);
  inner_.say(2, heartbeat("uid-of-pod"));
  const auto late = take(1);
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_EQ(late[0].connection, 2U);
  inner_.open(3, "pod");
  EXPECT_EQ(take(2).at(0).connection, 2U);
}

TEST_F(AdmittedTransportTest, TheNewestIsTheOneThatCameLastHoweverLongItsReviewTook) {
  reviews_.hold_up("pod/dead");
  inner_.open(5, "pod/dead");
  inner_.open(6, "pod");
  ASSERT_THAT(take(1), SizeIs(1));
  reviews_.let_go("pod/dead");
  EXPECT_TRUE(is_closed(5));
  EXPECT_FALSE(inner_.closed().contains(6));
  EXPECT_EQ(transport_.counts().open, 1);
}

TEST_F(AdmittedTransportTest, RefusalsDoNotFloodTheLog) {
  ConnectionId id = 0;
  const auto refuse = [&](int count) {
    for (int i = 0; i < count; ++i)
      inner_.open(++id, "");
    ASSERT_TRUE(is_closed(id));
  };
  const auto lines = [&] {
    std::ifstream log(folder_.path() / "log");
    const std::string text{std::istreambuf_iterator<char>(log), {}};
    return std::pair(std::count(text.begin(), text.end(), '\n'), text);
  };
  refuse(1000);
  EXPECT_EQ(lines().first, AdmittedTransport::kRefusalsLoggedAtOnce);
  clock_.advance(std::chrono::seconds(2));
  refuse(1);
  EXPECT_EQ(lines().first, AdmittedTransport::kRefusalsLoggedAtOnce + 1);
  EXPECT_THAT(lines().second,
              testing::HasSubstr(std::to_string(1000 - AdmittedTransport::kRefusalsLoggedAtOnce)))
      << "how many were not told";
  EXPECT_EQ(transport_.counts().refused, 1001);
}

}  // namespace
}  // namespace trainyard::stream
