#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "tests/support/temporary_directory.h"
#include "worker/trace/overlap.h"
#include "worker/trace/recorder.h"
#include "worker/trace/trace_file.h"

namespace trainyard::trace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Json = nlohmann::json;

Span stretch(Activity activity, int64_t begin_ns, int64_t end_ns) {
  return {.activity = activity, .begin_ns = begin_ns, .end_ns = end_ns};
}

Span step_span(int64_t step, int64_t begin_ns, int64_t end_ns) {
  return {.activity = Activity::kStep, .step = step, .begin_ns = begin_ns, .end_ns = end_ns};
}

Span collective(int64_t begin_ns, int64_t end_ns) {
  return {.activity = Activity::kCollective,
          .begin_ns = begin_ns,
          .end_ns = end_ns,
          .sequence = 4,
          .bytes = 64,
          .operation = "all_reduce"};
}

const std::vector<Span>& of(const Spans& spans, Track track) {
  return spans[static_cast<size_t>(track)];
}

TEST(OverlapTest, CountsCommunicationOutsideOfWaitsAsHidden) {
  // Communication in [0, 100) and [150, 250), the two collectives of the first overlapping; the
  // step waits in [80, 120), [240, 245) and [248, 400): 20 + 5 + 2 of 200 ns are exposed.
  const std::vector<Span> collectives = {collective(150, 250), collective(0, 60),
                                         collective(40, 100)};
  const std::vector<Span> step = {stretch(Activity::kCommunicationWait, 80, 120),
                                  stretch(Activity::kCommunicationWait, 248, 400),
                                  stretch(Activity::kCommunicationWait, 240, 245),
                                  stretch(Activity::kForward, 0, 400)};
  const Overlap overlap = overlap_of(collectives, step);
  EXPECT_EQ(overlap.communication_ns, 200);
  EXPECT_EQ(overlap.exposed_ns, 27);
  EXPECT_DOUBLE_EQ(overlap.hidden(), 1 - 27.0 / 200.0);
}

TEST(OverlapTest, IsZeroWithoutCommunication) {
  const std::vector<Span> step = {stretch(Activity::kCommunicationWait, 0, 10)};
  EXPECT_EQ(overlap_of({}, step).hidden(), 0);
  EXPECT_EQ(overlap_of({}, step).exposed_ns, 0);
}

TEST(RecorderTest, KeepsTheNewestSteps) {
  Recorder recorder(2);
  for (int64_t step = 0; step < 5; ++step) {
    const int64_t at = 100 * step;
    recorder.add(Track::kStep, stretch(Activity::kForward, at + 10, at + 20));
    recorder.add(Track::kDataGroup, collective(at + 15, at + 40));
    recorder.add(Track::kStep, step_span(step, at, at + 90));
  }
  const Spans spans = recorder.newest();
  ASSERT_EQ(of(spans, Track::kStep).size(), 4u);
  EXPECT_EQ(of(spans, Track::kStep)[1].step, 3);
  EXPECT_EQ(of(spans, Track::kStep)[3].step, 4);
  EXPECT_EQ(of(spans, Track::kDataGroup).size(), 2u);
  EXPECT_THAT(of(spans, Track::kCheckpoint), IsEmpty());
}

TEST(RecorderTest, LeavesOutAStepOfWhichTheRingLostParts) {
  // Two spans a step in a ring of five: of step 2 only the span of the step itself is left.
  Recorder recorder(10, 5);
  for (int64_t step = 0; step < 5; ++step) {
    const int64_t at = 100 * step;
    recorder.add(Track::kStep, stretch(Activity::kForward, at + 10, at + 20));
    recorder.add(Track::kStep, step_span(step, at, at + 90));
  }
  const Spans spans = recorder.newest();
  ASSERT_EQ(of(spans, Track::kStep).size(), 4u);
  EXPECT_EQ(of(spans, Track::kStep).front().begin_ns, 310);
}

TEST(RecorderTest, LeavesOutAStepOfWhichAnotherTrackLostParts) {
  Recorder recorder(10, 4);
  recorder.add(Track::kStep, step_span(0, 0, 90));
  for (int64_t i = 0; i < 6; ++i)
    recorder.add(Track::kDataGroup, collective(100 + 10 * i, 105 + 10 * i));
  recorder.add(Track::kStep, step_span(1, 100, 190));
  recorder.add(Track::kStep, step_span(2, 200, 290));
  const Spans spans = recorder.newest();
  ASSERT_EQ(of(spans, Track::kStep).size(), 1u);
  EXPECT_EQ(of(spans, Track::kStep).front().step, 2);
}

TEST(RecorderTest, IsEmptyBeforeAWholeStep) {
  Recorder recorder(3);
  recorder.add(Track::kStep, stretch(Activity::kForward, 10, 20));
  EXPECT_THAT(of(recorder.newest(), Track::kStep), IsEmpty());
}

