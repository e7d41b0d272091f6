#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/program/cuts.h"
#include "worker/program/lower.h"
#include "worker/program/simulate.h"

namespace trainyard::engine {
namespace {

using testing::Cut;
using ::testing::HasSubstr;
using testing::kCuts;
using testing::kStage0;
using testing::kStage3;
using testing::listed;
using testing::lowering_of;
using testing::one_forward_one_backward;
using testing::one_stage_schedule;
using testing::UnitLayers;

constexpr int kLayers = 4;

const UnitLayers kSimpleUnits = {{3}, {1, 2}, {0}};
const Lowering kSimple = lowering_of(kLayers, kSimpleUnits);

using Listed = std::vector<Instruction>;

/// That of a rank with `own` of `rounds` micro-batches.
Listed program_of(Lowering lowering, int rounds, int own) {
  lowering.micro_batches = own;
  return listed(lower(one_stage_schedule(rounds), lowering));
}

Listed program_of(int micro_batches) { return program_of(kSimple, micro_batches, micro_batches); }

/// "F m0 l0, F m0 l1, ..."
std::string spelled(const Listed& program) {
  std::string all;
  for (const Instruction& instruction : program)
    all += (all.empty() ? "" : ", ") + to_string(instruction);
  return all;
}

/// The first of a kind with that layer, or unit; -1: with neither.
size_t index_of(const Listed& program, InstructionKind kind, int place) {
  for (size_t i = 0; i < program.size(); ++i) {
    if (program[i].kind == kind && std::max(program[i].layer, program[i].unit) == place) return i;
  }
  return program.size();
}

/// What simulate() says of ranks' programs.
Status check_programs(const std::vector<Listed>& programs, const std::vector<int>& micro_batches,
                      const Lowering& lowering) {
  std::vector<RankProgram> ranks;
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    ranks.push_back({.program = programs[rank],
                     .micro_batches = micro_batches[rank],
                     .rank = static_cast<int>(rank)});
  }
  const auto simulation = simulate(ranks, lowering);
  return simulation ? Status() : simulation.error();
}

/// Judges ranks' programs after one change to rank 1's.
template <class Change>
Status check_after(Change change) {
  Listed changed = program_of(2);
  change(changed);
  return check_programs({program_of(2), changed}, {2, 2}, kSimple);
}

/// What is said where all ranks' programs have the same change.
std::string said_after(const std::function<void(Listed&)>& change) {
  Listed program = program_of(2);
  change(program);
  const Status status = check_programs({program, program}, {2, 2}, kSimple);
  return status ? "nothing" : status.error().message;
}

TEST(DataParallelProgramTest, RanksWithUnevenMicroBatchesAgree) {
  for (const Cut& cut : kCuts) {
    const Lowering lowering = lowering_of(kLayers, kSimpleUnits, cut);
    for (int a = 0; a <= 3; ++a) {
      const Status status = check_programs({program_of(lowering, 3, a), program_of(lowering, 3, 3)},
                                           {a, 3}, lowering);
      EXPECT_TRUE(status) << cut.name << ": " << status.error().message;
    }
  }
}

TEST(DataParallelProgramTest, AUnitIsReducedBeforeEarlierLayersGoBackward) {
  const Listed program = program_of(1);
  EXPECT_LT(index_of(program, InstructionKind::kReduce, 0),
            index_of(program, InstructionKind::kBackwardInput, 2))
      << "the last layers' gradients travel while the rest of backward runs";
}

TEST(DataParallelProgramTest, CopiesAddUpAUnitOnceTheNextButOneIsDue) {
  const Lowering lowering =
      lowering_of(kLayers, kSimpleUnits, {"stage 1 in copies", {.dp = 2, .fsdp = 2}, 1});
  const std::string program = spelled(program_of(lowering, 1, 1));
  EXPECT_THAT(program,
              HasSubstr("W m0 l3, REDUCE u0, B m0 l2, W m0 l2, B m0 l1, W m0 l1, REDUCE u1, "
                        "B m0 l0, W m0 l0, ALL_REDUCE u0, REDUCE u2, ALL_REDUCE u1, "
                        "ALL_REDUCE u2, ROUND u0, ROUND u1, ROUND u2, REDUCE_CONTROL"));
}

TEST(DataParallelProgramTest, AUnitIsRoundedOnceTheSumsOfTheNextAreOnTheirWay) {
  const std::string program =
      spelled(program_of(lowering_of(kLayers, kSimpleUnits, kStage0), 1, 1));
  EXPECT_THAT(program,
              HasSubstr("W m0 l3, ALL_REDUCE u0, B m0 l2, W m0 l2, B m0 l1, W m0 l1, "
                        "ALL_REDUCE u1, ROUND u0, B m0 l0, W m0 l0, ALL_REDUCE u2, ROUND u1, "
                        "ROUND u2, REDUCE_CONTROL, OPT u2"));
}

TEST(ProgramRulesTest, FindsCopiesThatAreNotRoundedOnceTheyAreAddedUp) {
  const Lowering lowering = lowering_of(kLayers, kSimpleUnits, kStage0);
  const auto said = [&](const std::function<void(Listed&)>& change) {
    Listed program = program_of(lowering, 1, 1);
    change(program);
    const Status status = check_programs({program, program}, {1, 1}, lowering);
    return status ? "nothing" : status.error().message;
  };
  const auto at = [](const Listed& p, InstructionKind kind, int unit) {
    return p.begin() + static_cast<std::ptrdiff_t>(index_of(p, kind, unit));
  };
  EXPECT_EQ(said([](Listed&) {}), "nothing");
  EXPECT_THAT(said([&](Listed& p) { p.erase(at(p, InstructionKind::kRound, 2)); }),
              HasSubstr("(REDUCE_CONTROL): before every unit is reduced and rounded"));
  EXPECT_THAT(said([&](Listed& p) {
                const Instruction round = *at(p, InstructionKind::kRound, 1);
                p.insert(at(p, InstructionKind::kAllReduce, 1), round);
              }),
              HasSubstr("(ROUND u1): its copies are not added up"));
  EXPECT_THAT(said([&](Listed& p) {
                const Instruction round = *at(p, InstructionKind::kRound, 1);
                p.insert(at(p, InstructionKind::kReduceControl, -1), round);
              }),
              HasSubstr("(ROUND u1): runs twice"));
}

TEST(ProgramRulesTest, FindsACollectiveOutOfOrder) {
  const Status status = check_after([](Listed& p) {
    for (const InstructionKind kind : {InstructionKind::kOptimize, InstructionKind::kGather})
      std::swap(p[index_of(p, kind, 0)], p[index_of(p, kind, 1)]);
  });
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("deadlock"), std::string::npos);
}

