#include <numeric>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/checkpoint/lineage.h"
#include "worker/checkpoint/rectangle.h"
#include "worker/checkpoint/retention.h"
#include "worker/checkpoint/sealed_json.h"

namespace trainyard::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using Random = std::mt19937_64;

int64_t up_to(Random& random, int64_t most) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1));
}

// ---- Names -------------------------------------------------------------------------------------

TEST(DirectoryNameTest, OnlyTheCanonicalSpellingIsAName) {
  EXPECT_EQ(directory_name({3, 100}), "g3-step-0000000100");
  EXPECT_EQ(directory_name({0, 12345678901}), "g0-step-12345678901");
  for (const CheckpointId id : {CheckpointId{0, 0}, {7, 9999999999}, {123456, 10000000000}}) {
    EXPECT_EQ(parse_directory_name(directory_name(id)), id);
  }
  for (const char* name :
       {"", "g", "g3", "g3-step-", "g3-step-100", "g03-step-0000000100", "g3-step-00000000100",
        "g-1-step-0000000100", "g3-step--000000100", "3-step-0000000100", "g3-step-0000000100.tmp",
        "g+3-step-0000000100", "g99999999999999999999-step-0000000001", "G3-step-0000000100"}) {
    EXPECT_EQ(parse_directory_name(name), std::nullopt) << name;
  }
}

// ---- Seals -------------------------------------------------------------------------------------

TEST(SealedJsonTest, EveryChangedBitAndEveryCutIsFound) {
  const std::string sealed = seal_json("{\"a\": 1,\n\"text\": \"hello\"\n}");
  ASSERT_TRUE(check_seal(sealed, "x").has_value());
  for (size_t at = 0; at < sealed.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = sealed;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      EXPECT_FALSE(check_seal(changed, "x").has_value()) << at << " " << bit;
    }
    EXPECT_FALSE(check_seal(sealed.substr(0, at), "x").has_value()) << at;
  }
  EXPECT_THAT(check_seal(sealed + " ", "file.json").error().message, HasSubstr("file.json: "));
}

// ---- Rectangles --------------------------------------------------------------------------------

Rectangle random_part(Random& random, const std::vector<int64_t>& shape) {
  Rectangle part;
  for (const int64_t size : shape) {
    part.offset.push_back(up_to(random, size - 1));
    part.shape.push_back(1 + up_to(random, size - part.offset.back() - 1));
  }
  return part;
}

/// The elements of a rectangle as global indexes, row-major.
std::vector<int64_t> elements(const std::vector<int64_t>& shape, const Rectangle& part) {
  std::vector<int64_t> result = {0};
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    std::vector<int64_t> next;
    for (const int64_t base : result) {
      for (int64_t i = 0; i < part.shape[axis]; ++i) {
        next.push_back(base * shape[axis] + part.offset[axis] + i);
      }
    }
    result = std::move(next);
  }
  return result;
}

TEST(RectangleTest, RunsCopyExactlyWhatBothHaveInCommon) {
  Random random(1);
  for (int round = 0; round < 3000; ++round) {
    std::vector<int64_t> shape(static_cast<size_t>(up_to(random, 4)));
    for (int64_t& size : shape)
      size = 1 + up_to(random, 4);
    const Rectangle source = random_part(random, shape);
    const Rectangle destination = random_part(random, shape);
    const std::vector<int64_t> from = elements(shape, source);
    const std::vector<int64_t> wanted = elements(shape, destination);
    std::vector<int64_t> found(wanted.size(), -1);
    int64_t last_source = -1;
    ASSERT_TRUE(for_each_run(source, destination, [&](const checkpoint::Run& run) -> Status {
      EXPECT_GT(run.source, last_source);
      last_source = run.source + run.count - 1;
      for (int64_t i = 0; i < run.count; ++i) {
        found.at(static_cast<size_t>(run.destination + i)) =
            from.at(static_cast<size_t>(run.source + i));
      }
      return {};
    }));
    const std::set<int64_t> available(from.begin(), from.end());
    for (size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_EQ(found[i], available.contains(wanted[i]) ? wanted[i] : -1) << "round " << round;
    }
  }
}

TEST(RectangleTest, WholeRowsAreOneRun) {
  int runs = 0;
  ASSERT_TRUE(
      for_each_run({{4, 0, 0}, {4, 3, 5}}, {{0, 0, 0}, {9, 3, 5}}, [&](const checkpoint::Run& run) {
        ++runs;
        EXPECT_EQ(run.count, 60);
        EXPECT_EQ(run.destination, 60);
        return Status();
      }));
  EXPECT_EQ(runs, 1);
}

