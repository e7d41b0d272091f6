#include "worker/program/simulate.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/program/cuts.h"

namespace trainyard::engine {
namespace {

using testing::Cut;
using ::testing::HasSubstr;
using testing::kCuts;
using testing::kStage0;
using testing::kStage3;
using testing::lowering_of;
using testing::one_forward_one_backward;
using testing::one_stage_schedule;
using Kind = InstructionKind;

const testing::UnitLayers kUnits = {{3}, {1, 2}, {0, 3}};

/// One rank for each number of micro-batches.
std::vector<RankProgram> ranks_of(const Schedule& schedule, Lowering lowering,
                                  const std::vector<int>& micro_batches) {
  std::vector<RankProgram> ranks;
  for (const int own : micro_batches) {
    lowering.micro_batches = own;
    ranks.push_back({.program = lower(schedule, lowering),
                     .micro_batches = own,
                     .rank = static_cast<int>(ranks.size())});
  }
  return ranks;
}

using ScheduleMaker = Schedule (*)(const layout::StageMap&, int, int);

/// One pipeline.
std::vector<RankProgram> pipeline_of(ScheduleMaker schedule, Lowering lowering, int micro_batches) {
  std::vector<RankProgram> ranks;
  lowering.micro_batches = micro_batches;
  for (int pp = 0; pp < lowering.stages.ranks(); ++pp) {
    lowering.at = {.pp = pp};
    ranks.push_back({.program = lower(schedule(lowering.stages, micro_batches, pp), lowering),
                     .micro_batches = micro_batches,
                     .at = lowering.at,
                     .rank = pp});
  }
  return ranks;
}

/// The same without loops.
RankProgram unrolled(const RankProgram& rank) {
  RankProgram flat = rank;
  flat.program = testing::listed(rank.program);
  return flat;
}

/// Which collective an instruction waits for: of which kinds and which unit (-1: all), beside those
/// of no unit.
std::pair<std::vector<Kind>, int> awaited(const Instruction& i) {
  switch (i.kind) {
    case Kind::kAccumulate:
    case Kind::kAllReduce:
      return {{Kind::kReduce}, i.unit};
    case Kind::kRound:
      return {{Kind::kAllReduce}, i.unit};
    case Kind::kReduceControl:
      return {{Kind::kReduce, Kind::kAllReduce}, -1};
    case Kind::kFree:
      return {{Kind::kGather}, i.unit};
    case Kind::kOptimize:
      return {{Kind::kReduceControl, Kind::kRound}, i.unit};
    default:
      return {};
  }
}

/// Where every rank stands once one of them hangs in an instruction: by a slower way than
/// simulate()'s. A collective is the how-manieth of its kind and unit.
std::vector<size_t> standing(const std::vector<RankProgram>& ranks, const Lowering& lowering,
                             size_t hung, size_t hung_at) {
  using Name = std::pair<Kind, int>;
  std::vector<size_t> at(ranks.size(), 0);
  std::vector<std::map<Name, int>> begun(ranks.size());
  const auto complete = [&](size_t rank, const Name& name) {
    return std::all_of(begun.begin(), begun.end(),
                       [&](auto& other) { return other[name] >= begun[rank][name]; });
  };
  const auto may_run = [&](size_t rank, const Instruction& i) {
    if (i.layer >= 0) {
      for (int unit = 0; unit < lowering.layout->units(); ++unit) {
        const std::vector<int>& layers = lowering.layout->unit(unit).layers;
        const bool used = std::find(layers.begin(), layers.end(), i.layer) != layers.end();
        if (used && !complete(rank, {Kind::kGather, unit})) return false;
      }
    }
    const auto [kinds, of_unit] = awaited(i);
    for (const Kind kind : kinds) {
      for (int unit = -1; unit < lowering.layout->units(); ++unit) {
        if ((of_unit < 0 || unit < 0 || unit == of_unit) && !complete(rank, {kind, unit}))
          return false;
      }
    }
    return true;
  };
  for (bool moves = true; std::exchange(moves, false);) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      while (at[rank] < ranks[rank].program.size()) {
        const Instruction i = ranks[rank].program[at[rank]];
        if ((rank == hung && at[rank] == hung_at) || !may_run(rank, i)) break;
        ++begun[rank][{i.kind, i.unit}];
        ++at[rank];
        moves = true;
      }
    }
  }
  return at;
}