TEST(ProgramRulesTest, FindsAMissingCollective) {
  EXPECT_FALSE(check_after([](Listed& p) {
    p.erase(p.begin() + static_cast<int64_t>(index_of(p, InstructionKind::kReduceControl, -1)));
  }));
}

TEST(ProgramRulesTest, FindsAUnitReducedTooEarly) {
  const Status status = check_after([](Listed& p) {
    const size_t at = index_of(p, InstructionKind::kReduce, 2);
    const Instruction moved = p[at];
    p.erase(p.begin() + static_cast<int64_t>(at));
    p.insert(p.begin() + static_cast<int64_t>(at) - 1, moved);
  });
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("still adds to the unit"), std::string::npos);
}

TEST(ProgramRulesTest, FindsABackwardBeforeItsForward) {
  EXPECT_FALSE(check_after([](Listed& p) {
    const size_t at = index_of(p, InstructionKind::kBackwardInput, 3);
    std::swap(p[at], p[at - 1]);
  }));
}

TEST(ProgramRulesTest, FindsAWeightGradientAddedTwice) {
  const Status status = check_after([](Listed& p) {
    const size_t at = index_of(p, InstructionKind::kBackwardWeight, 3);
    p.insert(p.begin() + static_cast<int64_t>(at), p[at]);
  });
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("runs twice"), std::string::npos);
}