TEST(RectangleTest, ErrorOfAVisitEndsTheWalk) {
  int runs = 0;
  const Status status =
      for_each_run({{0, 0}, {3, 2}}, {{0, 0}, {3, 1}}, [&](const checkpoint::Run&) {
        ++runs;
        return Status(Error{ErrorCode::kIo, "stop"});
      });
  EXPECT_EQ(status.error().message, "stop");
  EXPECT_EQ(runs, 1);
}

TEST(RectangleTest, PartitionMustBeDisjointAndComplete) {
  const std::vector<int64_t> shape = {4, 6};
  const Rectangle top{{0, 0}, {2, 6}};
  const Rectangle left{{2, 0}, {2, 3}};
  const Rectangle right{{2, 3}, {2, 3}};
  EXPECT_TRUE(check_partition(shape, std::vector{right, top, left}));
  const auto message = [&](const std::vector<Rectangle>& parts) {
    return check_partition(shape, parts).error().message;
  };
  EXPECT_THAT(message({top, left}), HasSubstr("cover 18 of the 24"));
  EXPECT_THAT(message({top, left, left}), HasSubstr("[2,0]+[2,3] and [2,0]+[2,3] overlap"));
  // The right number of elements, but twice the same and a hole.
  EXPECT_THAT(message({top, {{1, 0}, {2, 6}}}), HasSubstr("overlap"));
  EXPECT_THAT(message({{{3, 0}, {2, 6}}}), HasSubstr("outside"));
  EXPECT_THAT(message({{{0}, {4}}}), HasSubstr("outside"));
  EXPECT_TRUE(check_partition({}, std::vector{Rectangle{}}));
  EXPECT_FALSE(check_partition({}, std::vector{Rectangle{}, Rectangle{}}));
  EXPECT_FALSE(check_partition(std::vector<int64_t>{0}, {}));
}

TEST(RectangleTest, APartitionNeedNotBeMadeOfCutsFromSideToSide) {
  const std::vector<int64_t> shape = {3, 3};
  std::vector<Rectangle> pinwheel = {
      {{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}};
  EXPECT_TRUE(check_partition(shape, pinwheel));
  for (Rectangle& part : pinwheel) {
    const Rectangle right = part;
    std::swap(part.shape[0], part.shape[1]);
    const bool same = part.shape == right.shape;
    EXPECT_EQ(check_partition(shape, pinwheel).has_value(), same);
    part = right;
  }
}

/// With every slice compared with every other this takes minutes.
TEST(RectangleTest, ManySlicesAlongAnyAxisAreCheckedQuickly) {
  constexpr int64_t kSlices = 16384;
  constexpr int kTensors = 48;
  const std::vector<int64_t> shape = {1, 1, kSlices, 2};
  std::vector<Rectangle> parts;
  for (int64_t i = 0; i < kSlices; ++i)
    parts.push_back({{0, 0, i, 0}, {1, 1, 1, 2}});
  for (int i = 0; i < kTensors; ++i)
    ASSERT_TRUE(check_partition(shape, parts));
  parts.back() = parts.front();
  EXPECT_THAT(check_partition(shape, parts).error().message, HasSubstr("overlap"));
  parts.pop_back();
  EXPECT_THAT(check_partition(shape, parts).error().message, HasSubstr("cover 32766 of the 32768"));
}

TEST(RectangleTest, HugeNumbersDoNotOverflow) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(checked_volume(std::vector<int64_t>{kMost}), std::nullopt);
  EXPECT_EQ(checked_volume(std::vector<int64_t>{int64_t{1} << 32, int64_t{1} << 31}), std::nullopt);
  EXPECT_EQ(checked_volume(std::vector<int64_t>{3, -1}), std::nullopt);
  EXPECT_FALSE(contains(std::vector<int64_t>{10}, {{kMost}, {1}}));
  EXPECT_FALSE(contains(std::vector<int64_t>{10}, {{1}, {kMost}}));
  EXPECT_FALSE(contains(std::vector<int64_t>{10}, {{10}, {1}}));
  EXPECT_TRUE(contains(std::vector<int64_t>{kMost}, {{0}, {kMost}}));
}

// ---- Lineage -----------------------------------------------------------------------------------

