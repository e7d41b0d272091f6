#include "worker/program/rank_rules.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "common/base/check.h"

namespace trainyard::engine {

Error violation(int rank, size_t index, const Instruction& instruction, const std::string& rule) {
  return {ErrorCode::kInternal, "step program of rank " + std::to_string(rank) + ", instruction " +
                                    std::to_string(index) + " (" + to_string(instruction) +
                                    "): " + rule};
}

Error violation(int rank, const std::string& what) {
  return {ErrorCode::kInternal, "step program of rank " + std::to_string(rank) + ": " + what};
}

HeldPart::HeldPart(const Lowering& lowering, const layout::Coordinate& at)
    : layout_(*lowering.layout),
      at_(at),
      units_of_layer_(static_cast<size_t>(lowering.stage_end.back())) {
  const auto stage = static_cast<size_t>(at.pp);
  TRAINYARD_CHECK(stage < lowering.stage_end.size());
  layers_ = {stage == 0 ? 0 : lowering.stage_end[stage - 1], lowering.stage_end[stage]};
  for (int unit = 0; unit < layout_.units(); ++unit) {
    for (const int layer : layout_.unit(unit).layers)
      units_of_layer_[static_cast<size_t>(layer)].push_back(unit);
  }
}

namespace {

/// State of one rank's walk through its program.
class RankCheck {
 public:
  RankCheck(int rank, int micro_batches, const ProgramKind& kind, const HeldPart& held,
            const Lowering& lowering)
      : rank_(rank),
        kind_(kind),
        rounds_(lowering.layout->sharding().sums ? kind.rounds : 1),
        held_(held),
        lowering_(lowering),
        micro_batches_(static_cast<size_t>(micro_batches), MicroBatch(held.layers())),
        units_(static_cast<size_t>(lowering.layout->units())) {}

  Status walk(const std::vector<Instruction>& program) {
    for (size_t index = 0; index < program.size(); ++index) {
      const std::string rule = broken_rule(program[index]);
      if (!rule.empty()) return violation(rank_, index, program[index], rule);
    }
    const std::optional<Instruction> missing = first_missing();
    if (!missing) return {};
    return violation(rank_, to_string(*missing) + " is missing");
  }

 private:
  struct MicroBatch {
    explicit MicroBatch(layout::Range layers)
        : forward_next(static_cast<int>(layers.begin)),
          backward_next(static_cast<int>(layers.end) - 1),
          weighted(static_cast<size_t>(layers.end)) {}
    int forward_next;
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

  const layout::Sharding& sharding() const { return lowering_.layout->sharding(); }
  int first_layer() const { return static_cast<int>(held_.layers().begin); }
  int end_layer() const { return static_cast<int>(held_.layers().end); }

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
    if (i.layer < 0 || i.layer >= lowering_.stage_end.back()) {
      return "no such layer: there are " + std::to_string(lowering_.stage_end.back());
    }
    if (!held_.has_layer(i.layer)) return "the rank does not hold the layer";
    if (controlled_) return "loss and overflow have been reduced already";
    for (const int unit : held_.units_of(i.layer)) {
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

  std::string turn_of(int layer, const char* direction) const {
    if (!held_.has_layer(layer)) return "runs twice";
    return "layer " + std::to_string(layer) + " must go " + direction + " first";
  }

  std::string forward(const Instruction& i, MicroBatch& m) const {
    if (i.layer != m.forward_next) return turn_of(m.forward_next, "forward");
    ++m.forward_next;
    return "";
  }

  std::string backward_input(const Instruction& i, MicroBatch& m) const {
    if (m.forward_next != end_layer()) return "its forward is not complete";
    if (i.layer != m.backward_next) return turn_of(m.backward_next, "backward");
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
    if (!held_.holds(i.unit)) return "the rank does not hold the unit";
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
        if (!sharding().weights && !unit.optimized && !kind_.only_gathers) {
          return kind_.trains ? "gathered before it was updated" : "its weights are whole";
        }
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
      for (const int layer : lowering_.layout->unit(unit).layers) {
        if (!held_.has_layer(layer)) continue;
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
    if (!held_.has_copies(i.unit)) return "there is one copy";
    if (std::exchange(unit.all_reduced, true)) return "runs twice";
    if (!is_reduced(unit)) return "its parts are not complete";
    return still_added(i.unit, -1);
  }

  bool is_summed(int unit) const {
    const Unit& done = units_[static_cast<size_t>(unit)];
    return is_reduced(done) && done.all_reduced == held_.has_copies(unit);
  }

  std::string reduce_control() {
    if (std::exchange(controlled_, true)) return "runs twice";
    for (int unit = 0; kind_.trains && unit < std::ssize(units_); ++unit) {
      if (held_.holds(unit) && !is_summed(unit)) return "before every unit is reduced";
    }
    return "";
  }

  /// The first layer of a micro-batch whose W has not run; end_layer() where all have.
  int first_unweighted(const MicroBatch& m) const {
    return static_cast<int>(std::find(m.weighted.begin() + first_layer(), m.weighted.end(), false) -
                            m.weighted.begin());
  }

  /// The first instruction that should have come and did not.
  std::optional<Instruction> first_missing() const {
    for (int m = 0; m < std::ssize(micro_batches_); ++m) {
      const MicroBatch& done = micro_batches_[static_cast<size_t>(m)];
      Instruction next{.micro_batch = m};
      if (done.forward_next < end_layer() || !kind_.trains) {
        next.kind = InstructionKind::kForward;
        next.layer = done.forward_next;
      } else if (done.backward_next >= first_layer()) {
        next.kind = InstructionKind::kBackwardInput;
        next.layer = done.backward_next;
      } else {
        next.kind = InstructionKind::kBackwardWeight;
        next.layer = first_unweighted(done);
      }
      if (next.layer < end_layer()) return next;
    }
    if (!controlled_ && (kind_.trains || kind_.rounds > 0))
      return Instruction{.kind = InstructionKind::kReduceControl};
    const bool gathers =
        sharding().parts && !sharding().weights && (kind_.trains || kind_.only_gathers);
    for (int unit = 0; unit < std::ssize(units_); ++unit) {
      if (!held_.holds(unit)) continue;
      const Unit& done = units_[static_cast<size_t>(unit)];
      if (kind_.trains && !done.optimized)
        return Instruction{.kind = InstructionKind::kOptimize, .unit = unit};
      if (done.gathered == gathers) continue;
      return Instruction{.kind = gathers ? InstructionKind::kGather : InstructionKind::kFree,
                         .unit = unit};
    }
    return std::nullopt;
  }

  int rank_;
  const ProgramKind kind_;
  int rounds_;
  const HeldPart& held_;
  const Lowering& lowering_;
  std::vector<MicroBatch> micro_batches_;
  std::vector<Unit> units_;
  bool controlled_ = false;
};

}  // namespace

Status check_rank(const std::vector<Instruction>& program, int rank, int micro_batches,
                  const ProgramKind& kind, const HeldPart& held, const Lowering& lowering) {
  return RankCheck(rank, micro_batches, kind, held, lowering).walk(program);
}

}  // namespace trainyard::engine