TEST(ProgramRulesTest, FindsAnUpdateBeforeTheControlWordAndAControlWordBeforeTheLastReduction) {
  const auto swapped_with_control = [](int by) {
    return said_after([by](Listed& p) {
      const auto at = static_cast<int64_t>(index_of(p, InstructionKind::kReduceControl, -1));
      std::swap(p[static_cast<size_t>(at)], p[static_cast<size_t>(at + by)]);
    });
  };
  EXPECT_THAT(swapped_with_control(1),
              HasSubstr("(OPT u2): loss, overflow and squares are not reduced"));
  EXPECT_THAT(swapped_with_control(-1),
              HasSubstr("(REDUCE_CONTROL): before every unit is reduced"));
}

TEST(DataParallelProgramTest, WeightsAreGatheredInTheOrderOfTheNextForward) {
  const Listed program = program_of(1);
  for (int unit = 0; unit < 3; ++unit) {
    const size_t gather = index_of(program, InstructionKind::kGather, unit);
    EXPECT_EQ(gather, index_of(program, InstructionKind::kOptimize, unit) + 1);
    EXPECT_TRUE(unit == 0 || gather < index_of(program, InstructionKind::kGather, unit - 1));
  }
}

void drop(Listed& program, const Instruction& instruction) {
  const auto at = std::find(program.begin(), program.end(), instruction);
  ASSERT_NE(at, program.end()) << to_string(instruction);
  program.erase(at);
}

TEST(ProgramRulesTest, NamesWhatIsMissingEverywhere) {
  using Kind = InstructionKind;
  const std::pair<Instruction, const char*> cases[] = {
      {{.kind = Kind::kBackwardWeight, .micro_batch = 1, .layer = 2},
       "(REDUCE u1): layer 2 still adds to the unit"},
      {{.kind = Kind::kBackwardWeight, .micro_batch = 0, .layer = 0},
       "(REDUCE u2): layer 0 still adds to the unit"},
      {{.kind = Kind::kBackwardInput, .micro_batch = 0, .layer = 2},
       "(W m0 l2): its B has not run"},
      {{.kind = Kind::kForward, .micro_batch = 0, .layer = 1},
       "(F m0 l2): layer 1 must go forward first"},
      {{.kind = Kind::kReduce, .unit = 1}, "(REDUCE_CONTROL): before every unit is reduced"},
      {{.kind = Kind::kReduceControl}, "(OPT u2): loss, overflow and squares are not reduced"},
      {{.kind = Kind::kOptimize, .unit = 1}, "(GATHER u1): gathered before it was updated"},
      {{.kind = Kind::kGather, .unit = 1}, "0: GATHER u1 is missing"},
  };
  for (const auto& [instruction, said] : cases) {
    EXPECT_THAT(said_after([&dropped = instruction](Listed& p) { drop(p, dropped); }),
                HasSubstr(said))
        << to_string(instruction);
  }
  EXPECT_THAT(said_after([](Listed& p) {
                drop(p, {.kind = Kind::kGather, .unit = 1});
                drop(p, {.kind = Kind::kOptimize, .unit = 1});
              }),
              HasSubstr("OPT u1 is missing"));
  EXPECT_THAT(said_after([](Listed& p) { p = program_of(1); }),
              HasSubstr("(REDUCE u0): layer 3 still adds to the unit"))
      << "a whole micro-batch";
  EXPECT_THAT(said_after([](Listed& p) { p.clear(); }), HasSubstr("F m0 l0 is missing"));
}

TEST(ProgramRulesTest, NamesWhatThereIsNot) {
  const auto said_with = [](const Instruction& instruction) {
    return said_after([&](Listed& p) { p.insert(p.begin(), instruction); });
  };
  using Kind = InstructionKind;
  for (const Kind kind :
       {Kind::kForward, Kind::kRecompute, Kind::kBackwardInput, Kind::kBackwardWeight}) {
    EXPECT_THAT(said_with({kind, 0, kLayers}), HasSubstr("no such layer: there are 4"));
    EXPECT_THAT(said_with({kind, 0, -1}), HasSubstr("no such layer: there are 4"));
    EXPECT_THAT(said_with({kind, 2, 0}), HasSubstr("no such micro-batch: there are 2"));
    EXPECT_THAT(said_with({kind, -1, 0}), HasSubstr("no such micro-batch: there are 2"));
  }
  for (const Kind kind : {Kind::kReduce, Kind::kOptimize, Kind::kGather}) {
    EXPECT_THAT(said_with({.kind = kind, .unit = 3}), HasSubstr("no such unit: there are 3"));
    EXPECT_THAT(said_with({.kind = kind, .unit = -1}), HasSubstr("no such unit: there are 3"));
  }
}

