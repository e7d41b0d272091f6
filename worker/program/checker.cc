#include "worker/program/checker.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>

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
  RankCheck(int rank, int micro_batches, int layers, const std::vector<int>& ready)
      : rank_(rank),
        layers_(layers),
        ready_(ready),
        micro_batches_(static_cast<size_t>(micro_batches), MicroBatch(layers)),
        weights_left_(static_cast<size_t>(layers)),
        reduced_(ready.size()),
        optimized_(ready.size()),
        gathered_(ready.size()) {}

  Status walk(const StepProgram& program) {
    for (const Instruction& i : program) {
      const bool adds = i.kind == InstructionKind::kBackwardWeight && has_layer(i);
      if (adds) ++weights_left_[static_cast<size_t>(i.layer)];
    }
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

  bool has_layer(const Instruction& i) const { return i.layer >= 0 && i.layer < layers_; }

  std::string broken_rule(const Instruction& i) {
    switch (i.kind) {
      case InstructionKind::kForward:
      case InstructionKind::kBackwardInput:
      case InstructionKind::kBackwardWeight:
        return compute(i);
      case InstructionKind::kReduce:
      case InstructionKind::kOptimize:
      case InstructionKind::kGather:
        return of_unit(i);
      case InstructionKind::kReduceControl:
        return reduce_control();
      case InstructionKind::kSnapshot:
        return "";
    }
    return "unknown kind";
  }

  std::string compute(const Instruction& i) {
    if (i.micro_batch < 0 || i.micro_batch >= std::ssize(micro_batches_)) {
      return "no such micro-batch: there are " + std::to_string(micro_batches_.size());
    }
    if (!has_layer(i)) return "no such layer: there are " + std::to_string(layers_);
    if (controlled_) return "loss and overflow have been reduced already";
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

  std::string backward_weight(const Instruction& i, MicroBatch& m) {
    if (m.backward_next >= i.layer) return "its B has not run";
    const auto layer = static_cast<size_t>(i.layer);
    if (m.weighted[layer]) return "runs twice";
    m.weighted[layer] = true;
    --weights_left_[layer];
    return "";
  }

  std::string of_unit(const Instruction& i) {
    if (i.unit < 0 || i.unit >= std::ssize(ready_)) {
      return "no such unit: there are " + std::to_string(ready_.size());
    }
    const auto unit = static_cast<size_t>(i.unit);
    if (i.kind == InstructionKind::kReduce) return reduce(unit);
    if (i.kind == InstructionKind::kOptimize) return optimize(unit);
    return gather(unit);
  }

  std::string reduce(size_t unit) {
    if (reduced_[unit]) return "reduced twice";
    reduced_[unit] = true;
    for (int c = ready_[unit]; c < layers_; ++c) {
      if (weights_left_[static_cast<size_t>(c)] > 0) {
        return "layer " + std::to_string(c) + " still adds to the unit";
      }
    }
    return "";
  }

  std::string reduce_control() {
    if (controlled_) return "runs twice";
    controlled_ = true;
    return first_false(reduced_) == std::ssize(reduced_) ? "" : "before every unit is reduced";
  }

  std::string optimize(size_t unit) {
    if (optimized_[unit]) return "runs twice";
    optimized_[unit] = true;
    return controlled_ ? "" : "loss, overflow and squares are not reduced";
  }

  std::string gather(size_t unit) {
    if (!optimized_[unit]) return "gathered before it was updated";
    if (gathered_[unit]) return "gathered twice";
    gathered_[unit] = true;
    return "";
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
    const auto unit = static_cast<int>(first_false(gathered_));
    if (unit == std::ssize(gathered_)) return std::nullopt;
    return Instruction{.kind = optimized_[static_cast<size_t>(unit)] ? InstructionKind::kGather
                                                                     : InstructionKind::kOptimize,
                       .unit = unit};
  }

  int rank_;
  int layers_;
  const std::vector<int>& ready_;
  std::vector<MicroBatch> micro_batches_;
  std::vector<int> weights_left_;  // by layer: W that are still to come
  std::vector<bool> reduced_;      // by unit
  std::vector<bool> optimized_;    // by unit
  std::vector<bool> gathered_;     // by unit
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
                      const std::vector<int>& micro_batches, int layers,
                      const std::vector<int>& unit_ready_layer) {
  TRAINYARD_CHECK(micro_batches.size() == programs.size());
  for (const int layer : unit_ready_layer)
    TRAINYARD_CHECK(layer >= 0 && layer < layers);
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    RankCheck check(static_cast<int>(rank), micro_batches[rank], layers, unit_ready_layer);
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
