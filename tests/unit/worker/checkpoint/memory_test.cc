// States in memory: what a slot gives back, and which of them a generation goes on from.
#include <algorithm>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/unique_fd.h"
#include "tests/unit/worker/checkpoint/job_directory.h"
#include "tests/unit/worker/checkpoint/memory_file_system.h"
#include "worker/checkpoint/memory_slots.h"
#include "worker/checkpoint/store.h"

namespace trainyard::checkpoint::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<StatePart> two_parts() {
  return {{"wte", TensorKind::kParameter, {4, 3}, {{1, 0}, {2, 3}}},
          {"wte", TensorKind::kFirstMoment, {4, 3}, {{1, 0}, {2, 3}}}};
}

/// A memory file as an agent holds it.
class MemorySlotsTest : public ::testing::Test {
 protected:
  MemorySlotsTest() : fd_(::memfd_create("states", MFD_CLOEXEC)) {}

  std::unique_ptr<MemorySlots> map(std::vector<StatePart> parts = two_parts(),
                                   const std::string& owner = "rank 0 of 1 of job j") {
    auto slots = MemorySlots::map(fd_.get(), std::move(parts), owner);
    EXPECT_TRUE(slots) << slots.error().message;
    return slots ? *std::move(slots) : nullptr;
  }

  /// A state whose values are step, step + 1 ...
  static void keep(MemorySlots& slots, int64_t step, int64_t generation = 1) {
    const auto slot = slots.begin();
    ASSERT_TRUE(slot) << slot.error().message;
    auto* const values = reinterpret_cast<float*>(slot->data());
    for (size_t i = 0; i < slot->size() / sizeof(float); ++i)
      values[i] = static_cast<float>(step + static_cast<int64_t>(i));
    const Status kept = slots.complete({.job_uid = "j",
                                        .generation = generation,
                                        .branch_id = "b",
                                        .step = step,
                                        .scalars = {{kOptimizerStepScalar, step}}});
    ASSERT_TRUE(kept) << kept.error().message;
  }

  static std::vector<int64_t> steps(const MemorySlots& slots) {
    std::vector<int64_t> steps;
    for (const MemoryOffer& offer : slots.offers())
      steps.push_back(offer.id.step);
    return steps;
  }

  const UniqueFd fd_;
};

TEST_F(MemorySlotsTest, AStateOutlivesWhoeverMadeIt) {
  EXPECT_THAT(map()->offers(), IsEmpty());
  keep(*map(), 41, 3);
  const auto slots = map();
  EXPECT_THAT(slots->offers(), ElementsAre(MemoryOffer{{3, 41}, "b"}));
  const auto state = slots->open({3, 41});
  ASSERT_TRUE(state) << state.error().message;
  EXPECT_EQ((*state)->manifest().step, 41);
  EXPECT_THAT((*state)->name(), HasSubstr("rank 0 of 1"));
  std::vector<float> row(3);
  ASSERT_TRUE((*state)->read("wte", TensorKind::kFirstMoment, {{2, 0}, {1, 3}}, row));
  EXPECT_THAT(row, ElementsAre(41 + 9, 41 + 10, 41 + 11));
  const Status outside = (*state)->read("wte", TensorKind::kParameter, {{0, 0}, {1, 3}}, row);
  ASSERT_FALSE(outside);
  EXPECT_EQ(outside.error().code, ErrorCode::kInvalidData) << "the rank holds no row 0";
  EXPECT_EQ((*state)->read("h", TensorKind::kParameter, {{0, 0}, {1, 3}}, row).error().code,
            ErrorCode::kNotFound);
  EXPECT_EQ(slots->open({3, 40}).error().code, ErrorCode::kNotFound);
}

TEST_F(MemorySlotsTest, TheNewestStateStaysWhileTheNextIsCopied) {
  const auto slots = map();
  for (int64_t step = 1; step <= 7; ++step) {
    keep(*slots, step);
    ASSERT_TRUE(slots->begin());
    EXPECT_THAT(steps(*slots), Contains(step)) << "killed here, the rank finds it";
  }
}

TEST_F(MemorySlotsTest, WhatTheDiskReadsIsNotOverwritten) {
  const auto slots = map();
  keep(*slots, 1);
  std::shared_ptr<const void> read = slots->hold();
  EXPECT_TRUE(slots->held());
  for (int64_t step = 2; step <= 6; ++step) {
    keep(*slots, step);
    EXPECT_THAT(steps(*slots), Contains(1));
    EXPECT_THAT(steps(*slots), Contains(step));
  }
  read.reset();
  EXPECT_FALSE(slots->held());
  keep(*slots, 7);
  keep(*slots, 8);
  keep(*slots, 9);
  EXPECT_THAT(steps(*slots), ::testing::Not(Contains(1)));
}

