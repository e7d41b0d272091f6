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
      map_(lowering.stages),
      units_of_layer_(static_cast<size_t>(lowering.stages.layers())) {
  for (int stage = 0; stage < map_.size(); ++stage) {
    if (has_stage(stage)) stages_.push_back(stage);
  }
  TRAINYARD_CHECK(!stages_.empty());
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
        micro_batches_(static_cast<size_t>(micro_batches), MicroBatch(held.map())),
        gradient_of_(static_cast<size_t>(held.map().size()), -1),
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
  /// A micro-batch in a stage: the layers to go next, and what was exchanged with other stages.
  struct InStage {
    int forward_next = 0;
    int backward_next = 0;
    bool received_activation = false;
    bool sent_activation = false;
    bool received_gradient = false;
    bool sent_gradient = false;
  };
  struct MicroBatch {
    explicit MicroBatch(const layout::StageMap& map)
        : recomputed(static_cast<size_t>(map.layers())),
          weighted(static_cast<size_t>(map.layers())) {
      for (int stage = 0; stage < map.size(); ++stage) {
        const layout::Range layers = map.layers(stage);
        stages.push_back({.forward_next = static_cast<int>(layers.begin),
                          .backward_next = static_cast<int>(layers.end) - 1});
      }
    }
    std::vector<InStage> stages;
    std::vector<bool> recomputed;  // by layer
    std::vector<bool> weighted;    // by layer
  };
  struct Unit {
    int reduced = 0;      // rounds
    int accumulated = 0;  // rounds
    bool all_reduced = false;
    bool rounded = false;
    bool optimized = false;
    bool gathered = false;  // of weights that stay whole: at the end; of others: now
  };

  const layout::Sharding& sharding() const { return lowering_.layout->sharding(); }
  int first_layer(int stage) const { return static_cast<int>(held_.map().layers(stage).begin); }
  int end_layer(int stage) const { return static_cast<int>(held_.map().layers(stage).end); }

  std::string broken_rule(const Instruction& i) {
    switch (i.kind) {
      case InstructionKind::kForward:
      case InstructionKind::kRecompute:
      case InstructionKind::kBackwardInput:
      case InstructionKind::kBackwardWeight:
        return compute(i);
      case InstructionKind::kReduceControl:
        return reduce_control();
      case InstructionKind::kSnapshot:
        return "";
      case InstructionKind::kSendActivation:
      case InstructionKind::kReceiveActivation:
      case InstructionKind::kSendGradient:
      case InstructionKind::kReceiveGradient:
        return message(i);
      default:
        return of_unit(i);
    }
  }

  std::string unknown(const Instruction& i) const {
    if (i.micro_batch < 0 || i.micro_batch >= std::ssize(micro_batches_)) {
      return "no such micro-batch: there are " + std::to_string(micro_batches_.size());
    }
    if (i.layer < 0 || i.layer >= held_.map().layers()) {
      return "no such layer: there are " + std::to_string(held_.map().layers());
    }
    return controlled_ ? "loss and overflow have been reduced already" : "";
  }

  std::string compute(const Instruction& i) {
    if (std::string rule = unknown(i); !rule.empty()) return rule;
    if (!held_.has_layer(i.layer)) return "the rank does not hold the layer";
    for (const int unit : held_.units_of(i.layer)) {
      const Unit& u = units_[static_cast<size_t>(unit)];
      if (sharding().weights && !u.gathered && i.kind != InstructionKind::kBackwardWeight)
        return "unit " + std::to_string(unit) + " is not gathered";
      if (i.kind != InstructionKind::kBackwardWeight) continue;
      if (sharding().sums && u.reduced > u.accumulated)
        return "the sums of unit " + std::to_string(unit) + " are under way";
    }
    MicroBatch& m = micro_batches_[static_cast<size_t>(i.micro_batch)];
    if (i.kind == InstructionKind::kRecompute) return recompute(i, m);
    if (std::string rule = still_to_read(i); !rule.empty()) return rule;
    if (i.kind == InstructionKind::kForward) return forward(i, m);
    if (i.kind == InstructionKind::kBackwardInput) return backward_input(i, m);
    return backward_weight(i, m);
  }

  std::string turn_of(int stage, int layer, const char* direction) const {
    if (layer < first_layer(stage) || layer >= end_layer(stage)) return "runs twice";
    return "layer " + std::to_string(layer) + " must go " + direction + " first";
  }

  std::string forward(const Instruction& i, MicroBatch& m) const {
    const int stage = held_.map().stage_of(i.layer);
    InStage& in = m.stages[static_cast<size_t>(stage)];
    if (i.layer != in.forward_next) return turn_of(stage, in.forward_next, "forward");
    if (held_.map().has_before(stage) && !in.received_activation)
      return "its input is not received";
    ++in.forward_next;
    return "";
  }

  std::string backward_input(const Instruction& i, MicroBatch& m) const {
    const int stage = held_.map().stage_of(i.layer);
    InStage& in = m.stages[static_cast<size_t>(stage)];
    if (in.forward_next != end_layer(stage)) return "its forward is not complete";
    if (i.layer != in.backward_next) return turn_of(stage, in.backward_next, "backward");
    if (held_.map().has_after(stage) && !in.received_gradient) return "no gradient is received";
    if (lowering_.recomputes(i.layer) && !m.recomputed[static_cast<size_t>(i.layer)])
      return "its RECOMPUTE has not run";
    --in.backward_next;
    return "";
  }

  std::string recompute(const Instruction& i, MicroBatch& m) {
    if (!lowering_.recomputes(i.layer)) return "the layer keeps what its backward reads";
    const int stage = held_.map().stage_of(i.layer);
    const InStage& in = m.stages[static_cast<size_t>(stage)];
    if (in.forward_next != end_layer(stage)) return "its forward is not complete";
    if (in.backward_next < i.layer) return "its B has run";
    if (in.backward_next > i.layer) return turn_of(stage, in.backward_next, "backward");
    if (m.recomputed[static_cast<size_t>(i.layer)]) return "runs twice";
    if (std::string rule = still_to_read(i); !rule.empty()) return rule;
    m.recomputed[static_cast<size_t>(i.layer)] = true;
    recomputed_ = i;
    return "";
  }

  /// What a RECOMPUTE leaves lies where any other pass writes: its B comes next.
  std::string still_to_read(const Instruction& pass) {
    if (!recomputed_) return "";
    const bool reads = pass.kind == InstructionKind::kBackwardInput &&
                       pass.micro_batch == recomputed_->micro_batch &&
                       pass.layer == recomputed_->layer;
    if (!reads) return "what " + to_string(*recomputed_) + " left is still to be read by its B";
    recomputed_.reset();
    return "";
  }

  /// Each message once, in its place: what a pass reads before it, what it leaves after it.
  std::string message(const Instruction& i) {
    if (std::string rule = unknown(i); !rule.empty()) return rule;
    const bool activation =
        i.kind == InstructionKind::kSendActivation || i.kind == InstructionKind::kReceiveActivation;
    const bool receives = i.kind == InstructionKind::kReceiveActivation ||
                          i.kind == InstructionKind::kReceiveGradient;
    // The layer is the receiver's: its stage's first of an activation, its last of a gradient.
    const int receiver = held_.map().stage_of(i.layer);
    const int sender = activation ? receiver - 1 : receiver + 1;
    const int stage = receives ? receiver : sender;
    if (sender < 0 || sender >= held_.map().size() ||
        i.layer != (activation ? first_layer(receiver) : end_layer(receiver) - 1))
      return "no stage begins or ends there";
    if (!held_.has_stage(stage)) return "the rank does not hold the stage";
    if (i.peer != held_.map().pp_of(receives ? sender : receiver)) return "another rank has it";
    InStage& in =
        micro_batches_[static_cast<size_t>(i.micro_batch)].stages[static_cast<size_t>(stage)];
    if (i.kind == InstructionKind::kReceiveActivation)
      return std::exchange(in.received_activation, true) ? "received twice" : "";
    if (i.kind == InstructionKind::kReceiveGradient) return receive_gradient(i, stage, in);
    const bool complete =
        activation ? in.forward_next == end_layer(stage) : in.backward_next < first_layer(stage);
    if (!complete)
      return activation ? "its forward is not complete" : "its backward is not complete";
    return std::exchange(activation ? in.sent_activation : in.sent_gradient, true) ? "sent twice"
                                                                                   : "";
  }

  /// A stage has one buffer for it.
  std::string receive_gradient(const Instruction& i, int stage, InStage& in) {
    int& held = gradient_of_[static_cast<size_t>(stage)];
    if (std::exchange(in.received_gradient, true)) return "received twice";
    if (held >= 0) {
      const InStage& other =
          micro_batches_[static_cast<size_t>(held)].stages[static_cast<size_t>(stage)];
      if (other.backward_next >= first_layer(stage))
        return "the gradient of micro-batch " + std::to_string(held) + " is still read";
    }
    held = i.micro_batch;
    return "";
  }

  std::string backward_weight(const Instruction& i, MicroBatch& m) const {
    if (m.stages[static_cast<size_t>(held_.map().stage_of(i.layer))].backward_next >= i.layer)
      return "its B has not run";
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
      case InstructionKind::kRound:
        if (!unit.all_reduced) return "its copies are not added up";
        return std::exchange(unit.rounded, true) ? "runs twice" : "";
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
    return is_reduced(done) && done.rounded == held_.has_copies(unit);
  }

  std::string reduce_control() {
    if (std::exchange(controlled_, true)) return "runs twice";
    for (int unit = 0; kind_.trains && unit < std::ssize(units_); ++unit) {
      if (held_.holds(unit) && !is_summed(unit)) return "before every unit is reduced and rounded";
    }
    return "";
  }

  /// What of a micro-batch should have run or been sent in a stage and was not.
  std::optional<Instruction> missing_in_stage(const MicroBatch& m, int stage) const {
    const InStage& in = m.stages[static_cast<size_t>(stage)];
    if (in.forward_next < end_layer(stage))
      return Instruction{.kind = InstructionKind::kForward, .layer = in.forward_next};
    if (held_.map().has_after(stage) && !in.sent_activation)
      return Instruction{.kind = InstructionKind::kSendActivation, .layer = end_layer(stage)};
    if (!kind_.trains) return std::nullopt;
    if (in.backward_next >= first_layer(stage))
      return Instruction{.kind = InstructionKind::kBackwardInput, .layer = in.backward_next};
    if (held_.map().has_before(stage) && !in.sent_gradient)
      return Instruction{.kind = InstructionKind::kSendGradient, .layer = first_layer(stage) - 1};
    for (int layer = first_layer(stage); layer < end_layer(stage); ++layer) {
      if (!m.weighted[static_cast<size_t>(layer)])
        return Instruction{.kind = InstructionKind::kBackwardWeight, .layer = layer};
    }
    return std::nullopt;
  }

  /// The first instruction that should have come and did not.
  std::optional<Instruction> first_missing() const {
    for (int m = 0; m < std::ssize(micro_batches_); ++m) {
      for (const int stage : held_.stages()) {
        auto missing = missing_in_stage(micro_batches_[static_cast<size_t>(m)], stage);
        if (!missing) continue;
        missing->micro_batch = m;
        return missing;
      }
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
  std::vector<int> gradient_of_;  // by stage: of which micro-batch its buffer has the gradient
  std::vector<Unit> units_;
  std::optional<Instruction> recomputed_;  // the last RECOMPUTE, until its B
  bool controlled_ = false;
};

}  // namespace

Status check_rank(const std::vector<Instruction>& program, int rank, int micro_batches,
                  const ProgramKind& kind, const HeldPart& held, const Lowering& lowering) {
  return RankCheck(rank, micro_batches, kind, held, lowering).walk(program);
}

}  // namespace trainyard::engine
