#pragma once

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <span>
#include <vector>

#include "common/layout/layout.h"
#include "common/layout/stage_map.h"
#include "worker/program/schedule.h"
#include "worker/program/step_program.h"

namespace trainyard::engine {

/// What lowering needs to know of the model and of how its states are cut.
struct Lowering {
  layout::StageMap stages;
  /// Its units are in the order of reduction. Not owned; null: passes alone, no communication.
  const layout::Layout* layout = nullptr;
  layout::Coordinate at;  ///< of this rank, which has the units of its stage alone
  /// Micro-batches of this rank. The schedule has those of the rank that has most: whoever has
  /// fewer takes part in the communication of the others.
  int micro_batches = std::numeric_limits<int>::max();
  /// Ascending: the layers whose B comes after a RECOMPUTE.
  std::vector<int> recomputed;

  bool recomputes(int layer) const {
    return std::binary_search(recomputed.begin(), recomputed.end(), layer);
  }
};

/// What passes of a stage run.
struct StageLayers {
  layout::Range layers;
  /// The last layer is the loss, and there is a backward pass: its F then comes first in B, so that
  /// the logits' gradient, the largest of all activations, lives within one pass.
  bool with_loss = false;
  std::span<const int> recomputed;  ///< as Lowering::recomputed
};

/// A pass of a stage for a micro-batch, as lower() runs it: `kinds` is {F}, {B}, {W} or {B, W},
/// which go layer by layer together. RECOMPUTE comes right before the B of its layer, so that what
/// it computes is there for one layer at a time.
std::vector<Instruction> expand_pass(std::initializer_list<InstructionKind> kinds, int micro_batch,
                                     const StageLayers& stage);

/// Expands a schedule into a rank's step program: stages into layers, a B and the W of the same
/// stage and micro-batch after it layer by layer together, so that a gradient is complete early;
/// unless some W do not follow their B.
///
/// What each ZeRO stage (Rajbhandari et al. 2020) communicates is known here and nowhere else. A
/// unit's REDUCE starts once the last W that adds to it has run, and overlaps with the rest of
/// backward (Li et al. 2020, "PyTorch Distributed", section 3.2.3). Where gradient sums are cut,
/// that is once a micro-batch; ACCUMULATE ends it before the next unit's, so that the buffers of
/// two layers do. Copies add up their parts when these are complete; where sums are whole one unit
/// later, so that no pass waits for the parts. They round what they have added up yet one unit
/// later, for the same reason; a table of two stages last of all, since it is complete only when
/// both have gone back.
///
/// After REDUCE_CONTROL each rank updates its part of the units. Where it holds weights whole it
/// gathers them at once, in the order in which the next forward reads them, which alone waits for
/// them. Otherwise the passes of a layer gather what the next layer's need, and free what these
/// and those after them do not (Zhao et al. 2023, "PyTorch FSDP", section 3.3.2).
///
/// Between stages, a pass is preceded by the receipt of what it reads from another rank, and what
/// it leaves for another rank is sent after it. A gradient is sent before the W of the layer.
///
/// Ranks of a stage start the same collectives in the same order, whatever their number of
/// micro-batches. Messages are those of the rank's own micro-batches. Cost: rounds of micro-batches
/// that are alike are expanded a few times, not all.
StepProgram lower(const Schedule& schedule, const Lowering& lowering);

}  // namespace trainyard::engine