TEST_F(MemorySlotsTest, AChangedBitIsFound) {
  keep(*map(), 5);
  const auto slots = map();
  for (int slot = 0; slot < MemorySlots::kSlots; ++slot)
    slots->data(slot)[7] ^= std::byte{4};
  const auto state = slots->open({1, 5});
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().code, ErrorCode::kInvalidData);
  EXPECT_THAT(state.error().message, HasSubstr("rank 0 of 1 of job j, g1-step-0000000005"));
}

TEST_F(MemorySlotsTest, AStateOfAnotherLayoutOrOwnerIsNotOffered) {
  std::vector<StatePart> others = two_parts();
  others[0].where = {{0, 0}, {2, 3}};
  keep(*map(), 5);
  EXPECT_THAT(map(others)->offers(), IsEmpty());
  EXPECT_THAT(map()->offers(), IsEmpty()) << "what was there is gone";
  keep(*map(), 6);
  EXPECT_THAT(map(two_parts(), "rank 1 of 2 of job j")->offers(), IsEmpty());
}

/// A memory file with copies of a ward, whose states have the same shape.
class WardSlotsTest : public MemorySlotsTest {
 protected:
  std::unique_ptr<MemorySlots> map_with_ward(const std::string& ward = "rank 1 of 2 of job j") {
    auto slots = MemorySlots::map(fd_.get(), two_parts(), "rank 0 of 2 of job j",
                                  shape_of(two_parts(), ward));
    EXPECT_TRUE(slots) << slots.error().message;
    return slots ? *std::move(slots) : nullptr;
  }

  /// A round in which this rank's own newest state comes back as the ward's.
  static void go_round(MemorySlots& slots, int64_t step, bool everywhere = true) {
    keep(slots, step);
    const PackedState own = slots.lend();
    const std::span<std::byte> copy = slots.begin_ward();
    ASSERT_EQ(copy.size(), own.data.size());
    std::copy(own.data.begin(), own.data.end(), copy.begin());
    ASSERT_TRUE(slots.complete_ward(std::string(own.description), own.description));
    slots.settle(everywhere);
  }

  static std::vector<int64_t> ward_steps(const MemorySlots& slots) {
    std::vector<int64_t> steps;
    for (const MemoryOffer& offer : slots.ward_offers())
      steps.push_back(offer.id.step);
    return steps;
  }
};

TEST_F(WardSlotsTest, WhatAllHaveStaysUntilTheyHaveTheNext) {
  const auto slots = map_with_ward();
  go_round(*slots, 1);
  go_round(*slots, 2, false);
  EXPECT_THAT(ward_steps(*slots), ElementsAre(2, 1)) << "some rank has no copy of step 2";
  keep(*slots, 3);
  slots->lend();
  slots->begin_ward();
  EXPECT_THAT(ward_steps(*slots), ElementsAre(1)) << "killed here, all go on from step 1";
  // States for checkpoints alone, while the copy is under way.
  for (int64_t step = 4; step <= 6; ++step) {
    keep(*slots, step);
    EXPECT_THAT(steps(*slots), ::testing::IsSupersetOf({int64_t{1}, int64_t{3}, step}));
  }
}

TEST_F(WardSlotsTest, WhatIsGoneOnFromStaysUntilThereIsACopyOfAnother) {
  go_round(*map_with_ward(), 7);
  const auto slots = map_with_ward();
  ASSERT_TRUE(slots->open({1, 7}));
  for (int64_t step = 8; step <= 11; ++step)
    keep(*slots, step);
  slots->begin_ward();
  EXPECT_THAT(steps(*slots), ::testing::IsSupersetOf({int64_t{7}, int64_t{11}}));
  EXPECT_THAT(ward_steps(*slots), ElementsAre(7));
  slots->forget_copies();
  for (int64_t step = 12; step <= 14; ++step)
    keep(*slots, step);
  EXPECT_THAT(steps(*slots), ::testing::Not(Contains(7))) << "no copies are made any more";
}