TEST(ProgramRulesTest, FindsAPassAfterTheOverflowsWereReduced) {
  const Lowering lowering = lowering_of(kLayers, {{3}, {1, 2}});  // no parameter in layer 0
  Listed program = program_of(lowering, 2, 2);
  const Instruction late{.kind = InstructionKind::kBackwardWeight, .micro_batch = 1, .layer = 0};
  drop(program, late);
  program.insert(program.end(), late);
  const Status status = check_programs({program, program}, {2, 2}, lowering);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("loss and overflow have been reduced already"));
}

/// What a program may become by one mistake.
std::vector<Listed> spoilt(const Listed& good, size_t at) {
  const auto place = static_cast<int64_t>(at);
  std::vector<Listed> all(3, good);
  all[0].erase(all[0].begin() + place);
  all[1].insert(all[1].begin() + place, good[at]);
  all[2].push_back(good[at]);
  const auto become = [&](int Instruction::*field, int value) {
    all.push_back(good);
    all.back()[at].*field = value;
  };
  for (int Instruction::*const field : {&Instruction::layer, &Instruction::unit}) {
    const int named = good[at].*field;
    if (named < 0) continue;
    for (const int other : {-1, named - 1, named + 1, 1 << 30})
      become(field, other);
  }
  if (good[at].micro_batch < 0) return all;
  for (const int other : {-1, good[at].micro_batch + 1, 1 << 30})
    become(&Instruction::micro_batch, other);
  return all;
}

// Programs of every shape and way of cutting, all of whose ranks have the same mistake: comparing
// them shows nothing.
TEST(ProgramRulesTest, NoInstructionCanBeLeftOutDoubledOrPointElsewhere) {
  int programs = 0;
  for (const Cut& cut : kCuts) {
    for (const auto& [layers, units] : std::vector<std::pair<int, std::vector<std::vector<int>>>>{
             {1, {{0}}},
             {1, {{0}, {0}}},
             {2, {{}, {1}, {0}}},
             {3, {{0, 1, 2}}},
             {4, {{3}, {1, 2}, {0, 3}}},
             {5, {{4}, {4}, {2, 3}, {0, 1}}}}) {
      Lowering lowering = lowering_of(layers, units, cut);
      if (layers == 5) lowering.recomputed = {1, 2};
      for (int n = 1; n <= 6; ++n) {
        const int rounds = (n + 1) / 2;
        const bool trains = n % 2 == 0;
        const Listed good = trains ? program_of(lowering, rounds, rounds)
                                   : listed(lower(forward_schedule(rounds), lowering));
        const auto is_good = [&, n = rounds](const Listed& program) {
          return check_programs({program, program}, {n, n}, lowering).has_value();
        };
        ASSERT_TRUE(is_good(good)) << cut.name << ": " << spelled(good);
        ++programs;
        for (size_t at = 0; at < good.size(); ++at) {
          for (const Listed& bad : spoilt(good, at)) {
            EXPECT_FALSE(is_good(bad)) << cut.name << ", " << to_string(good[at]) << " of "
                                       << spelled(good) << "\nbecame " << spelled(bad);
          }
        }
      }
    }
  }
  EXPECT_EQ(programs, 252);
}

TEST(LowerTest, WeightsThatAreCutAreGatheredOneLayerAhead) {
  // One that no op uses, a tied one, one of two layers, one of one.
  const Lowering lowering = lowering_of(6, {{}, {0, 5}, {1, 2}, {4}}, kStage3);
  EXPECT_EQ(spelled(program_of(lowering, 1, 1)),
            "GATHER u1, GATHER u2, F m0 l0, FREE u1, F m0 l1, F m0 l2, FREE u2, "
            "GATHER u3, F m0 l3, GATHER u1, F m0 l4, F m0 l5, "
            "B m0 l5, REDUCE m0 u0, W m0 l5, FREE u1, B m0 l4, W m0 l4, FREE u3, "
            "ACCUMULATE m0 u0, REDUCE m0 u3, "
            "GATHER u2, B m0 l3, W m0 l3, B m0 l2, W m0 l2, GATHER u1, B m0 l1, W m0 l1, FREE u2, "
            "ACCUMULATE m0 u3, REDUCE m0 u2, B m0 l0, W m0 l0, FREE u1, "
            "ACCUMULATE m0 u2, REDUCE m0 u1, ACCUMULATE m0 u1, "
            "REDUCE_CONTROL, OPT u3, OPT u2, OPT u1, OPT u0");
  // Who has no micro-batch takes part in all of that.
  Listed without = program_of(lowering, 1, 1);
  std::erase_if(without, [](const Instruction& i) { return i.layer >= 0; });
  EXPECT_EQ(spelled(program_of(lowering, 1, 0)), spelled(without));
}