LineageRecords records_of(const std::vector<LineageRecord>& list) {
  LineageRecords records;
  for (const LineageRecord& record : list)
    records.emplace(record.generation, record);
  return records;
}

TEST(LineageRecordTest, IsReadBackAndAnyChangedBitIsFound) {
  for (const LineageRecord& record :
       {LineageRecord{7, "uid \"x\" é", 5, 1234567890123},
        LineageRecord{8, "u", 7, 3, "00ff00ff00ff00ff"}, LineageRecord{0, "", std::nullopt, -1}}) {
    const std::string text = encode(record);
    const auto decoded = decode_lineage(text);
    ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
    EXPECT_EQ(*decoded, record);
    for (size_t at = 0; at < text.size(); ++at) {
      std::string changed = text;
      changed[at] = static_cast<char>(changed[at] ^ 1);
      EXPECT_FALSE(decode_lineage(changed).has_value()) << at;
    }
  }
}

TEST(LineageRecordTest, RecordsThatMakeNoSenseAreRefusedByMember) {
  const auto error = [](const std::string& members) {
    return decode_lineage(
               seal_json("{\"format\":\"trainyard-lineage\",\"version\":1" + members + "}"))
        .error()
        .message;
  };
  EXPECT_THAT(error(""), HasSubstr("jobUid"));
  EXPECT_THAT(error(",\"jobUid\":\"u\",\"generation\":-1"), HasSubstr("generation"));
  EXPECT_THAT(error(",\"jobUid\":\"u\",\"generation\":18446744073709551615"),
              HasSubstr("generation"));
  EXPECT_THAT(error(",\"jobUid\":\"u\",\"generation\":2,\"parentGeneration\":2,\"forkStep\":1"),
              HasSubstr("below the generation"));
  EXPECT_THAT(error(",\"jobUid\":\"u\",\"generation\":2,\"parentGeneration\":1,\"forkStep\":-2"),
              HasSubstr("forkStep"));
  EXPECT_THAT(error(",\"jobUid\":\"u\",\"generation\":2,\"parentGeneration\":1,\"forkStep\":2,"
                    "\"branchId\":7"),
              HasSubstr("branchId"));
  EXPECT_THAT(decode_lineage(seal_json("{\"format\":\"other\"}")).error().message,
              HasSubstr("format"));
}

TEST(LineageTest, AcceptsAncestorsUpToEveryFork) {
  // 1 -> (at 100) 2 -> (at 150) 4; and (at 80) 3, another branch of 1; 5 -> 4 at 120, behind its
  // fork.
  const LineageRecords records = records_of({{1, "u", std::nullopt, -1},
                                             {2, "u", 1, 100},
                                             {3, "u", 1, 80},
                                             {4, "u", 2, 150},
                                             {5, "u", 4, 90}});
  const auto four = Lineage::of(4, records);
  ASSERT_TRUE(four.has_value());
  EXPECT_TRUE(four->accepts({4, 1'000'000}));
  EXPECT_TRUE(four->accepts({2, 150}));
  EXPECT_FALSE(four->accepts({2, 151}));
  EXPECT_TRUE(four->accepts({1, 100}));
  EXPECT_FALSE(four->accepts({1, 101}));
  EXPECT_FALSE(four->accepts({3, 80}));
  EXPECT_FALSE(four->accepts({5, 1}));
  EXPECT_FALSE(four->accepts({9, 1}));
  const auto five = Lineage::of(5, records);
  EXPECT_TRUE(five->accepts({4, 90}));
  EXPECT_FALSE(five->accepts({2, 91}));
  EXPECT_FALSE(five->accepts({1, 91}));
  EXPECT_TRUE(five->accepts({1, 90}));
}

TEST(LineageTest, GenerationWithoutARecordHasNoHistory) {
  const auto lineage = Lineage::of(7, records_of({{1, "u", std::nullopt, -1}}));
  ASSERT_TRUE(lineage.has_value());
  EXPECT_TRUE(lineage->empty());
  EXPECT_FALSE(lineage->accepts({7, 0}));
}

TEST(LineageTest, FreshStartUnderAParentAcceptsNothingOfIt) {
  const auto lineage =
      Lineage::of(2, records_of({{1, "u", std::nullopt, -1}, {2, "u", 1, kFromScratch}}));
  EXPECT_FALSE(lineage->accepts({1, 0}));
  EXPECT_TRUE(lineage->accepts({2, 0}));
}