class TraceFileTest : public testing::Test {
 protected:
  Json read(const std::filesystem::path& path) {
    const auto text = read_file(path, 1 << 20);
    EXPECT_TRUE(text.has_value());
    return Json::parse(*text);
  }
  Spans two_steps() {
    Recorder recorder(5);
    recorder.add(Track::kStep, {.activity = Activity::kForward,
                                .instruction = 7,
                                .micro_batch = 1,
                                .layer = 3,
                                .step = 41,
                                .begin_ns = 1'000'010,
                                .end_ns = 1'000'910});
    recorder.add(Track::kStep, step_span(41, 1'000'000, 1'001'000));
    recorder.add(Track::kDataGroup, collective(1'000'100, 1'000'300));
    return recorder.newest();
  }
  const testing_support::TemporaryDirectory directory_;
};

TEST_F(TraceFileTest, WritesCompleteEventsInMicroseconds) {
  ASSERT_TRUE(write_rank_trace(directory_.path(), {.rank = 2, .generation = 5}, two_steps()));
  const Json trace = read(directory_.path() / "g5-rank-2.json");
  EXPECT_EQ(trace["otherData"]["generation"], 5);
  EXPECT_EQ(trace["otherData"]["ranks"][0]["communicationNanos"], 200);
  Json forward;
  for (const Json& event : trace["traceEvents"]) {
    if (event["name"] == "forward m1 l3") forward = event;
  }
  EXPECT_EQ(forward["ph"], "X");
  EXPECT_EQ(forward["pid"], 2);
  EXPECT_EQ(forward["tid"], 0);
  EXPECT_DOUBLE_EQ(forward["ts"].get<double>(), 1000.010);
  EXPECT_DOUBLE_EQ(forward["dur"].get<double>(), 0.900);
  EXPECT_EQ(forward["args"]["instruction"], 7);
  EXPECT_EQ(forward["args"]["step"], 41);
  EXPECT_FALSE(forward["args"].contains("bytes"));
}

TEST_F(TraceFileTest, AGroupIsATrackAndAllOfThemAreCommunication) {
  Spans spans = two_steps();
  spans[static_cast<size_t>(Track::kShardGroup)] = {collective(1'000'200, 1'000'500)};
  spans[static_cast<size_t>(Track::kReplicaGroup)] = {collective(1'000'600, 1'000'700)};
  spans[static_cast<size_t>(Track::kCheckpointGroup)] = {collective(1'000'800, 1'000'900)};
  ASSERT_TRUE(write_rank_trace(directory_.path(), {.rank = 2, .generation = 5}, spans));
  const Json trace = read(directory_.path() / "g5-rank-2.json");
  EXPECT_EQ(trace["otherData"]["ranks"][0]["communicationNanos"], 400 + 100);
  std::map<int, std::string> tracks;
  for (const Json& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") tracks[event["tid"]] = event["args"]["name"];
  }
  const std::map<int, std::string> wanted = {{0, "training step"},
                                             {1, "collectives (data group)"},
                                             {2, "collectives (checkpoint group)"},
                                             {4, "collectives (shard group)"},
                                             {5, "collectives (replica group)"}};
  EXPECT_EQ(tracks, wanted) << "a track that nobody wrote to is left out";
}

TEST_F(TraceFileTest, MergesTheNewestGenerationByRank) {
  ASSERT_TRUE(write_rank_trace(directory_.path(), {.rank = 0, .generation = 9}, two_steps()));
  ASSERT_TRUE(write_rank_trace(directory_.path(), {.rank = 10, .generation = 10}, two_steps()));
  ASSERT_TRUE(write_rank_trace(directory_.path(), {.rank = 2, .generation = 10}, two_steps()));
  std::vector<std::string> notes;
  const auto merged = merge_traces(directory_.path(), directory_.path() / "all.json", &notes);
  ASSERT_TRUE(merged.has_value());
  EXPECT_THAT(notes, IsEmpty());
  EXPECT_EQ(merged->generation, 10);
  ASSERT_EQ(merged->ranks.size(), 2u);
  EXPECT_EQ(merged->ranks[0].rank, 2);
  EXPECT_EQ(merged->ranks[1].rank, 10);
  EXPECT_EQ(merged->ranks[1].steps, 1);
  EXPECT_EQ(merged->ranks[1].overlap.communication_ns, 200);
  const Json trace = read(directory_.path() / "all.json");
  const Json one = read(directory_.path() / "g10-rank-2.json");
  EXPECT_EQ(trace["traceEvents"].size(), 2 * one["traceEvents"].size());
  EXPECT_EQ(trace["otherData"]["ranks"].size(), 2u);
}

TEST_F(TraceFileTest, LeavesOutADamagedFileAndSaysSo) {
  ASSERT_TRUE(write_rank_trace(directory_.path(), {.rank = 0, .generation = 1}, two_steps()));
  std::ofstream(directory_.path() / "g1-rank-1.json") << "{\"traceEvents\":[\n{\"ph\":";
  std::vector<std::string> notes;
  const auto merged = merge_traces(directory_.path(), directory_.path() / "all.json", &notes);
  ASSERT_TRUE(merged.has_value());
  EXPECT_EQ(merged->ranks.size(), 1u);
  EXPECT_THAT(notes, ElementsAre(HasSubstr("g1-rank-1.json")));
}

TEST_F(TraceFileTest, FindsNothingWhereNobodyTraced) {
  std::vector<std::string> notes;
  const auto merged =
      merge_traces(directory_.path() / "no", directory_.path() / "all.json", &notes);
  ASSERT_FALSE(merged.has_value());
  EXPECT_EQ(merged.error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace trainyard::trace