TEST_F(WardSlotsTest, WhatAllHaveCopiesOfStaysUntilTheStateThatIsGoneOnFromIsCopied) {
  {
    const auto slots = map_with_ward();
    go_round(*slots, 7);
    keep(*slots, 9);  // killed here: the copy of step 9 has not come
  }
  const auto slots = map_with_ward();
  ASSERT_TRUE(slots->open({1, 9}));
  slots->keep_copied({1, 7});
  slots->lend();
  slots->begin_ward();
  EXPECT_THAT(ward_steps(*slots), ElementsAre(7)) << "a node lost here, all go on from step 7";
  slots->settle(false);
  keep(*slots, 10);
  keep(*slots, 11);
  EXPECT_THAT(steps(*slots), Contains(7));
  go_round(*slots, 12);
  keep(*slots, 13);
  keep(*slots, 14);
  EXPECT_THAT(steps(*slots), ::testing::Not(Contains(7))) << "all have copies of step 12";
}

TEST_F(WardSlotsTest, ACopyIsComparedWithItsHashAndItsRoundWhenItComes) {
  const auto slots = map_with_ward();
  go_round(*slots, 5);
  const std::string stale(slots->lend().description);
  keep(*slots, 6);
  const PackedState own = slots->lend();
  for (const std::string& expected : {std::string(own.description), stale, std::string("{}")}) {
    const std::span<std::byte> copy = slots->begin_ward();
    std::copy(own.data.begin(), own.data.end(), copy.begin());
    if (expected == own.description) copy[7] ^= std::byte{4};
    const Status whole = slots->complete_ward(own.description, expected);
    ASSERT_FALSE(whole);
    EXPECT_EQ(whole.error().code, ErrorCode::kInvalidData);
    EXPECT_THAT(whole.error().message, HasSubstr("rank 0 of 2 of job j: the copy of g1-step-"));
    EXPECT_THAT(ward_steps(*slots), ElementsAre(5));
  }
}

TEST_F(WardSlotsTest, CopiesOfAnotherWardAreNotOffered) {
  go_round(*map_with_ward(), 7);
  const auto slots = map_with_ward("rank 2 of 3 of job j");
  EXPECT_THAT(slots->ward_offers(), IsEmpty());
  EXPECT_THAT(steps(*slots), ElementsAre(7)) << "its own are what they were";
  EXPECT_FALSE(slots->ward_state({1, 7}));
}

TEST_F(WardSlotsTest, ACopyThatComesBackTakesTheOldestSlot) {
  const auto slots = map_with_ward();
  go_round(*slots, 5);
  const std::shared_ptr<const void> read = slots->hold();
  go_round(*slots, 6);
  go_round(*slots, 7);
  const auto again = map_with_ward();
  ASSERT_THAT(steps(*again), ElementsAre(7, 6, 5));
  const PackedState copy = *again->ward_state({1, 7});
  const std::string description(copy.description);
  const auto room = again->begin();
  ASSERT_TRUE(room);
  EXPECT_THAT(steps(*again), ElementsAre(7, 6));
  std::copy(copy.data.begin(), copy.data.end(), room->begin());
  EXPECT_EQ(again->complete_with({1, 6}, description).error().code, ErrorCode::kInvalidData);
  EXPECT_THAT(steps(*again), ElementsAre(7, 6)) << "it is of step 7";
}

/// Ranks that begin generation 2 or later of a job whose checkpoints lie in `files_`.
class MemoryGenerationTest : public ::testing::Test {
 protected:
  struct Began {
    StartedGeneration started;
    std::vector<std::string> restored;  ///< what rank 0 was told to restore, in order
  };

  std::string branch_of(int64_t generation) {
    const auto stored = load_lineage(files_, job_.root());
    return stored && stored->records.contains(generation) ? stored->records.at(generation).branch_id
                                                          : "";
  }