TEST(SimulateTest, WhoeverWaitsIsLaterThanTheRankThatHangs) {
  int judged = 0;
  for (const Cut& cut : kCuts) {
    for (const auto& schedule : {one_stage_schedule(2), forward_schedule(2)}) {
      const Lowering lowering = lowering_of(4, kUnits, cut);
      const auto ranks = ranks_of(schedule, lowering, {1, 2, 0});
      const auto simulation = simulate(ranks, lowering);
      ASSERT_TRUE(simulation) << simulation.error().message;
      for (size_t hung = 0; hung < ranks.size(); ++hung) {
        for (size_t at = 0; at < ranks[hung].program.size(); ++at) {
          const auto places = standing(ranks, lowering, hung, at);
          ASSERT_EQ(places[hung], at) << "it does not wait for itself";
          for (size_t rank = 0; rank < ranks.size(); ++rank) {
            if (rank == hung || places[rank] == ranks[rank].program.size()) continue;
            ++judged;
            EXPECT_GT(simulation->level[rank][places[rank]], simulation->level[hung][at])
                << "rank " << rank << " at " << to_string(ranks[rank].program[places[rank]])
                << ", rank " << hung << " hangs in " << to_string(ranks[hung].program[at]);
          }
        }
      }
    }
  }
  EXPECT_GT(judged, 1000);
}

TEST(SimulateTest, RoundsThatAreLeftOutAreAsThoseThatRun) {
  int shortened = 0;
  for (const Cut& cut : kCuts) {
    for (const auto& schedule : {one_stage_schedule(23), forward_schedule(23)}) {
      for (const std::vector<int>& own : std::vector<std::vector<int>>{{23}, {22, 23}, {0, 23}}) {
        const Lowering lowering = lowering_of(4, kUnits, cut);
        int64_t ran = 0;
        const Costs costs{
            .seconds =
                [&ran](auto&, const Instruction& i) {
                  ++ran;
                  return i.layer >= 0 ? 1.0 : 0.25;
                },
            .bytes_sent = [](auto&, const Instruction& i) { return i.unit >= 0 ? 8 : 0; }};
        const auto folded = ranks_of(schedule, lowering, own);
        std::vector<RankProgram> flat;
        for (const RankProgram& rank : folded)
          flat.push_back(unrolled(rank));
        const auto few = simulate(folded, lowering, costs);
        const int64_t ran_of_few = std::exchange(ran, 0);
        const auto all = simulate(flat, lowering, costs);
        if (ran_of_few < ran / 2) ++shortened;
        ASSERT_TRUE(few && all);
        EXPECT_EQ(few->level_max, all->level_max);
        EXPECT_EQ(few->in_flight_max, all->in_flight_max);
        EXPECT_EQ(few->bytes_sent, all->bytes_sent);
        for (size_t rank = 0; rank < flat.size(); ++rank) {
          EXPECT_DOUBLE_EQ(few->end_seconds[rank], all->end_seconds[rank]);
          ASSERT_EQ(folded[rank].program.size(), flat[rank].program.size());
          for (size_t id = 0; id < flat[rank].program.size(); ++id)
            ASSERT_EQ(few->level[rank][id], all->level[rank][id]) << id;
        }
      }
    }
  }
  EXPECT_GE(shortened, std::ssize(kCuts));
}

/// A pipeline whose stages have so many layers, and a unit each.
Lowering uneven(const std::vector<int>& stage_layers, int zero_stage) {
  std::vector<int> ends;
  std::vector<layout::Unit> units;
  for (const int layers : stage_layers) {
    layout::Unit unit{.stages = {static_cast<int>(ends.size())}};
    for (int i = 0; i < layers; ++i)
      unit.layers.push_back((ends.empty() ? 0 : ends.back()) + i);
    ends.push_back(unit.layers.back() + 1);
    units.insert(units.begin(), unit);
  }
  return lowering_of(ends, units,
                     {"pipeline", {.pp = static_cast<int>(ends.size()), .fsdp = 2}, zero_stage});
}