TEST(LowerTest, AWeightPassThatIsHeldBackIsNotRunWithItsBackward) {
  // As zero-bubble schedules do: the weights of both micro-batches come last.
  using Kind = InstructionKind;
  const Schedule schedule = {{Kind::kForward, 0, 0},        {Kind::kForward, 1, 0},
                             {Kind::kBackwardInput, 0, 0},  {Kind::kBackwardInput, 1, 0},
                             {Kind::kBackwardWeight, 1, 0}, {Kind::kBackwardWeight, 0, 0}};
  const StepProgram program = lower(schedule, kSimple);
  const Status status = check_programs({listed(program)}, {2}, kSimple);
  EXPECT_TRUE(status) << status.error().message;
  Listed passes = listed(program);
  std::erase_if(passes, [](const Instruction& i) { return i.layer < 0; });
  EXPECT_EQ(spelled(passes),
            "F m0 l0, F m0 l1, F m0 l2, F m1 l0, F m1 l1, F m1 l2, "
            "F m0 l3, B m0 l3, B m0 l2, B m0 l1, B m0 l0, "
            "F m1 l3, B m1 l3, B m1 l2, B m1 l1, B m1 l0, W m1 l3, W m1 l2, W m1 l1, W m1 l0, "
            "W m0 l3, W m0 l2, W m0 l1, W m0 l0")
      << "the loss goes forward in its backward pass; where one W does not follow its B, none runs "
         "with it";
}

TEST(LowerTest, AStageHasItsUnitsAndAddsUpATableWithTheOtherOneThatUsesIt) {
  using Kind = InstructionKind;
  Lowering lowering = lowering_of({2, 4},
                                  {{.layers = {3}, .stages = {1}},
                                   {.layers = {1}, .stages = {0}},
                                   {.layers = {0, 3}, .stages = {0, 1}}},
                                  {"pipeline", {.pp = 2, .fsdp = 2}, 1});
  const auto program_at = [&](int pp) {
    lowering.at.pp = pp;
    Listed program = listed(lower(
        {{Kind::kForward, 0, pp}, {Kind::kBackwardInput, 0, pp}, {Kind::kBackwardWeight, 0, pp}},
        lowering));
    std::erase_if(program, [](const Instruction& i) { return i.layer >= 0; });
    return spelled(program);
  };
  EXPECT_EQ(program_at(0),
            "REDUCE u1, REDUCE u2, ALL_REDUCE u2, ROUND u2, REDUCE_CONTROL, OPT u2, GATHER u2, "
            "OPT u1, GATHER u1");
  EXPECT_EQ(program_at(1),
            "REDUCE u0, REDUCE u2, ALL_REDUCE u2, ROUND u2, REDUCE_CONTROL, OPT u2, GATHER u2, "
            "OPT u0, GATHER u0");
}

TEST(LowerTest, ATableOfTwoStagesIsRoundedLastOfAll) {
  using Kind = InstructionKind;
  Lowering lowering = lowering_of({2, 4},
                                  {{.layers = {2}, .stages = {1}},
                                   {.layers = {1}, .stages = {0}},
                                   {.layers = {0, 3}, .stages = {0, 1}}},
                                  {"pipeline", {.pp = 2, .dp = 2}, 0});
  lowering.at.pp = 1;
  const Listed program = listed(
      lower({{Kind::kForward, 0, 1}, {Kind::kBackwardInput, 0, 1}, {Kind::kBackwardWeight, 0, 1}},
            lowering));
  // The first stage adds to it once it has the gradient that this one sends after its last B.
  EXPECT_THAT(spelled(program), HasSubstr("ALL_REDUCE u0, ROUND u0, ROUND u2, REDUCE_CONTROL"));
}