  /// `offers`: each rank's own, by rank. `damaged`: the step whose state rank 1 finds damaged in
  /// memory. `kept`: by rank, of the rank before it.
  Began begin(int64_t generation, const std::vector<std::vector<MemoryOffer>>& offers,
              int64_t damaged = -1, const std::vector<std::vector<MemoryOffer>>& kept = {}) {
    const auto offered = [&](int rank) {
      RankOffers given{.own = offers[static_cast<size_t>(rank)]};
      if (kept.empty()) return given;
      const int size = static_cast<int>(offers.size());
      given.ward = (rank + size - 1) % size;
      given.kept = kept[static_cast<size_t>(rank)];
      return given;
    };
    Began began;
    run_ranks(static_cast<int>(offers.size()), [&](CommitGroup& group) {
      std::vector<std::string> restored;
      const auto started = start_generation(
          files_, job_.plan(generation, generation - 1), group,
          [&](CheckpointReader& reader) -> Status {
            restored.push_back("disk " + std::to_string(reader.manifest().step));
            return {};
          },
          {.offers = offered(group.rank()), .restore = [&](const CheckpointId& id) -> Status {
             restored.push_back("memory " + std::to_string(id.step));
             if (group.rank() != 1 || id.step != damaged) return {};
             return Error{ErrorCode::kInvalidData, "not those that were hashed"};
           }});
      ASSERT_TRUE(started) << started.error().message;
      if (group.rank() == 0) began = {*started, restored};
    });
    return began;
  }

  std::vector<CheckpointId> on_disk() {
    std::vector<CheckpointId> ids;
    const auto all = find_checkpoints(files_, job_.root());
    for (const FoundDirectory& found : *all)
      ids.push_back(found.id);
    return ids;
  }

  MemoryFileSystem files_;
  JobDirectory job_{"/job"};
};

TEST_F(MemoryGenerationTest, GoesOnFromTheNewestStateThatAllRanksHave) {
  ASSERT_EQ(job_.train(files_, {.ranks = 2, .steps = {10}}), "");
  const std::string branch = branch_of(1);
  const auto began =
      begin(2, {{{{1, 13}, branch}, {{1, 12}, branch}}, {{{1, 12}, branch}, {{1, 11}, branch}}});
  EXPECT_THAT(began.restored, ElementsAre("memory 12"));
  EXPECT_EQ(began.started.memory_step, 12);
  EXPECT_EQ(began.started.record.fork_step, 12);
  ASSERT_TRUE(began.started.resumed_from);
  EXPECT_EQ(began.started.resumed_from->id, (CheckpointId{2, 10})) << "to fall back on";
  const auto reader = open_newest_good(files_, job_.root(), 2, Verify::kAll, nullptr);
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ((*reader)->manifest().id(), (CheckpointId{2, 10}));
}

TEST_F(MemoryGenerationTest, ADamagedStateIsPassedOverForTheDisk) {
  ASSERT_EQ(job_.train(files_, {.ranks = 2, .steps = {10}}), "");
  const std::vector<MemoryOffer> offers = {{{1, 12}, branch_of(1)}};
  const auto began = begin(2, {offers, offers}, 12);
  EXPECT_THAT(began.restored, ElementsAre("memory 12", "disk 10"));
  EXPECT_FALSE(began.started.memory_step);
  EXPECT_EQ(began.started.record.fork_step, 10);
  EXPECT_THAT(began.started.notes,
              ElementsAre("state in memory of step 12: rank 1: not those that were hashed"));
}

TEST_F(MemoryGenerationTest, ADamagedStateWithoutACheckpointMeansABeginningAnew) {
  ASSERT_EQ(job_.train(files_, {.ranks = 2}), "");
  const std::vector<MemoryOffer> offers = {{{1, 12}, branch_of(1)}};
  const auto began = begin(2, {offers, offers}, 12);
  EXPECT_THAT(began.restored, ElementsAre("memory 12"));
  EXPECT_FALSE(began.started.memory_step);
  EXPECT_FALSE(began.started.resumed_from);
}

TEST_F(MemoryGenerationTest, WhatOneRankHasNotIsNotUsed) {
  ASSERT_EQ(job_.train(files_, {.ranks = 2, .steps = {10}}), "");
  const auto began = begin(2, {{{{1, 12}, branch_of(1)}}, {}});
  EXPECT_THAT(began.restored, ElementsAre("disk 10"));
}

TEST_F(MemoryGenerationTest, WhatARankHasLostItsKeeperOffers) {
  ASSERT_EQ(job_.train(files_, {.ranks = 3, .steps = {10}}), "");
  const std::string branch = branch_of(1);
  const MemoryOffer newer{{1, 15}, branch};
  const MemoryOffer copied{{1, 13}, branch};
  const std::vector<MemoryOffer> both = {newer, copied};
  // Rank 1 is new. Its keeper, rank 2, has the state that all have sent and not yet the next one.
  const auto began = begin(2, {both, {}, both}, -1, {{copied}, {}, {copied}});
  EXPECT_THAT(began.restored, ElementsAre("memory 13"));
  EXPECT_EQ(began.started.record.fork_step, 13);
}