/// That a simulation says the same of programs with loops and without, with seconds and levels
/// alone; what part of the instructions it has run.
double judged_alike(const std::vector<RankProgram>& folded, const Lowering& lowering) {
  std::vector<RankProgram> flat;
  for (const RankProgram& rank : folded)
    flat.push_back(unrolled(rank));
  int64_t ran = 0;
  const Costs costs{.seconds =
                        [&ran](auto&, const Instruction& i) {
                          ++ran;
                          return i.layer >= 0 && i.peer < 0 ? 1.0 : 0.25;
                        },
                    .bytes_sent = [](auto&, const Instruction& i) { return i.peer >= 0 ? 8 : 1; }};
  const auto all = simulate(flat, lowering, costs);
  const int64_t ran_of_all = std::exchange(ran, 0);
  const auto few = simulate(folded, lowering, costs);
  const auto untimed = simulate(folded, lowering);
  if (!few || !all || !untimed) {
    ADD_FAILURE() << (all ? few.error().message : all.error().message);
    return 0;
  }
  EXPECT_EQ(few->bytes_sent, all->bytes_sent);
  for (const Simulation* found : {&*few, &*untimed}) {
    EXPECT_EQ(found->level_max, all->level_max);
    EXPECT_EQ(found->in_flight_max, all->in_flight_max);
    for (size_t rank = 0; rank < flat.size(); ++rank) {
      EXPECT_EQ(folded[rank].program.size(), flat[rank].program.size());
      size_t same = 0;
      for (size_t id = 0; id < flat[rank].program.size(); ++id)
        same += found->level[rank][id] == all->level[rank][id] ? 1 : 0;
      EXPECT_EQ(same, flat[rank].program.size());
    }
  }
  for (size_t rank = 0; rank < flat.size(); ++rank)
    EXPECT_NEAR(few->end_seconds[rank], all->end_seconds[rank], 1e-6);
  return static_cast<double>(ran) / static_cast<double>(ran_of_all);
}

// Stages that take unequally long get in step once the slowest has held up all before it.
TEST(SimulateTest, RoundsOfPipelinesThatAreLeftOutAreAsThoseThatRun) {
  for (const auto& layers : std::vector<std::vector<int>>{
           {3, 3}, {2, 5}, {5, 2}, {2, 2, 1}, {2, 4, 9}, {9, 4, 2}, {2, 7, 2, 1}}) {
    for (const int zero_stage : {1, 2, 3}) {
      for (const ScheduleMaker schedule : {gpipe, one_f_one_b, zero_bubble_h1, naive}) {
        const Lowering lowering = uneven(layers, zero_stage);
        SCOPED_TRACE(std::to_string(layers.size()) + " stages, ZeRO " + std::to_string(zero_stage));
        const double ran = judged_alike(pipeline_of(schedule, lowering, 60), lowering);
        // Forward, a stage that has the loss alone only receives, and runs ahead.
        const bool runs_ahead = schedule == gpipe && layers.back() == 1;
        EXPECT_EQ(ran < 0.75, !runs_ahead) << ran;
      }
    }
  }
  const Lowering long_stages = uneven({20, 20, 20, 20}, 3);
  EXPECT_LT(judged_alike(pipeline_of(gpipe, long_stages, 500), long_stages), 0.75);
  // The first stages repeat what the last, which have fewer in flight, do not.
  const Lowering many = uneven(std::vector<int>(16, 2), 2);
  judged_alike(pipeline_of(one_f_one_b, many, 12), many);
}

// All micro-batches go through a rank's first stage before any goes through its second, for which
// it waits for the last rank's first.
TEST(SimulateTest, EvaluationsOfSeveralStagesAreJudgedAsTheyRun) {
  for (const auto& [ranks, per_rank, micro_batches] : std::vector<std::tuple<int, int, int>>{
           {12, 2, 12}, {14, 3, 14}, {9, 3, 9}, {3, 2, 30}, {2, 3, 40}}) {
    for (const int zero_stage : {1, 2, 3}) {
      std::vector<int> ends;
      std::vector<layout::Unit> units;
      for (int stage = 0; stage < ranks * per_rank; ++stage) {
        units.insert(units.begin(), {.layers = {stage}, .stages = {stage % ranks}});
        ends.push_back(stage + 1);
      }
      Lowering lowering =
          lowering_of(ends, units, {"interleaved", {.pp = ranks, .fsdp = 2}, zero_stage});
      lowering.stages.per_rank = per_rank;
      SCOPED_TRACE(std::to_string(ranks) + " ranks, ZeRO " + std::to_string(zero_stage));
      judged_alike(pipeline_of(evaluation_schedule, lowering, micro_batches), lowering);
    }
  }
}