TEST(LowerTest, WhatIsComputedAgainComesBeforeItsBackwardOnceItsWeightsAreGathered) {
  Lowering lowering = lowering_of(kLayers, kSimpleUnits, kStage3);
  lowering.recomputed = {1, 2};
  EXPECT_THAT(spelled(program_of(lowering, 1, 1)),
              HasSubstr("GATHER u0, F m0 l2, F m0 l3, B m0 l3, W m0 l3, FREE u0, REDUCE m0 u0, "
                        "RECOMPUTE m0 l2, B m0 l2, W m0 l2, GATHER u2, RECOMPUTE m0 l1, B m0 l1, "
                        "W m0 l1, FREE u1, "));
  EXPECT_THAT(spelled(listed(lower(forward_schedule(2), lowering))),
              ::testing::Not(HasSubstr("RECOMPUTE")));
}

TEST(ProgramRulesTest, FindsWhatIsComputedAgainInTheWrongPlace) {
  Lowering lowering = kSimple;
  lowering.recomputed = {1, 2};
  const auto said = [&](const std::function<void(Listed&)>& change) {
    Listed program = program_of(lowering, 2, 2);
    change(program);
    const Status status = check_programs({program, program}, {2, 2}, lowering);
    return status ? "nothing" : status.error().message;
  };
  using Kind = InstructionKind;
  const auto at = [](Listed& p, Kind kind, int layer) {
    return p.begin() + static_cast<int64_t>(index_of(p, kind, layer));
  };
  EXPECT_EQ(said([](Listed&) {}), "nothing");
  EXPECT_THAT(said([&](Listed& p) { p.erase(at(p, Kind::kRecompute, 1)); }),
              HasSubstr("(B m0 l1): its RECOMPUTE has not run"));
  EXPECT_THAT(said([&](Listed& p) {
                const Instruction again = *at(p, Kind::kRecompute, 1);
                p.insert(at(p, Kind::kRecompute, 1), again);
              }),
              HasSubstr("(RECOMPUTE m0 l1): runs twice"));
  EXPECT_THAT(said([&](Listed& p) {
                p.insert(at(p, Kind::kBackwardWeight, 1), *at(p, Kind::kRecompute, 1));
              }),
              HasSubstr("(RECOMPUTE m0 l1): its B has run"));
  EXPECT_THAT(said([&](Listed& p) {
                const Instruction early = *at(p, Kind::kRecompute, 1);
                p.insert(at(p, Kind::kBackwardInput, 2), early);
              }),
              HasSubstr("(RECOMPUTE m0 l1): layer 2 must go backward first"));
  EXPECT_THAT(said([&](Listed& p) {
                std::iter_swap(at(p, Kind::kRecompute, 1), at(p, Kind::kRecompute, 1) - 1);
              }),
              HasSubstr("(W m0 l2): what RECOMPUTE m0 l1 left is still to be read by its B"));
  EXPECT_THAT(said([&](Listed& p) { at(p, Kind::kRecompute, 1)->layer = 3; }),
              HasSubstr("(RECOMPUTE m0 l3): the layer keeps what its backward reads"));
  EXPECT_THAT(said([&](Listed& p) {
                p.insert(p.begin(), {Kind::kRecompute, 0, 2});
              }),
              HasSubstr("(RECOMPUTE m0 l2): its forward is not complete"));
  Listed forward = listed(lower(forward_schedule(1), lowering));
  forward.insert(forward.end() - 1, {Kind::kRecompute, 0, 2});
  EXPECT_FALSE(check_programs({forward, forward}, {1, 1}, lowering)) << "nothing goes backward";
}

TEST(LowerTest, StagesHaveTheirLayers) {
  using Kind = InstructionKind;
  EXPECT_EQ(spelled(listed(lower({{Kind::kForward, 0, 1}, {Kind::kBackwardInput, 0, 1}},
                                 {.stages = {.layer_end = {3, 5}}}))),
            "F m0 l3, F m0 l4, B m0 l4, B m0 l3, REDUCE_CONTROL");
}

