#include "worker/program/checker.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "common/base/check.h"

namespace trainyard::engine {
namespace {

Error violation(int rank, size_t index, const Instruction& instruction, const std::string& rule) {
  return {ErrorCode::kInternal, "step program of rank " + std::to_string(rank) + ", instruction " +
                                    std::to_string(index) + " (" + to_string(instruction) +
                                    "): " + rule};
}

/// State of one rank's walk through its program.
class RankCheck {
 public:
  /// `rounds`: micro-batches of the rank that has most.
  RankCheck(int rank, int micro_batches, int rounds, const Lowering& lowering)
      : rank_(rank),
        rounds_(lowering.sharding.sums ? rounds : 1),
        layers_(lowering.stage_end.back()),
        lowering_(lowering),
        micro_batches_(static_cast<size_t>(micro_batches), MicroBatch(layers_)),
        units_(lowering.unit_layers.size()),
        units_of_layer_(static_cast<size_t>(layers_)) {
    for (int unit = 0; unit < std::ssize(units_); ++unit) {
      for (const int layer : lowering.unit_layers[static_cast<size_t>(unit)])
        units_of_layer_[static_cast<size_t>(layer)].push_back(unit);
    }
  }

  Status walk(const StepProgram& program) {
    for (size_t index = 0; index < program.size(); ++index) {
      const std::string rule = broken_rule(program[index]);
      if (!rule.empty()) return violation(rank_, index, program[index], rule);
    }
    const std::optional<Instruction> missing = first_missing();
    if (!missing) return {};
    return Error{ErrorCode::kInternal, "step program of rank " + std::to_string(rank_) + ": " +
                                           to_string(*missing) + " is missing"};
  }

 private:
  struct MicroBatch {
    explicit MicroBatch(int layers)
        : backward_next(layers - 1), weighted(static_cast<size_t>(layers)) {}
    int forward_next = 0;
    int backward_next;
    std::vector<bool> weighted;  // by layer
  };
  struct Unit {
    int reduced = 0;      // rounds
    int accumulated = 0;  // rounds
    bool all_reduced = false;
    bool optimized = false;
    bool gathered = false;  // of weights that stay whole: at the end; of others: now
  };

  const layout::Sharding& sharding() const { return lowering_.sharding; }
  bool has_layer(const Instruction& i) const { return i.layer >= 0 && i.layer < layers_; }

  std::string broken_rule(const Instruction& i) {
    switch (i.kind) {
      case InstructionKind::kForward:
      case InstructionKind::kBackwardInput:
      case InstructionKind::kBackwardWeight:
        return compute(i);
      case InstructionKind::kReduceControl:
        return reduce_control();
      case InstructionKind::kSnapshot:
        return "";
      default:
        return of_unit(i);
    }
  }

  std::string compute(const Instruction& i) {
    if (i.micro_batch < 0 || i.micro_batch >= std::ssize(micro_batches_)) {
      return "no such micro-batch: there are " + std::to_string(micro_batches_.size());
    }
    if (!has_layer(i)) return "no such layer: there are " + std::to_string(layers_);
    if (controlled_) return "loss and overflow have been reduced already";
    for (const int unit : units_of_layer_[static_cast<size_t>(i.layer)]) {
      const Unit& u = units_[static_cast<size_t>(unit)];
      if (sharding().weights && !u.gathered)
        return "unit " + std::to_string(unit) + " is not gathered";
      if (i.kind != InstructionKind::kBackwardWeight) continue;
      if (sharding().sums && u.reduced > u.accumulated)
        return "the sums of unit " + std::to_string(unit) + " are under way";
    }
    MicroBatch& m = micro_batches_[static_cast<size_t>(i.micro_batch)];
    if (i.kind == InstructionKind::kForward) return forward(i, m);
    if (i.kind == InstructionKind::kBackwardInput) return backward_input(i, m);
    return backward_weight(i, m);
  }

  static std::string turn_of(int layer, int layers, const char* direction) {
    if (layer < 0 || layer >= layers) return "runs twice";
    return "layer " + std::to_string(layer) + " must go " + direction + " first";
  }

  std::string forward(const Instruction& i, MicroBatch& m) const {
    if (i.layer != m.forward_next) return turn_of(m.forward_next, layers_, "forward");
    ++m.forward_next;
    return "";
  }

  std::string backward_input(const Instruction& i, MicroBatch& m) const {
    if (m.forward_next != layers_) return "its forward is not complete";
    if (i.layer != m.backward_next) return turn_of(m.backward_next, layers_, "backward");
    --m.backward_next;
    return "";
  }

  static std::string backward_weight(const Instruction& i, MicroBatch& m) {
    if (m.backward_next >= i.layer) return "its B has not run";
    const auto layer = static_cast<size_t>(i.layer);
    if (m.weighted[layer]) return "runs twice";
    m.weighted[layer] = true;
    return "";
  }

  std::string of_unit(const Instruction& i) {
    if (i.unit < 0 || i.unit >= std::ssize(units_)) {
      return "no such unit: there are " + std::to_string(units_.size());
    }
    Unit& unit = units_[static_cast<size_t>(i.unit)];
    switch (i.kind) {
      case InstructionKind::kReduce:
        return reduce(i, unit);
      case InstructionKind::kAccumulate:
        return accumulate(i, unit);
      case InstructionKind::kAllReduce:
        return all_reduce(i, unit);
      case InstructionKind::kOptimize:
        if (std::exchange(unit.optimized, true)) return "runs twice";
        return controlled_ ? "" : "loss, overflow and squares are not reduced";
      case InstructionKind::kGather:
        if (!sharding().parts) return "each rank has all of it";
        if (!sharding().weights && !unit.optimized) return "gathered before it was updated";
        return std::exchange(unit.gathered, true) ? "gathered twice" : "";
      case InstructionKind::kFree:
        if (!sharding().weights) return "weights are held whole";
        return std::exchange(unit.gathered, false) ? "" : "it is not gathered";
      default:
        return "unknown kind";
    }
  }