TEST(SimulateTest, AProgramThatListsOneRoundTooManyIsFound) {
  const Lowering lowering = lowering_of(4, kUnits);
  auto ranks = ranks_of(one_stage_schedule(23), lowering, {23, 23});
  for (RankProgram& rank : ranks) {
    std::vector<ProgramLoop> loops = rank.program.loops();
    ++loops.at(0).times;
    rank.program = StepProgram(rank.program.listed(), loops);
  }
  const auto simulation = simulate(ranks, lowering);
  ASSERT_FALSE(simulation);
  EXPECT_THAT(simulation.error().message, HasSubstr("no such micro-batch"));
}

/// What is said of ranks after a change to the last one's program.
std::string said_after(std::vector<RankProgram> ranks, const Lowering& lowering,
                       const std::function<void(std::vector<Instruction>&)>& change) {
  std::vector<Instruction> program = ranks.back().program.listed();
  change(program);
  ranks.back().program = program;
  const auto simulation = simulate(ranks, lowering);
  return simulation ? "nothing" : simulation.error().message;
}

TEST(SimulateTest, FindsAnEvaluationThatOneRankLeaves) {
  // It has no micro-batch, and no part in the gathers of the others either.
  const Lowering lowering = lowering_of(4, kUnits, kStage3);
  const auto ranks = ranks_of(forward_schedule(2), lowering, {2, 0});
  EXPECT_THAT(
      said_after(ranks, lowering,
                 [](auto& program) { program = {{.kind = Kind::kReduceControl}}; }),
      HasSubstr("rank 0, instruction 2 (F m0 l0): waits for GATHER u2, which rank 1 does not "
                "begin: it ends: deadlock"));
  EXPECT_THAT(said_after(ranks, lowering, [](auto& program) { program.pop_back(); }),
              HasSubstr("rank 1: REDUCE_CONTROL is missing"));
}

TEST(SimulateTest, FindsCollectivesThatDifferThoughNobodyWaitsForThem) {
  const Lowering lowering = lowering_of(4, kUnits);
  const auto ranks = ranks_of(one_stage_schedule(1), lowering, {1, 1});
  EXPECT_THAT(said_after(ranks, lowering,
                         [](auto& program) {
                           // The last two updates and gathers.
                           std::swap(program[program.size() - 4], program[program.size() - 2]);
                           std::swap(program[program.size() - 3], program[program.size() - 1]);
                         }),
              HasSubstr("(GATHER u0): rank 0 begins GATHER u1 instead: deadlock"));
}

TEST(SimulateTest, FindsAUnitReducedByARankThatDoesNotHoldIt) {
  // Two stages of two layers; each is to reduce what its own layers add to.
  const Lowering lowering = lowering_of({2, 4},
                                        {{.layers = {3}, .stages = {1}},
                                         {.layers = {2}, .stages = {1}},
                                         {.layers = {0, 1}, .stages = {0}}},
                                        {"pipeline", {.pp = 2}, 1});
  const std::vector<RankProgram> ranks = pipeline_of(naive, lowering, 1);
  const auto good = simulate(ranks, lowering);
  EXPECT_TRUE(good) << good.error().message;
  const auto insert = [](Kind kind, int layer, int unit) {
    return [=](std::vector<Instruction>& program) {
      program.insert(
          program.begin(),
          {.kind = kind, .micro_batch = layer < 0 ? -1 : 0, .layer = layer, .unit = unit});
    };
  };
  EXPECT_THAT(said_after(ranks, lowering, insert(Kind::kReduce, -1, 2)),
              HasSubstr("rank 1, instruction 0 (REDUCE u2): the rank does not hold the unit"));
  EXPECT_THAT(said_after(ranks, lowering, insert(Kind::kForward, 1, -1)),
              HasSubstr("rank 1, instruction 0 (F m0 l1): the rank does not hold the layer"));
}

