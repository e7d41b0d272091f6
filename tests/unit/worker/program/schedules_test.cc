#include "worker/program/schedules/schedules.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/program/cuts.h"
#include "worker/program/meeting.h"
#include "worker/program/simulate.h"

namespace trainyard::engine {
namespace {

using testing::Cut;
using ::testing::HasSubstr;
using testing::lowering_of;
using Kind = InstructionKind;
using api::PipelineSchedule;

constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::kNaive, PipelineSchedule::kGPipe,
                                           PipelineSchedule::kOneFOneB,
                                           PipelineSchedule::kZeroBubbleH1};

/// A pipeline of stages of two layers each with a unit; first and last layer share another.
/// `alone`: but the last stage, which has the last layer alone. `per_rank`: stages of each rank.
Lowering pipeline(int ranks, int zero_stage = 1, int fsdp = 1, bool alone = false,
                  int per_rank = 1) {
  const int stages = ranks * per_rank;
  const int layers = 2 * stages - (alone ? 1 : 0);
  std::vector<layout::Unit> units;
  for (int layer = layers - 1; layer >= 0; --layer)
    units.push_back({.layers = {layer}, .stages = {layer / 2 % ranks}});
  units.push_back({.layers = {0, layers - 1}, .stages = {0, ranks - 1}});
  if (ranks == 1) units.back().stages = {0};
  std::vector<int> ends;
  for (int stage = 1; stage <= stages; ++stage)
    ends.push_back(std::min(2 * stage, layers));
  Lowering lowering =
      lowering_of(ends, units, {"pipeline", {.pp = ranks, .fsdp = fsdp}, zero_stage});
  lowering.stages.per_rank = per_rank;
  return lowering;
}

std::vector<RankProgram> ranks_of(PipelineSchedule schedule, Lowering lowering, int micro_batches) {
  std::vector<RankProgram> ranks;
  lowering.micro_batches = micro_batches;
  for (int pp = 0; pp < lowering.stages.ranks(); ++pp) {
    lowering.at = {.pp = pp};
    ranks.push_back({.program = lower(
                         training_schedule(schedule, lowering.stages, micro_batches, pp), lowering),
                     .micro_batches = micro_batches,
                     .at = lowering.at,
                     .rank = pp});
  }
  return ranks;
}

using Change = std::function<void(std::vector<Instruction>&)>;

/// What simulate() says of a step of three ranks after `change` has been made to the program of
/// one.
std::string said_after(PipelineSchedule schedule, int rank, const Change& change,
                       int zero_stage = 1) {
  const bool interleaves = schedule == PipelineSchedule::kInterleaved;
  const Lowering lowering = pipeline(3, zero_stage, 2, false, interleaves ? 2 : 1);
  std::vector<RankProgram> ranks = ranks_of(schedule, lowering, interleaves ? 6 : 4);
  std::vector<Instruction> program;
  for (const Instruction& instruction : ranks[static_cast<size_t>(rank)].program)
    program.push_back(instruction);
  change(program);
  ranks[static_cast<size_t>(rank)].program = std::move(program);
  const auto simulation = simulate(ranks, lowering);
  return simulation ? "nothing" : simulation.error().message;
}

auto find(std::vector<Instruction>& program, Kind kind, int micro_batch) {
  return std::find_if(program.begin(), program.end(), [&](const Instruction& i) {
    return i.kind == kind && i.micro_batch == micro_batch;
  });
}

TEST(SchedulesTest, AreProgramsThatComeToTheirEndAtEverySize) {
  int judged = 0;
  for (const PipelineSchedule schedule : kSchedules) {
    for (int stages = 1; stages <= 6; ++stages) {
      for (const int micro_batches : {1, 2, 3, 5, 8, 23}) {
        for (const int zero_stage : {1, 2, 3}) {
          const Lowering lowering = pipeline(stages, zero_stage, 2, micro_batches % 2 == 1);
          const auto ranks = ranks_of(schedule, lowering, micro_batches);
          const auto simulation = simulate(ranks, lowering);
          ASSERT_TRUE(simulation) << simulation.error().message;
          ++judged;
        }
      }
    }
  }
  EXPECT_EQ(judged, 4 * 6 * 6 * 3);
}

/// All of a stage's costs are those of its first layer: the loss, which goes forward in the
/// backward pass, is another.
const Costs kCosts{.seconds = [](const RankProgram&, const Instruction& i) {
  return i.layer % 2 != 0                  ? 0.0
         : i.kind == Kind::kForward        ? 3.0
         : i.kind == Kind::kBackwardInput  ? 4.0
         : i.kind == Kind::kBackwardWeight ? 2.0
                                           : 0.0;
}};

TEST(SchedulesTest, TakeAsLongAndHoldAsMuchAsTheFormulasSay) {
  // All of a stage's costs are those of its first layer: the loss, which goes forward in the
  // backward pass, is another.
  constexpr double kAll = 9;
  for (int p = 2; p <= 8; ++p) {
    for (int m = 1; m <= 16; ++m) {
      const Lowering lowering = pipeline(p);
      const auto run = [&](PipelineSchedule schedule) {
        return *simulate(ranks_of(schedule, lowering, m), lowering, kCosts);
      };
      const auto latest = [](const Simulation& s) {
        return *std::max_element(s.end_seconds.begin(), s.end_seconds.end());
      };
      const Simulation in_turn = run(PipelineSchedule::kNaive);
      EXPECT_GE(latest(in_turn), m * (p * 7.0));  // W of a rank and B of the rank before overlap
      EXPECT_LE(latest(in_turn), m * p * kAll);
      const Simulation apart = run(PipelineSchedule::kZeroBubbleH1);
      EXPECT_EQ(latest(apart), m * kAll + (p - 1) * 7 - (std::min(m, p) - 1) * 2)
          << p << " stages, " << m << " micro-batches";
      const PassTimes times{.forward = 3, .backward_input = 4, .backward_weight = 2};
      EXPECT_NEAR(bubble_of(PipelineSchedule::kZeroBubbleH1, lowering.stages, m, times).share,
                  1 - m * kAll / latest(apart), 1e-9);
      for (int s = 0; s < p; ++s)
        EXPECT_EQ(apart.in_flight_max[static_cast<size_t>(s)], std::min(m, p)) << p << " " << m;
      for (const auto schedule : {PipelineSchedule::kGPipe, PipelineSchedule::kOneFOneB}) {
        const Simulation found = run(schedule);
        // The gradient is sent before the W of the layer, which is hidden but on the first stage.
        EXPECT_EQ(latest(found), m * kAll + (p - 1) * 7)
            << p << " stages, " << m << " micro-batches";
        for (int s = 0; s < p; ++s) {
          const int in_flight = schedule == PipelineSchedule::kGPipe ? m : std::min(m, p - s);
          EXPECT_EQ(found.in_flight_max[static_cast<size_t>(s)], in_flight) << p << " " << m;
        }
      }
    }
  }
}

/// The most of a rank's micro-batches in a stage between F and their last pass.
int stashes_of(const Schedule& schedule) {
  int now = 0;
  int most = 0;
  for (const Pass& pass : schedule) {
    if (pass.kind == Kind::kForward) most = std::max(most, ++now);
    if (pass.kind == Kind::kBackwardWeight) --now;
  }
  return most;
}

TEST(SchedulesTest, InterleavedTakesAsLongAndHoldsAsMuchAsTheFormulasSay) {
  for (int p = 2; p <= 6; ++p) {
    for (int v = 2; v <= 4; ++v) {
      for (const int m : {p, 2 * p, 3 * p, 5 * p, 11 * p}) {
        for (const int zero_stage : {1, 2, 3}) {
          const Lowering lowering = pipeline(p, zero_stage, 2, m % 2 == 1, v);
          const auto simulation =
              simulate(ranks_of(PipelineSchedule::kInterleaved, lowering, m), lowering, kCosts);
          ASSERT_TRUE(simulation) << simulation.error().message;
          // m (F + B + W) + (p - 1)(F + B + W) / v, where each stage of a rank takes 9.
          EXPECT_EQ(
              *std::max_element(simulation->end_seconds.begin(), simulation->end_seconds.end()),
              m * v * 9.0 + (p - 1) * 9.0)
              << p << " ranks of " << v << " stages, " << m << " micro-batches";
          EXPECT_NEAR(bubble_of(PipelineSchedule::kInterleaved, lowering.stages, m, {}).share,
                      (p - 1.0) / (v * m + p - 1.0), 1e-9);
        }
        for (int pp = 0; pp < p; ++pp) {
          EXPECT_EQ(stashes_of(interleaved(pipeline(p, 1, 1, false, v).stages, m, pp)),
                    std::min(v * m, 2 * (p - 1 - pp) + (v - 1) * p + 1))
              << p << " ranks of " << v << " stages, " << m << " micro-batches";
        }
      }
    }
  }
}

TEST(SchedulesTest, MessagesThatLeaveBeforeTheyAreReceivedShortenAnInterleavedStep) {
  constexpr int64_t kMessage = 8;
  const auto seconds = [&](PipelineSchedule schedule, int p, int v, int m, int64_t eager_bytes) {
    const Lowering lowering = pipeline(p, 1, 1, false, v);
    Costs costs = kCosts;
    costs.bytes_sent = [&](const RankProgram&, const Instruction& i) {
      return is_message(i.kind) ? kMessage : 0;
    };
    costs.eager_bytes = eager_bytes;
    const Simulation found = *simulate(ranks_of(schedule, lowering, m), lowering, costs);
    return *std::max_element(found.end_seconds.begin(), found.end_seconds.end());
  };
  for (int p = 2; p <= 6; ++p) {
    for (int v = 2; v <= 4; ++v) {
      for (const int m : {p, 2 * p, 5 * p}) {
        const auto step = [&](int64_t eager_bytes) {
          return seconds(PipelineSchedule::kInterleaved, p, v, m, eager_bytes);
        };
        const double waits = m * v * 9.0 + (p - 1) * 9.0;
        EXPECT_EQ(step(0), waits) << p << " ranks of " << v << " stages";
        EXPECT_EQ(step(kMessage - 1), waits) << "no message fits";
        EXPECT_EQ(step(100 * kMessage), m * v * 9.0 + (p - 1) * 7.0) << m << " micro-batches";
      }
    }
    for (const PipelineSchedule schedule : kSchedules)
      EXPECT_EQ(seconds(schedule, p, 1, 8, 1000), seconds(schedule, p, 1, 8, 0)) << p;
  }
}

TEST(GroupTest, AsManyMessagesLeaveAtOnceAsTheTransportHolds) {
  Group channel{.members = {0, 1}};
  // Sent at 0, 1 and 2, received at 10, 20 and 30; each takes 0.5 on the wire.
  for (int n = 0; n < 3; ++n) {
    channel.meetings.push_back({.instruction = {.kind = Kind::kSendActivation},
                                .began = 10.0 * (n + 1),
                                .sender_began = 1.0 * n,
                                .seconds = 0.5,
                                .bytes = 8});
    channel.complete(static_cast<size_t>(n), /*eager_bytes=*/16);
  }
  EXPECT_EQ(channel.meetings[0].sent, 0.5);
  EXPECT_EQ(channel.meetings[1].sent, 1.5);
  EXPECT_EQ(channel.meetings[2].sent, 10.5) << "the first has made room";
  for (int n = 0; n < 3; ++n)
    EXPECT_EQ(channel.meetings[static_cast<size_t>(n)].ended, 10.0 * (n + 1));
}

TEST(SchedulesTest, WhatIsSentIsWrittenOverOnlyOnceItIsReceived) {
  // The last stage goes forward slowly, the first goes back slowly: those beside them wait.
  const Costs costs{.seconds = [](const RankProgram& rank, const Instruction& i) {
    const bool slow = i.kind == Kind::kForward ? rank.rank == 2 : rank.rank == 0;
    return is_pass(i.kind) && i.layer % 2 == 0 ? (slow ? 10.0 : 1.0) : 0.0;
  }};
  const Lowering lowering = pipeline(3);
  const auto ranks = ranks_of(PipelineSchedule::kGPipe, lowering, 4);
  std::map<std::tuple<size_t, Kind, int, int>, double> began;  // by rank, kind, micro-batch, layer
  const auto note = [&](size_t rank, const Instruction& i, double begin, double) {
    began[{rank, i.kind, i.micro_batch, i.layer}] = begin;
  };
  ASSERT_TRUE(simulate(ranks, lowering, costs, note));
  for (int m = 0; m < 3; ++m) {
    for (const int stage : {0, 1}) {
      const auto rank = static_cast<size_t>(stage);
      EXPECT_GE(began.at({rank, Kind::kForward, m + 1, 2 * stage + 1}),
                began.at({rank + 1, Kind::kReceiveActivation, m, 2 * stage + 2}))
          << "stage " << stage << ", micro-batch " << m;
    }
    // A stage has one buffer for gradients.
    EXPECT_GE(began.at({1, Kind::kReceiveGradient, m + 1, 3}),
              began.at({0, Kind::kReceiveGradient, m, 1}))
        << "micro-batch " << m;
  }
}

TEST(SchedulesTest, AnEvaluationGoesThroughAllStagesOfEachRank) {
  for (int p = 2; p <= 5; ++p) {
    for (int v = 1; v <= 3; ++v) {
      for (int m = 1; m <= 2 * p + 1; ++m) {
        Lowering lowering = pipeline(p, 3, 2, false, v);
        lowering.micro_batches = m;
        std::vector<RankProgram> ranks;
        for (int pp = 0; pp < p; ++pp) {
          lowering.at = {.pp = pp};
          ranks.push_back({.program = lower(evaluation_schedule(lowering.stages, m, pp), lowering),
                           .micro_batches = m,
                           .at = lowering.at,
                           .rank = pp});
        }
        const auto simulation = simulate(ranks, lowering);
        EXPECT_TRUE(simulation) << simulation.error().message;
      }
    }
  }
}

TEST(SchedulesTest, RoundsOfSeveralStagesAreFolded) {
  for (const int p : {2, 3, 6}) {
    const Lowering lowering = pipeline(p, 3, 2, false, 2);
    const auto few = ranks_of(PipelineSchedule::kInterleaved, lowering, 20 * p);
    const auto many = ranks_of(PipelineSchedule::kInterleaved, lowering, 60 * p);
    for (size_t rank = 0; rank < few.size(); ++rank) {
      EXPECT_EQ(few[rank].program.listed().size(), many[rank].program.listed().size())
          << "rank " << rank << " of " << p;
      EXPECT_LT(few[rank].program.listed().size(), few[rank].program.size());
    }
    const auto simulation = simulate(many, lowering);
    EXPECT_TRUE(simulation) << simulation.error().message;
  }
}

TEST(SchedulesTest, WhatRunsApartGathersNoWeights) {
  // Three stages of so many layers that none has all of them gathered at once.
  std::vector<layout::Unit> units;
  for (int layer = 14; layer >= 0; --layer)
    units.push_back({.layers = {layer}, .stages = {layer / 5}});
  const Lowering lowering = lowering_of({5, 10, 15}, units, {"pipeline", {.pp = 3, .fsdp = 2}, 3});
  for (const int micro_batches : {4, 23}) {
    const auto gathers_of = [&](PipelineSchedule schedule) {
      int gathers = 0;
      for (const RankProgram& rank : ranks_of(schedule, lowering, micro_batches)) {
        for (const Instruction& i : rank.program)
          gathers += i.kind == Kind::kGather ? 1 : 0;
      }
      return gathers;
    };
    EXPECT_EQ(gathers_of(PipelineSchedule::kZeroBubbleH1), gathers_of(PipelineSchedule::kOneFOneB));
  }
}

/// Every layer but the loss, which has none.
Lowering recomputing(Lowering lowering) {
  for (int layer = 0; layer + 1 < lowering.stages.layers(); ++layer)
    lowering.recomputed.push_back(layer);
  return lowering;
}

TEST(SchedulesTest, ComputeAgainWithAnyZeroStageAndHoldNoMoreMicroBatches) {
  const auto expect_alike = [](PipelineSchedule schedule, const Lowering& lowering, int m) {
    const Lowering again = recomputing(lowering);
    const auto kept = simulate(ranks_of(schedule, lowering, m), lowering);
    const auto found = simulate(ranks_of(schedule, again, m), again);
    ASSERT_TRUE(kept) << kept.error().message;
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->in_flight_max, kept->in_flight_max);
    EXPECT_EQ(found->bytes_sent, kept->bytes_sent);
  };
  for (int stages = 1; stages <= 4; ++stages) {
    for (const int zero_stage : {1, 2, 3}) {
      for (const int m : {1, 3, 23}) {
        const Lowering lowering = pipeline(stages, zero_stage, 2, m == 3);
        for (const PipelineSchedule schedule : kSchedules)
          expect_alike(schedule, lowering, m);
      }
      if (stages > 1) {
        expect_alike(PipelineSchedule::kInterleaved, pipeline(stages, zero_stage, 2, false, 2),
                     5 * stages);
      }
    }
  }
}

