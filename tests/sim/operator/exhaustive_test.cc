// Faults at the writes and events of every workload, one at a time: what is at rest at the end is
// what it is without the fault, and nothing on the way breaks an invariant. Every write and event
// of every workload under TRAINYARD_LONG_TESTS=1, else a sample of them (tests/support/extent.h).
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/extent.h"
#include "tests/support/sim/play.h"

namespace trainyard::sim {
namespace {

/// One write or event in so many is struck where not every one is.
constexpr int64_t kShare = 8;

class ExhaustiveTest : public testing::TestWithParam<Workload> {
 protected:
  void SetUp() override {
    calm_ = play(GetParam(), {});
    for (const std::string& violation : calm_.violations)
      ADD_FAILURE() << "undisturbed: " << violation;
  }

  /// Plays with one fault at each write in turn.
  void strike_every_write(Fault fault, bool standby = false) {
    int64_t struck = 0;
    for (int64_t at = 0; at < calm_.writes; ++at) {
      if (!is_struck(name_of(fault), at)) continue;
      ++struck;
      Disturbance disturbance;
      disturbance.standby = standby;
      disturbance.late_writers = fault == Fault::kFreeze;
      disturbance.faults = [=](WriteKind, int64_t index) {
        return index == at ? fault : Fault::kNone;
      };
      check(play(GetParam(), disturbance),
            std::string(name_of(fault)) + " at write " + std::to_string(at));
      if (HasFailure()) return;
    }
    EXPECT_GE(struck, calm_.writes / kShare);
  }

  void strike_every_event(EventWay way, const char* what) {
    int64_t struck = 0;
    for (int64_t at = 0; at < calm_.events; ++at) {
      if (!is_struck(what, at)) continue;
      ++struck;
      Disturbance disturbance;
      disturbance.events = [=](const std::string&, int64_t index) {
        return index == at ? way : EventWay::kPass;
      };
      check(play(GetParam(), disturbance), std::string(what) + " at event " + std::to_string(at));
      if (HasFailure()) return;
    }
    EXPECT_GE(struck, calm_.events / kShare);
  }

  static bool is_struck(std::string_view what, int64_t at) {
    return testing_support::in_sample(GetParam().name + std::string(what), at, kShare);
  }

  void check(const Played& played, const std::string& what) const {
    for (const std::string& violation : played.violations)
      ADD_FAILURE() << what << ": " << violation;
    if (!GetParam().racy) {
      EXPECT_EQ(played.rest, calm_.rest) << what;
      return;
    }
    EXPECT_EQ(played.rest.phase, calm_.rest.phase) << what;
    EXPECT_EQ(played.rest.members.size(), calm_.rest.members.size()) << what;
  }

  Played calm_;
};

TEST_P(ExhaustiveTest, AProcessMayEndBeforeAnyWrite) { strike_every_write(Fault::kDieBefore); }
TEST_P(ExhaustiveTest, AProcessMayEndBetweenAnyWriteAndItsAnswer) {
  strike_every_write(Fault::kDieAfter);
}
TEST_P(ExhaustiveTest, AnyRequestMayBeLost) { strike_every_write(Fault::kLoseRequest); }
TEST_P(ExhaustiveTest, AnyAnswerMayBeLost) { strike_every_write(Fault::kLoseAnswer); }
TEST_P(ExhaustiveTest, TheJobMayChangeBeforeAnyWrite) { strike_every_write(Fault::kRival); }
TEST_P(ExhaustiveTest, AnyWriteMayBeThrottled) { strike_every_write(Fault::kThrottled); }
TEST_P(ExhaustiveTest, AnyWriteMayMeetAnErrorOfTheServer) {
  strike_every_write(Fault::kServerError);
}
TEST_P(ExhaustiveTest, WatchesMayExpireAtAnyWrite) { strike_every_write(Fault::kExpireWatches); }
TEST_P(ExhaustiveTest, PodsMayBeSeenLateFromAnyWriteOn) { strike_every_write(Fault::kHoldPods); }
TEST_P(ExhaustiveTest, JobsMayBeSeenLateFromAnyWriteOn) { strike_every_write(Fault::kHoldJobs); }
TEST_P(ExhaustiveTest, TheStandbyMayTakeOverAfterAnyWrite) {
  strike_every_write(Fault::kHandOver, true);
}
TEST_P(ExhaustiveTest, AStandbyThatSawNoPodsMayTakeOverAfterAnyWrite) {
  strike_every_write(Fault::kHandOverStalePods, true);
}
TEST_P(ExhaustiveTest, AStandbyThatSawNoStatusMayTakeOverAfterAnyWrite) {
  strike_every_write(Fault::kHandOverStaleJobs, true);
}
TEST_P(ExhaustiveTest, ALeaderMayStandStillBeforeAnyWrite) {
  strike_every_write(Fault::kFreeze, true);
}
TEST_P(ExhaustiveTest, AnyEventMayBeMissed) {
  strike_every_event(EventWay::kExpire, "the watch's version is lost");
}
TEST_P(ExhaustiveTest, AnyWatchMayBeCut) { strike_every_event(EventWay::kCut, "the watch is cut"); }

INSTANTIATE_TEST_SUITE_P(Workloads, ExhaustiveTest, testing::ValuesIn(workloads()),
                         [](const auto& workload) { return workload.param.name; });

}  // namespace
}  // namespace trainyard::sim