TEST(SimulateTest, BothStagesThatShareATableAddItUp) {
  const Lowering lowering = lowering_of({2, 4, 6},
                                        {{.layers = {3}, .stages = {1}},
                                         {.layers = {1}, .stages = {0}},
                                         {.layers = {0, 5}, .stages = {0, 2}}},
                                        {"pipeline", {.pp = 3, .fsdp = 2}, 1});
  const std::vector<RankProgram> ranks = pipeline_of(naive, lowering, 1);
  const auto good = simulate(ranks, lowering);
  EXPECT_TRUE(good) << good.error().message;
  EXPECT_THAT(said_after(ranks, lowering,
                         [](auto& program) {
                           std::erase_if(program, [](const Instruction& i) {
                             return i.kind == Kind::kAllReduce || i.kind == Kind::kRound;
                           });
                         }),
              HasSubstr("rank 2, instruction 9 (REDUCE_CONTROL): before every unit is reduced "
                        "and rounded"));
}

TEST(SimulateTest, GathersAloneAreAProgram) {
  std::vector<Instruction> gathers;
  for (int unit = 0; unit < 3; ++unit)
    gathers.push_back({.kind = Kind::kGather, .unit = unit});
  const RankProgram ranks[] = {{.program = gathers}, {.program = gathers, .rank = 1}};
  const Lowering lowering = lowering_of(4, kUnits);
  const auto simulation = simulate(ranks, lowering);
  ASSERT_TRUE(simulation) << simulation.error().message;
  EXPECT_EQ(simulation->level_max, 3);
  EXPECT_THAT(said_after({ranks[0], ranks[1]}, lowering, [](auto& program) { program.pop_back(); }),
              HasSubstr("rank 1: GATHER u2 is missing"));
  EXPECT_THAT(said_after({ranks[0], ranks[1]}, lowering_of(4, kUnits, kStage0), [](auto&) {}),
              HasSubstr("(GATHER u0): each rank has all of it"));
}

TEST(SimulateTest, CountsMicroBatchesInFlight) {
  const Lowering lowering = lowering_of(4, kUnits);
  const auto in_flight = [&](const Schedule& schedule, int micro_batches) {
    const auto simulation = simulate(ranks_of(schedule, lowering, {micro_batches}), lowering);
    EXPECT_TRUE(simulation) << simulation.error().message;
    return simulation ? simulation->in_flight_max[0] : 0;
  };
  EXPECT_EQ(in_flight(one_stage_schedule(23), 23), 1);
  EXPECT_EQ(in_flight(forward_schedule(23), 23), 1);
  EXPECT_EQ(in_flight(one_forward_one_backward(23, 3), 23), 4);
  EXPECT_EQ(in_flight(one_forward_one_backward(8, 7), 8), 8) << "all go forward first";
}

TEST(SimulateTest, ACollectiveTakesTimeOfTheRanksThatWaitForIt) {
  // Two ranks, of which the second computes twice as long.
  const Lowering lowering = lowering_of(1, {{0}});
  const auto ranks = ranks_of(one_stage_schedule(1), lowering, {1, 1});
  const Costs costs{
      .seconds =
          [](const RankProgram& rank, const Instruction& i) {
            if (i.layer >= 0) return rank.rank == 0 ? 1.0 : 2.0;
            return i.kind == Kind::kReduce ? 10.0 : 0.0;
          },
      .bytes_sent = [](auto&, const Instruction& i) { return i.kind == Kind::kReduce ? 100 : 0; }};
  const auto simulation = simulate(ranks, lowering, costs);
  ASSERT_TRUE(simulation) << simulation.error().message;
  // F, B and W of the slower one, then the reduction.
  EXPECT_THAT(simulation->end_seconds, ::testing::ElementsAre(16.0, 16.0));
  EXPECT_THAT(simulation->bytes_sent, ::testing::ElementsAre(100, 100));
}

}  // namespace
}  // namespace trainyard::engine