TEST(SchedulesTest, ComputeAgainWhileTheGradientIsOnItsWay) {
  // F, RECOMPUTE and B of 3, 3 and 4 seconds on the last layer of the first stage, F and B on the
  // loss, and nothing else.
  const Lowering lowering = recomputing(pipeline(2));
  const Costs costs{.seconds = [](const RankProgram&, const Instruction& i) {
    if (i.layer != 1 && i.layer != 3) return 0.0;
    return i.kind == Kind::kForward || i.kind == Kind::kRecompute ? 3.0
           : i.kind == Kind::kBackwardInput                       ? 4.0
                                                                  : 0.0;
  }};
  const auto found = simulate(ranks_of(PipelineSchedule::kOneFOneB, lowering, 1), lowering, costs);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->end_seconds[0], 3 + 3 + 4 + 4) << "the first stage does not wait to compute";
}

TEST(SchedulesTest, PlantedFaultsAreFound) {
  const auto erase = [](Kind kind, int m) {
    return [=](std::vector<Instruction>& program) { program.erase(find(program, kind, m)); };
  };
  const auto again = [](Kind kind, int m) {
    return [=](std::vector<Instruction>& program) {
      const auto at = find(program, kind, m);
      program.insert(at, *at);
    };
  };
  const auto swapped = [](Kind kind, int a, int b) {
    return [=](std::vector<Instruction>& program) {
      std::iter_swap(find(program, kind, a), find(program, kind, b));
    };
  };
  for (const PipelineSchedule schedule :
       {PipelineSchedule::kNaive, PipelineSchedule::kGPipe, PipelineSchedule::kOneFOneB,
        PipelineSchedule::kZeroBubbleH1, PipelineSchedule::kInterleaved}) {
    EXPECT_THAT(said_after(schedule, 1, erase(Kind::kSendActivation, 2)),
                HasSubstr("rank 1: SEND m2 l4 is missing"));
    EXPECT_THAT(said_after(schedule, 1, erase(Kind::kSendGradient, 0)),
                HasSubstr("rank 1: SEND_GRADIENT m0 l"));
    EXPECT_THAT(said_after(schedule, 1, erase(Kind::kReceiveActivation, 1)),
                HasSubstr("its input is not received"));
    EXPECT_THAT(said_after(schedule, 0, erase(Kind::kReceiveGradient, 3)),
                HasSubstr("no gradient is received"));
    EXPECT_THAT(said_after(schedule, 0, again(Kind::kSendActivation, 0)), HasSubstr("sent twice"));
    EXPECT_THAT(said_after(schedule, 1, again(Kind::kReceiveActivation, 0)),
                HasSubstr("received twice"));
    EXPECT_THAT(
        said_after(schedule, 1,
                   [](auto& program) { find(program, Kind::kSendActivation, 0)->peer = 0; }),
        HasSubstr("another rank has it"));
    EXPECT_THAT(said_after(schedule, 1,
                           [](auto& program) { ++find(program, Kind::kSendActivation, 0)->layer; }),
                HasSubstr("no stage begins or ends there"));
    EXPECT_THAT(said_after(schedule, 1, swapped(Kind::kSendGradient, 0, 1)),
                HasSubstr("its backward is not complete"));
    EXPECT_THAT(said_after(schedule, 0, swapped(Kind::kSendActivation, 0, 1)),
                HasSubstr("is not complete"));
  }
  // Each side's order is one that a rank could have; together they are none.
  const auto later = [](std::vector<Instruction>& program) {
    const auto first = find(program, Kind::kSendActivation, 0);
    const auto second = find(program, Kind::kSendActivation, 1);
    std::rotate(first, first + 1, second + 1);
  };
  EXPECT_THAT(said_after(PipelineSchedule::kGPipe, 0, later), HasSubstr("instead: deadlock"));
}