/// The `n`-th micro-batch of a deal in which none is followed by the next.
int dealt(int n, int micro_batches) { return n * 7 % micro_batches; }

// Micro-batches in an order without rounds are lowered one by one; their names are all that
// differs.
TEST(LowerTest, RoundsThatAreFoldedAreThoseLoweredOneByOne) {
  constexpr int kMicroBatches = 23;
  std::vector<int> place_of(kMicroBatches);
  for (int n = 0; n < kMicroBatches; ++n)
    place_of[static_cast<size_t>(dealt(n, kMicroBatches))] = n;
  int folded = 0;
  for (const Cut& cut : kCuts) {
    for (const auto& units : std::vector<std::vector<std::vector<int>>>{
             {{3}, {1, 2}, {0}}, {{}, {0, 3}, {0, 1, 2, 3}, {2}}}) {
      for (const Schedule& schedule :
           {one_stage_schedule(kMicroBatches), forward_schedule(kMicroBatches),
            one_forward_one_backward(kMicroBatches, 3), gpipe({}, kMicroBatches, 0)}) {
        const Lowering lowering = lowering_of(kLayers, units, cut);
        Schedule in_disorder = schedule;
        for (Pass& pass : in_disorder)
          pass.micro_batch = dealt(pass.micro_batch, kMicroBatches);
        Listed one_by_one = listed(lower(in_disorder, lowering));
        for (Instruction& instruction : one_by_one) {
          if (instruction.micro_batch < 0) continue;
          instruction.micro_batch = place_of[static_cast<size_t>(instruction.micro_batch)];
        }
        const StepProgram program = lower(schedule, lowering);
        EXPECT_EQ(spelled(listed(program)), spelled(one_by_one)) << cut.name;
        if (program.listed().size() < one_by_one.size() / 2) ++folded;
      }
    }
  }
  EXPECT_EQ(folded, 7 * 2 * 4);
}

// The last of the stages has the loss alone, which goes forward in the backward pass: forward there
// is nothing but what is received.
TEST(LowerTest, StagesThatGoForwardWithAllMicroBatchesFirstAreFoldedInTwoLoops) {
  const std::vector<layout::Unit> units = {{.layers = {4}, .stages = {2}},
                                           {.layers = {2, 3}, .stages = {1}},
                                           {.layers = {1}, .stages = {0}},
                                           {.layers = {0, 4}, .stages = {0, 2}}};
  constexpr int kMicroBatches = 23;
  for (const Cut& cut : kCuts) {
    Cut of_stages = cut;
    of_stages.mesh.pp = 3;
    for (const bool again : {false, true}) {
      Lowering lowering = lowering_of({2, 4, 5}, units, of_stages);
      if (again) lowering.recomputed = {0, 1, 2, 3};
      for (int pp = 0; pp < 3; ++pp) {
        lowering.at = {.pp = pp};
        for (const int own : {23, 22, 21, 20, 12, 2, 0}) {
          const Schedule schedule = gpipe(lowering.stages, kMicroBatches, pp);
          // The last comes first: what descends has no rounds.
          Schedule in_disorder = schedule;
          const auto other = [](int m) { return kMicroBatches - 1 - m; };
          for (Pass& pass : in_disorder)
            pass.micro_batch = other(pass.micro_batch);
          lowering.micro_batches = kMicroBatches;
          Listed one_by_one = listed(lower(in_disorder, lowering));
          for (Instruction& i : one_by_one) {
            if (i.micro_batch >= 0) i.micro_batch = other(i.micro_batch);
          }
          std::erase_if(one_by_one, [own = own](const Instruction& i) {
            return i.layer >= 0 && i.micro_batch >= own;
          });
          lowering.micro_batches = own;
          const StepProgram program = lower(schedule, lowering);
          EXPECT_EQ(spelled(listed(program)), spelled(one_by_one))
              << cut.name << ", stage " << pp << ", " << own;
          if (own < kMicroBatches - 1) continue;  // no rank has two fewer than another
          EXPECT_EQ(program.loops().size(), 2U) << cut.name << ", stage " << pp << ", " << own;
          lowering.micro_batches = own + 17;
          EXPECT_EQ(program.bytes(),
                    lower(gpipe(lowering.stages, kMicroBatches + 17, pp), lowering).bytes());
        }
      }
    }
  }
}

