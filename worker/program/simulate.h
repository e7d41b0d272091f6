#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/layout/mesh.h"
#include "worker/program/lower.h"
#include "worker/program/step_program.h"

namespace trainyard::engine {

/// The program of one rank of a simulation.
struct RankProgram {
  StepProgram program;
  int micro_batches = 0;  ///< of this rank
  layout::Coordinate at;  ///< says which stage it has and whom it meets
  int rank = 0;           ///< in the world; for messages
};

/// What instructions cost. Empty functions: nothing.
struct Costs {
  /// Of an instruction that begins a collective: of the collective, once all have come.
  std::function<double(const RankProgram& rank, const Instruction& instruction)> seconds;
  std::function<int64_t(const RankProgram& rank, const Instruction& instruction)> bytes_sent;
  /// Bytes of messages that leave before they are received: what the transport holds of a channel
  /// (comm::eager_bytes). Shortens waits, by bytes_sent; the order of instructions is judged as if
  /// it were 0, so that no program depends on it.
  int64_t eager_bytes = 0;
};

/// Told when a rank, by its place among those simulated, runs an instruction: in the seconds of
/// Costs, without what it waits for before.
using RunObserver =
    std::function<void(size_t rank, const Instruction& instruction, double begin, double end)>;

/// Logical times of a program's instructions. Rounds that are alike are stored once.
class Levels {
 public:
  /// Of a loop: the rounds that are not stored follow the `cut`-th stored instruction, are of
  /// `body` instructions, and each is `per_round` later than the one before.
  struct LeftOut {
    size_t cut = 0;
    size_t body = 0;
    int64_t per_round = 0;
  };

  Levels() = default;
  /// `stored`: of the program without so many `rounds` of each loop; loops ascend.
  Levels(std::vector<int64_t> stored, std::vector<LeftOut> loops, size_t rounds)
      : stored_(std::move(stored)), loops_(std::move(loops)), rounds_(rounds) {}

  int64_t operator[](size_t id) const;

 private:
  std::vector<int64_t> stored_;
  std::vector<LeftOut> loops_;
  size_t rounds_ = 0;
};

/// What simulate() finds, by place among the ranks it is given.
struct Simulation {
  /// One more than the latest of: the instruction before, and where an instruction waits for a
  /// collective, its beginning on every member. So whoever waits is later than the rank it waits
  /// for. The first is 1.
  std::vector<Levels> level;
  int64_t level_max = 0;           ///< over all ranks
  std::vector<int> in_flight_max;  ///< micro-batches forward of which not all has gone back
  std::vector<double> end_seconds;
  std::vector<int64_t> bytes_sent;
};

/// Runs the programs of all ranks together, before anything runs, and judges them: of a training
/// step, an evaluation, a sample, or of gathers alone. Ranks that differ on dp and fsdp alone are
/// taken to meet in all of their groups, so that one rank of each distinct program stands for all.
///  * every program comes to its end: no rank waits for a collective that another does not begin;
///  * the members of a group begin the same collectives in the same order;
///  * instructions name micro-batches, layers and units that exist and that the rank holds, and
///    nothing is missing or done twice: each micro-batch goes through every F (and B and W) once,
///    each unit is reduced and updated once (where sums are cut: reduced and accumulated once a
///    micro-batch of the rank that has most), and there is one REDUCE_CONTROL;
///  * layers of a micro-batch go forward in ascending and backward in descending order, B before W;
///  * each layer of Lowering::recomputed runs RECOMPUTE once per micro-batch, as the pass
///    before its B, and no other layer does;
///  * each unit is reduced after the last W that adds to it, and nothing is added to sums that are
///    under way; copies add up a unit once its parts are complete, and
///    round it once after that;
///  * REDUCE_CONTROL, which carries losses, overflows and the squares of gradients, comes after all
///    passes, reductions and rounding;
///  * each unit's OPT comes after REDUCE_CONTROL, and before its GATHER where weights are whole;
///  * where they are not, F and B of a layer run only while all its units are gathered, and all are
///    freed; W reads no weights.
/// Rules that need B and W hold where there are any. `lowering` is that of the programs but for
/// Lowering::micro_batches. `ran` may be empty. Errors: kInternal naming rank, instruction and
/// rule. Cost: rounds of micro-batches that are alike are run a few times, not all, unless `ran` is
/// to be told of them, messages are eager, or the ranks do not keep pace within 256 rounds: a stage
/// that has the loss alone never does where all micro-batches go forward first. An error then
/// counts the instructions that have run.
Result<Simulation> simulate(std::span<const RankProgram> ranks, const Lowering& lowering,
                            const Costs& costs = {}, const RunObserver& ran = {});

}  // namespace trainyard::engine
