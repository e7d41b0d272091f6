#pragma once

#include <string_view>

#include "common/api/engine_spec.h"
#include "common/layout/stage_map.h"
#include "worker/program/schedule.h"

/// What each rank of a pipeline runs in which order: pure functions of the cut into stages, the
/// number of micro-batches and the rank's coordinate `pp`. F, B and W are the times of a rank's
/// passes, p the ranks, m the micro-batches.
namespace trainyard::engine {

/// One micro-batch at a time, forward and back through all stages: m p (F + B + W). What every
/// other schedule is compared with.
Schedule naive(const layout::StageMap& stages, int micro_batches, int pp);

/// All micro-batches forward, then all back (Huang et al. 2019, "GPipe"): (m + p - 1)(F + B + W),
/// with m micro-batches in flight.
Schedule gpipe(const layout::StageMap& stages, int micro_batches, int pp);

/// One forward, one backward (Narayanan et al. 2019, "PipeDream", with a flush at the end of the
/// step): takes as long as gpipe(), with min(m, p - pp) micro-batches in flight.
Schedule one_f_one_b(const layout::StageMap& stages, int micro_batches, int pp);

/// one_f_one_b() with W apart from B, so that stages do W where they would wait for a gradient (Qi
/// et al. 2023, "Zero Bubble Pipeline Parallelism", ZB-H1): m (F + B + W) + (p - 1)(F + B) -
/// (min(m, p) - 1) min(F, B, W), with min(m, p) micro-batches in flight until their W.
Schedule zero_bubble_h1(const layout::StageMap& stages, int micro_batches, int pp);

/// one_f_one_b() over ranks with several stages each (Narayanan et al. 2021, "Megatron-LM"): p
/// micro-batches go through a rank's first stage, then through its second, and so on. With v stages
/// per rank m (F + B + W) + (p - 1)(F + B + W) / v, and at most min(v m, 2 (p - 1 - pp) + (v - 1) p
/// + 1) times a micro-batch in a stage in flight. CHECKs that p divides m.
Schedule interleaved(const layout::StageMap& stages, int micro_batches, int pp);

/// The schedule of a training step. One rank without others runs one micro-batch after the other.
Schedule training_schedule(api::PipelineSchedule schedule, const layout::StageMap& stages,
                           int micro_batches, int pp);

/// How long a rank's passes take, all its stages together, for one micro-batch.
struct PassTimes {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
};

/// The part of a step in which ranks wait, by a schedule's formula.
struct Bubble {
  double share = 0;
  std::string_view formula;  ///< in p, m, F, B and W, and v for the stages of a rank
};

/// Of a pipeline whose ranks take equally long and whose messages take no time. That of
/// ZeroBubbleH1 is exact. Those of the others are upper bounds: a gradient leaves before the W of
/// its layer.
Bubble bubble_of(api::PipelineSchedule schedule, const layout::StageMap& stages, int micro_batches,
                 const PassTimes& times);

/// Forward only, of any number of micro-batches, in the order of interleaved().
Schedule evaluation_schedule(const layout::StageMap& stages, int micro_batches, int pp);

}  // namespace trainyard::engine