TEST(LowerTest, ARankWithFewerMicroBatchesFoldsWhatItHas) {
  for (const Cut& cut : kCuts) {
    const Lowering lowering = lowering_of(kLayers, kSimpleUnits, cut);
    for (const int own : {0, 1, 11, 22, 23}) {
      // What the others have, without this rank's passes.
      Listed expected = program_of(lowering, 23, 23);
      std::erase_if(expected, [own = own](const Instruction& i) {
        return i.layer >= 0 && i.micro_batch >= own;
      });
      EXPECT_EQ(spelled(program_of(lowering, 23, own)), spelled(expected))
          << cut.name << ", " << own;
    }
  }
}

TEST(LowerTest, AProgramDoesNotGrowWithItsMicroBatches) {
  const Lowering lowering = lowering_of(kLayers, kSimpleUnits, kStage3);
  const StepProgram few = lower(one_stage_schedule(16), lowering);
  const StepProgram many = lower(one_stage_schedule(4096), lowering);
  EXPECT_EQ(many.bytes(), few.bytes());
  EXPECT_EQ(many.size() - few.size(),
            (4096 - 16) * (few.size() - lower(one_stage_schedule(15), lowering).size()));
  EXPECT_EQ(to_string(many[many.size() - 5]), "ACCUMULATE m4095 u2");
}

TEST(StepProgramTest, FindsItsInstructionsInAndBetweenItsLoops) {
  using Kind = InstructionKind;
  const auto pass = [](Kind kind, int micro_batch) {
    return Instruction{.kind = kind, .micro_batch = micro_batch, .layer = 0};
  };
  const std::vector<Instruction> stored = {
      pass(Kind::kForward, 0),        pass(Kind::kForward, 1),
      pass(Kind::kForward, 4),        pass(Kind::kBackwardInput, 0),
      pass(Kind::kBackwardWeight, 0), pass(Kind::kBackwardInput, 1),
      pass(Kind::kBackwardWeight, 1), pass(Kind::kBackwardInput, 4),
      pass(Kind::kBackwardWeight, 4), {.kind = Kind::kReduceControl}};
  const StepProgram program(stored, {{.begin = 1, .end = 2, .times = 3, .step = 1},
                                     {.begin = 5, .end = 7, .times = 3, .step = 1}});
  EXPECT_EQ(program.size(), stored.size() + 2 + 4);
  EXPECT_EQ(spelled(listed(program)),
            "F m0 l0, F m1 l0, F m2 l0, F m3 l0, F m4 l0, B m0 l0, W m0 l0, B m1 l0, W m1 l0, "
            "B m2 l0, W m2 l0, B m3 l0, W m3 l0, B m4 l0, W m4 l0, REDUCE_CONTROL");
  for (size_t id = 0; id < program.size(); ++id) {
    EXPECT_EQ(program.listed()[program.place(id)].kind, program[id].kind) << id;
  }
  EXPECT_EQ(program.times(0), 1);
  EXPECT_EQ(program.times(1), 3);
  EXPECT_EQ(program.times(4), 1);
  EXPECT_EQ(program.times(6), 3);
  EXPECT_EQ(program.times(9), 1);
  EXPECT_THAT(program.excerpt(), ::testing::ElementsAre(0, 1, 1, 2, 3, 4, 5, 6, 5, 6, 7, 8, 9));
  EXPECT_EQ(spelled(listed(program.with_more_rounds(-2))),
            "F m0 l0, F m1 l0, F m2 l0, B m0 l0, W m0 l0, B m1 l0, W m1 l0, B m2 l0, W m2 l0, "
            "REDUCE_CONTROL");
  EXPECT_EQ(spelled(listed(program.with_more_rounds(-2).with_more_rounds(2))),
            spelled(listed(program)));
}

TEST(InstructionTest, SpellsItselfForPeople) {
  EXPECT_EQ(
      to_string(Instruction{.kind = InstructionKind::kBackwardInput, .micro_batch = 3, .layer = 2}),
      "B m3 l2");
  EXPECT_EQ(to_string(Instruction{.kind = InstructionKind::kGather, .unit = 1}), "GATHER u1");
}

}  // namespace
}  // namespace trainyard::engine