TEST(SchedulesTest, ActivationsOfTwoStagesThatChangePlacesAreADeadlock) {
  // The first rank sends what its first stage leaves and what its second does through one channel.
  const auto swapped = [](std::vector<Instruction>& program) {
    const auto of_layer = [&](int layer) {
      return std::find_if(program.begin(), program.end(), [&](const Instruction& i) {
        return i.kind == Kind::kSendActivation && i.layer == layer;
      });
    };
    // Six stages of two layers: the third message of stage 0 after the first of stage 3.
    const auto third = std::find_if(of_layer(2), program.end(), [](const Instruction& i) {
      return i.kind == Kind::kSendActivation && i.layer == 2 && i.micro_batch == 2;
    });
    std::rotate(third, third + 1, of_layer(8) + 1);
  };
  EXPECT_THAT(said_after(PipelineSchedule::kInterleaved, 0, swapped),
              HasSubstr("instead: deadlock"));
}

TEST(SchedulesTest, WhatIsFreedOrReducedTooEarlyIsFound) {
  // A kept part is free after its micro-batch's last pass: an F that comes no more before the B of
  // the same stage and micro-batch.
  const auto b_before_f = [](std::vector<Instruction>& program) {
    const auto back = std::find_if(program.begin(), program.end(), [](const Instruction& i) {
      return i.kind == Kind::kBackwardInput && i.micro_batch == 0;
    });
    const auto forward = find(program, Kind::kForward, 0);
    std::rotate(forward, back, back + 1);
  };
  const auto w_after_reduce = [](std::vector<Instruction>& program) {
    const auto last = std::find_if(program.rbegin(), program.rend(),
                                   [](const Instruction& i) { return is_pass(i.kind); });
    const Instruction late = *last;
    program.erase(last.base() - 1);
    const auto control = std::find_if(program.begin(), program.end(), [](const Instruction& i) {
      return i.kind == Kind::kReduceControl;
    });
    program.insert(control, late);
  };
  const auto gradient_twice = [](std::vector<Instruction>& program) {
    // The next gradient is to arrive while the one before is still read.
    const auto first = find(program, Kind::kReceiveGradient, 0);
    const auto second = find(program, Kind::kReceiveGradient, 1);
    std::rotate(first + 1, second, second + 1);
  };
  for (const PipelineSchedule schedule :
       {PipelineSchedule::kOneFOneB, PipelineSchedule::kZeroBubbleH1,
        PipelineSchedule::kInterleaved}) {
    for (const int zero_stage : {1, 2}) {
      EXPECT_THAT(said_after(schedule, 1, b_before_f, zero_stage),
                  HasSubstr("its forward is not complete"));
      EXPECT_THAT(said_after(schedule, 1, w_after_reduce, zero_stage),
                  HasSubstr("still adds to the unit"));
      EXPECT_THAT(said_after(schedule, 1, gradient_twice, zero_stage),
                  HasSubstr("the gradient of micro-batch 0 is still read"));
    }
  }
}