TEST(LineageTest, NewestFirstIsOfCommittedOnesByStepThenByGeneration) {
  const LineageRecords records = records_of({{1, "u", std::nullopt, -1}, {2, "u", 1, 20}});
  const FoundDirectory found[] = {{{1, 10}, true}, {{1, 20}, true}, {{1, 30}, true},
                                  {{2, 20}, true}, {{2, 25}, true}, {{2, 30}, false},
                                  {{3, 99}, true}};
  EXPECT_THAT(newest_first(found, *Lineage::of(2, records)),
              ElementsAre(CheckpointId{2, 25}, CheckpointId{2, 20}, CheckpointId{1, 20},
                          CheckpointId{1, 10}));
}

TEST(LineageTest, NewestRecordedSkipsGenerationsThatNeverTrained) {
  const LineageRecords records = records_of({{1, "u", std::nullopt, -1}, {4, "u", 1, 20}});
  EXPECT_EQ(newest_recorded(records, 3), 1);
  EXPECT_EQ(newest_recorded(records, 4), 4);
  EXPECT_EQ(newest_recorded(records, 9), 4);
  EXPECT_EQ(newest_recorded(records, 0), std::nullopt);
  EXPECT_EQ(newest_recorded({}, 5), std::nullopt);
}

// ---- Retention ---------------------------------------------------------------------------------

TEST(RetentionTest, KeepsTheLastAndEveryNth) {
  const LineageRecords records = records_of({{1, "u", std::nullopt, -1}});
  std::vector<FoundDirectory> found;
  for (int64_t step = 10; step <= 100; step += 10)
    found.push_back({{1, step}, true});
  const auto removed = plan_retention(found, 1, *Lineage::of(1, records), {1}, 100, {2, 50});
  EXPECT_THAT(removed,
              UnorderedElementsAre(CheckpointId{1, 10}, CheckpointId{1, 20}, CheckpointId{1, 30},
                                   CheckpointId{1, 40}, CheckpointId{1, 60}, CheckpointId{1, 70},
                                   CheckpointId{1, 80}));
}

TEST(RetentionTest, OneAfterWhichAStepWasDoneAlwaysStays) {
  const LineageRecords records = records_of({{1, "u", std::nullopt, -1}});
  std::vector<FoundDirectory> found;
  for (int64_t step = 10; step <= 40; step += 10)
    found.push_back({{1, step}, true});
  const auto removed = [&](const RetentionPolicy& policy) {
    return plan_retention(found, 1, *Lineage::of(1, records), {1}, 40, policy);
  };
  EXPECT_THAT(removed({.keep_last = 1, .proven_step = 39}),
              UnorderedElementsAre(CheckpointId{1, 10}, CheckpointId{1, 20}));
  EXPECT_THAT(removed({.keep_last = 2, .proven_step = 15}),
              UnorderedElementsAre(CheckpointId{1, 20}));
  EXPECT_THAT(removed({.keep_last = 2, .proven_step = 39}),
              UnorderedElementsAre(CheckpointId{1, 10}, CheckpointId{1, 20}));
  EXPECT_THAT(removed({.keep_last = 1, .proven_step = -1}),
              UnorderedElementsAre(CheckpointId{1, 10}, CheckpointId{1, 20}, CheckpointId{1, 30}));
}

TEST(RetentionTest, TheBestOneStaysHoweverOld) {
  const LineageRecords records = records_of({{1, "u", std::nullopt, -1}});
  std::vector<FoundDirectory> found;
  for (int64_t step = 10; step <= 40; step += 10)
    found.push_back({{1, step}, true});
  const RetentionPolicy policy{.keep_last = 1, .best_step = 20};
  EXPECT_THAT(plan_retention(found, 1, *Lineage::of(1, records), {1}, 40, policy),
              UnorderedElementsAre(CheckpointId{1, 10}, CheckpointId{1, 30}));
}

TEST(RetentionTest, LeftoversGoButNotWhatIsBeingWritten) {
  const LineageRecords records = records_of({{1, "u", std::nullopt, -1}, {2, "u", 1, 20}});
  const std::vector<FoundDirectory> found = {
      {{1, 20}, true},   // accepted
      {{1, 30}, true},   // a zombie's, after the fork
      {{1, 15}, false},  // abandoned
      {{2, 25}, false},  // abandoned
      {{2, 40}, true},   // just committed
      {{2, 50}, false},  // being written
      {{3, 20}, true},   // younger than us: we are the zombie
  };
  EXPECT_THAT(plan_retention(found, 2, *Lineage::of(2, records), {1, 2, 3}, 40, {3, 0}),
              UnorderedElementsAre(CheckpointId{1, 30}, CheckpointId{1, 15}, CheckpointId{2, 25}));
}