TEST_F(MemoryGenerationTest, TheNewestStateThatAllHaveCopiesOfIsNamed) {
  ASSERT_EQ(job_.train(files_, {.ranks = 2, .steps = {10}}), "");
  const std::string branch = branch_of(1);
  const MemoryOffer newest{{1, 15}, branch};
  const MemoryOffer copied{{1, 13}, branch};
  const std::vector<MemoryOffer> both = {newest, copied};
  // The round of step 15 had ended on one rank alone.
  const auto began = begin(2, {both, both}, -1, {{copied}, both});
  EXPECT_THAT(began.restored, ElementsAre("memory 15"));
  EXPECT_EQ(began.started.copied, (CheckpointId{1, 13}));
  EXPECT_FALSE(begin(3, {both, both}, -1, {{}, both}).started.copied) << "rank 0's pod is new";
  EXPECT_FALSE(begin(4, {both, {newest}}, -1, {{copied}, both}).started.copied);
  EXPECT_EQ(begin(5, {both, both}, -1, {both, both}).started.copied, newest.id);
}

TEST_F(MemoryGenerationTest, ACopyOfAnotherRankDoesNotStandInForALostOne) {
  ASSERT_EQ(job_.train(files_, {.ranks = 3, .steps = {10}}), "");
  const std::vector<MemoryOffer> offers = {{{1, 13}, branch_of(1)}};
  // Rank 1 is new and its keeper is, too: rank 0 has the copy of rank 2.
  EXPECT_THAT(begin(2, {offers, {}, {}}, -1, {offers, {}, {}}).restored, ElementsAre("disk 10"));
}

TEST_F(MemoryGenerationTest, AStaleCopyIsNotUsed) {
  ASSERT_EQ(job_.train(files_, {.ranks = 2, .steps = {10}}), "");
  const std::string first = branch_of(1);
  ASSERT_EQ(job_.train(files_, {.generation = 2, .parent = 1, .ranks = 2}), "");
  const std::string second = branch_of(2);
  // The keeper of rank 0 still has what the first generation did after step 10.
  const MemoryOffer stale{{1, 14}, first};
  const MemoryOffer good{{2, 12}, second};
  EXPECT_THAT(begin(3, {{}, {stale, good}}, -1, {{}, {stale, good}}).restored,
              ElementsAre("memory 12"));
}

TEST_F(MemoryGenerationTest, ANewerCheckpointComesFirst) {
  ASSERT_EQ(job_.train(files_, {.ranks = 2, .steps = {10, 20}}), "");
  const std::vector<MemoryOffer> offers = {{{1, 12}, branch_of(1)}};
  EXPECT_THAT(begin(2, {offers, offers}).restored, ElementsAre("disk 20"));
}

TEST_F(MemoryGenerationTest, AStateThatTheHistoryHasLeftBehindIsNotUsed) {
  ASSERT_EQ(job_.train(files_, {.ranks = 2, .steps = {10}}), "");
  const std::string first = branch_of(1);
  // The second generation went back to the disk: what the first did after step 10 is no more.
  ASSERT_EQ(job_.train(files_, {.generation = 2, .parent = 1, .ranks = 2}), "");
  const std::vector<MemoryOffer> stale = {{{1, 12}, first}};
  EXPECT_THAT(begin(3, {stale, stale}).restored, ElementsAre("disk 10"));
}

TEST_F(MemoryGenerationTest, AStateOfAnotherCopyOfTheRunIsNotUsed) {
  ASSERT_EQ(job_.train(files_, {.ranks = 2, .steps = {10}}), "");
  const std::vector<MemoryOffer> theirs = {{{1, 12}, "0123456789abcdef"}};
  EXPECT_THAT(begin(2, {theirs, theirs}).restored, ElementsAre("disk 10"));
}

TEST_F(MemoryGenerationTest, NeedsNoCheckpoint) {
  ASSERT_EQ(job_.train(files_, {.ranks = 2}), "");
  const std::vector<MemoryOffer> offers = {{{1, 3}, branch_of(1)}};
  const auto began = begin(2, {offers, offers});
  EXPECT_THAT(began.restored, ElementsAre("memory 3"));
  EXPECT_FALSE(began.started.resumed_from);
  EXPECT_THAT(on_disk(), IsEmpty());
  // It died before it had another one.
  EXPECT_THAT(begin(3, {offers, offers}).restored, ElementsAre("memory 3"));
}

}  // namespace
}  // namespace trainyard::checkpoint::testing