TEST(SchedulesTest, ARankThatGoesForwardTooFarAheadIsADeadlock) {
  const Lowering lowering = pipeline(3, 1, 1, false, 2);
  const auto said_of = [&](int rank, const std::function<void(Schedule&)>& change) {
    std::vector<RankProgram> ranks = ranks_of(PipelineSchedule::kInterleaved, lowering, 6);
    Schedule schedule = interleaved(lowering.stages, 6, rank);
    change(schedule);
    Lowering own = lowering;
    own.at = {.pp = rank};
    own.micro_batches = 6;
    ranks[static_cast<size_t>(rank)].program = lower(schedule, own);
    const auto simulation = simulate(ranks, lowering);
    return simulation ? "nothing" : simulation.error().message;
  };
  EXPECT_THAT(said_of(2,
                      [](Schedule& schedule) {
                        // All forward first: the first rank waits for gradients meanwhile.
                        std::stable_sort(
                            schedule.begin(), schedule.end(), [](const Pass& a, const Pass& b) {
                              return (a.kind == Kind::kForward) > (b.kind == Kind::kForward);
                            });
                      }),
              HasSubstr("deadlock"));
}

TEST(SchedulesTest, AWarmUpOneTooLongIsADeadlock) {
  const Lowering lowering = pipeline(3);
  std::vector<RankProgram> ranks = ranks_of(PipelineSchedule::kOneFOneB, lowering, 6);
  // The last stage is to go forward with two before it goes back with the first, and the first
  // stage has sent one less.
  Lowering last = lowering;
  last.at = {.pp = 2};
  last.micro_batches = 6;
  Schedule schedule = one_f_one_b(lowering.stages, 6, 0);
  for (Pass& pass : schedule)
    pass.stage = 2;
  schedule.insert(schedule.begin() + 2, schedule[2 + 3]);
  schedule.erase(schedule.begin() + 2 + 4);
  ranks[2].program = lower(schedule, last);
  const auto simulation = simulate(ranks, lowering);
  ASSERT_FALSE(simulation);
  EXPECT_THAT(simulation.error().message, HasSubstr("deadlock"));
}

TEST(SchedulesTest, ARankWithFewerMicroBatchesOwesNobodyAMessage) {
  for (const PipelineSchedule schedule : kSchedules) {
    for (const int zero_stage : {1, 2, 3}) {
      Lowering lowering = pipeline(3, zero_stage, 2);
      std::vector<RankProgram> ranks;
      for (int pp = 0; pp < 3; ++pp) {
        for (int d = 0; d < 2; ++d) {
          lowering.at = {.pp = pp, .fsdp = d};
          lowering.micro_batches = d == 0 ? 5 : 4;
          ranks.push_back(
              {.program = lower(training_schedule(schedule, lowering.stages, 5, pp), lowering),
               .micro_batches = lowering.micro_batches,
               .at = lowering.at,
               .rank = static_cast<int>(ranks.size())});
        }
      }
      const auto simulation = simulate(ranks, lowering);
      EXPECT_TRUE(simulation) << simulation.error().message;
    }
  }
}

}  // namespace
}  // namespace trainyard::engine