  /// Why the gradient of a unit is not complete yet, of a micro-batch or (-1) of all.
  std::string still_added(int unit, int micro_batch) const {
    for (int m = 0; m < std::ssize(micro_batches_); ++m) {
      if (micro_batch >= 0 && m != micro_batch) continue;
      for (const int layer : lowering_.unit_layers[static_cast<size_t>(unit)]) {
        if (micro_batches_[static_cast<size_t>(m)].weighted[static_cast<size_t>(layer)]) continue;
        return "layer " + std::to_string(layer) + " still adds to the unit";
      }
    }
    return "";
  }

  std::string reduce(const Instruction& i, Unit& unit) const {
    if (!sharding().parts) return "each rank has all of it";
    if (i.micro_batch != (sharding().sums ? unit.reduced : -1)) {
      return sharding().sums ? "micro-batch " + std::to_string(unit.reduced) + " comes first"
                             : "all micro-batches are reduced together";
    }
    if (sharding().sums && unit.reduced > unit.accumulated) return "its sums are under way";
    if (unit.reduced++ == rounds_) return "reduced twice";
    return still_added(i.unit, i.micro_batch);
  }

  std::string accumulate(const Instruction& i, Unit& unit) const {
    if (!sharding().sums) return "sums are held whole";
    if (i.micro_batch != unit.accumulated || unit.accumulated == unit.reduced) {
      return "it is not what was reduced last";
    }
    ++unit.accumulated;
    return "";
  }

  /// Over the shard axis.
  bool is_reduced(const Unit& unit) const {
    return !sharding().parts || (sharding().sums ? unit.accumulated : unit.reduced) == rounds_;
  }

  std::string all_reduce(const Instruction& i, Unit& unit) const {
    if (!sharding().copies) return "there is one copy";
    if (std::exchange(unit.all_reduced, true)) return "runs twice";
    if (!is_reduced(unit)) return "its parts are not complete";
    return still_added(i.unit, -1);
  }

  bool is_summed(const Unit& unit) const {
    return is_reduced(unit) && unit.all_reduced == sharding().copies;
  }

  std::string reduce_control() {
    if (std::exchange(controlled_, true)) return "runs twice";
    const bool complete = std::all_of(units_.begin(), units_.end(),
                                      [this](const Unit& unit) { return is_summed(unit); });
    return complete ? "" : "before every unit is reduced";
  }

  static int64_t first_false(const std::vector<bool>& all) {
    return std::find(all.begin(), all.end(), false) - all.begin();
  }

  /// The first instruction that should have come and did not.
  std::optional<Instruction> first_missing() const {
    for (int m = 0; m < std::ssize(micro_batches_); ++m) {
      const MicroBatch& done = micro_batches_[static_cast<size_t>(m)];
      Instruction next{.micro_batch = m};
      if (done.forward_next < layers_) {
        next.kind = InstructionKind::kForward;
        next.layer = done.forward_next;
      } else if (done.backward_next >= 0) {
        next.kind = InstructionKind::kBackwardInput;
        next.layer = done.backward_next;
      } else {
        next.kind = InstructionKind::kBackwardWeight;
        next.layer = static_cast<int>(first_false(done.weighted));
      }
      if (next.layer < layers_) return next;
    }
    if (!controlled_) return Instruction{.kind = InstructionKind::kReduceControl};
    const bool gathers = sharding().parts && !sharding().weights;
    for (int unit = 0; unit < std::ssize(units_); ++unit) {
      const Unit& done = units_[static_cast<size_t>(unit)];
      if (!done.optimized) return Instruction{.kind = InstructionKind::kOptimize, .unit = unit};
      if (done.gathered == gathers) continue;
      return Instruction{.kind = gathers ? InstructionKind::kGather : InstructionKind::kFree,
                         .unit = unit};
    }
    return std::nullopt;
  }

  int rank_;
  int rounds_;
  int layers_;
  const Lowering& lowering_;
  std::vector<MicroBatch> micro_batches_;
  std::vector<Unit> units_;
  std::vector<std::vector<int>> units_of_layer_;
  bool controlled_ = false;
};

std::vector<Instruction> collectives_of(const StepProgram& program) {
  std::vector<Instruction> found;
  std::copy_if(program.begin(), program.end(), std::back_inserter(found),
               [](const Instruction& i) { return begins_collective(i.kind); });
  return found;
}

}  // namespace

Status check_programs(const std::vector<StepProgram>& programs,
                      const std::vector<int>& micro_batches, const Lowering& lowering) {
  TRAINYARD_CHECK(micro_batches.size() == programs.size() && !programs.empty());
  const int rounds = *std::max_element(micro_batches.begin(), micro_batches.end());
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    RankCheck check(static_cast<int>(rank), micro_batches[rank], rounds, lowering);
    TRAINYARD_TRY(check.walk(programs[rank]));
  }
  for (size_t rank = 1; rank < programs.size(); ++rank) {
    const auto expected = collectives_of(programs[0]);
    const auto found = collectives_of(programs[rank]);
    for (size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
      if (i < expected.size() && i < found.size() && expected[i] == found[i]) continue;
      const Instruction& at = i < found.size() ? found[i] : expected[i];
      return violation(static_cast<int>(rank), i, at,
                       "collective " + std::to_string(i) + " differs from rank 0's: deadlock");
    }
  }
  return {};
}

}  // namespace trainyard::engine