TEST(RetentionTest, AnotherBranchAndUnreadableGenerationsStayWhatNeverTrainedGoes) {
  const LineageRecords records =
      records_of({{1, "u", std::nullopt, -1}, {2, "u", 1, 20}, {5, "u", 1, 20}});
  const std::vector<FoundDirectory> found = {
      {{2, 30}, true},  // a branch that is not our ancestor
      {{3, 30}, true},  // its record is damaged
      {{4, 20}, true},  // adopted, then died without a record
      {{5, 30}, true},
  };
  EXPECT_THAT(plan_retention(found, 5, *Lineage::of(5, records), {1, 2, 3, 5}, 30, {1, 0}),
              ElementsAre(CheckpointId{4, 20}));
}

/// Random histories: whatever is there, these hold.
TEST(RetentionTest, PropertiesHoldForRandomDirectories) {
  Random random(3);
  for (int round = 0; round < 4000; ++round) {
    LineageRecords records;
    std::set<int64_t> recorded;
    const int64_t generations = 1 + up_to(random, 5);
    for (int64_t g = 1; g <= generations; ++g) {
      if (up_to(random, 4) == 0) continue;
      LineageRecord record{g, "u", std::nullopt, kFromScratch};
      record.parent_generation = newest_recorded(records, g - 1);
      if (record.parent_generation) record.fork_step = up_to(random, 9);
      records.emplace(g, record);
      recorded.insert(g);
    }
    std::vector<FoundDirectory> found;
    for (int64_t g = 1; g <= generations + 1; ++g) {
      for (int64_t step = 0; step < 10; ++step) {
        if (up_to(random, 2) == 0) found.push_back({{g, step}, up_to(random, 3) != 0});
      }
    }
    const int64_t own = 1 + up_to(random, generations - 1);
    const auto lineage = Lineage::of(own, records);
    const RetentionPolicy policy{up_to(random, 3), up_to(random, 4)};
    const int64_t in_flight = up_to(random, 10);
    const auto removed = plan_retention(found, own, *lineage, recorded, in_flight, policy);
    const std::set<CheckpointId> gone(removed.begin(), removed.end());
    for (const FoundDirectory& directory : found) {
      if (directory.id.generation > own) {
        ASSERT_FALSE(gone.contains(directory.id)) << "younger";
      }
      if (directory.id.generation == own && directory.id.step >= in_flight) {
        ASSERT_FALSE(gone.contains(directory.id)) << "being written";
      }
      if (directory.id.generation < own && recorded.contains(directory.id.generation) &&
          !lineage->has(directory.id.generation)) {
        ASSERT_FALSE(gone.contains(directory.id)) << "another branch";
      }
    }
    const auto accepted = newest_first(found, *lineage);
    if (!accepted.empty()) {
      ASSERT_FALSE(gone.contains(accepted.front())) << "newest";
    }
    std::set<int64_t> steps_left;
    std::set<int64_t> steps_before;
    for (const CheckpointId& id : accepted) {
      steps_before.insert(id.step);
      if (!gone.contains(id)) steps_left.insert(id.step);
    }
    const auto wanted =
        std::min(steps_before.size(), static_cast<size_t>(std::max<int64_t>(1, policy.keep_last)));
    ASSERT_GE(steps_left.size(), wanted);
    // The kept ones are the newest ones.
    auto newest = steps_before.rbegin();
    for (size_t i = 0; i < wanted; ++i)
      ASSERT_TRUE(steps_left.contains(*newest++));
    for (const int64_t step : steps_before) {
      if (policy.keep_every_steps > 0 && step % policy.keep_every_steps == 0) {
        ASSERT_TRUE(steps_left.contains(step));
      }
    }
    // A second look finds nothing more to do.
    std::erase_if(found, [&](const FoundDirectory& d) { return gone.contains(d.id); });
    ASSERT_TRUE(plan_retention(found, own, *lineage, recorded, in_flight, policy).empty());
  }
}

}  // namespace
}  // namespace trainyard::checkpoint
