#include "worker/program/lower.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

namespace trainyard::engine {
namespace {

using Kind = InstructionKind;

/// Passes of the schedule by layer, without communication.
StepProgram expand_stages(const Schedule& schedule, const std::vector<int>& stage_end) {
  StepProgram program;
  const auto add = [&](const Pass& pass, int layer) {
    program.push_back({.kind = pass.kind, .micro_batch = pass.micro_batch, .layer = layer});
  };
  for (size_t i = 0; i < schedule.size(); ++i) {
    const Pass& pass = schedule[i];
    const auto stage = static_cast<size_t>(pass.stage);
    const int begin = stage == 0 ? 0 : stage_end[stage - 1];
    const int end = stage_end[stage];
    if (pass.kind == Kind::kForward) {
      for (int layer = begin; layer < end; ++layer)
        add(pass, layer);
      continue;
    }
    const Pass weights{Kind::kBackwardWeight, pass.micro_batch, pass.stage};
    const bool together =
        pass.kind == Kind::kBackwardInput && i + 1 < schedule.size() && schedule[i + 1] == weights;
    for (int layer = end - 1; layer >= begin; --layer) {
      add(pass, layer);
      if (together) add(weights, layer);
    }
    if (together) ++i;
  }
  return program;
}

/// Puts communication between the passes of a schedule.
class Lowered {
 public:
  Lowered(const Schedule& schedule, const Lowering& lowering)
      : lowering_(lowering),
        units_(static_cast<int>(lowering.unit_layers.size())),
        passes_(expand_stages(schedule, lowering.stage_end)),
        units_of_layer_(static_cast<size_t>(lowering.stage_end.back())) {
    for (int unit = 0; unit < units_; ++unit) {
      for (const int layer : lowering.unit_layers[static_cast<size_t>(unit)])
        units_of_layer_[static_cast<size_t>(layer)].push_back(unit);
    }
    find_reductions();
    for (const Instruction& pass : passes_) {
      if (stays_.empty() || pass.layer != stays_.back()) stays_.push_back(pass.layer);
    }
  }

  StepProgram take() {
    for (size_t i = 0; i <= passes_.size(); ++i) {
      start_reductions(i);
      if (i < passes_.size()) pass(i);
    }
    finish_reductions();
    // Last, because overflows of backward and squares of gradients travel with it.
    if (lowering_.reduces_control) program_.push_back({.kind = Kind::kReduceControl});
    if (trains_) update();
    return std::move(program_);
  }

 private:
  struct Reduction {
    int unit = 0;
    int micro_batch = -1;  ///< -1: of all of them together
    bool last = false;     ///< of the step
  };

  bool uses(int unit, int layer) const {
    const std::vector<int>& layers = lowering_.unit_layers[static_cast<size_t>(unit)];
    return std::binary_search(layers.begin(), layers.end(), layer);
  }

  /// By place among the passes: after the last W that adds to a unit, of each micro-batch or of
  /// all.
  void find_reductions() {
    const bool by_micro_batch = lowering_.sharding.sums;
    std::map<int, std::vector<size_t>> ends;  // by micro-batch: after its last W of each unit
    for (size_t i = 0; i < passes_.size(); ++i) {
      if (passes_[i].kind != Kind::kBackwardWeight) continue;
      trains_ = true;
      auto& end = ends[by_micro_batch ? passes_[i].micro_batch : -1];
      // What no op uses has no gradient and is reduced first.
      if (end.empty()) end.resize(static_cast<size_t>(units_), by_micro_batch ? i : 0);
      for (const int unit : units_of_layer_[static_cast<size_t>(passes_[i].layer)])
        end[static_cast<size_t>(unit)] = i + 1;
    }
    for (const auto& [micro_batch, end] : ends) {
      for (int unit = 0; unit < units_; ++unit)
        reductions_[end[static_cast<size_t>(unit)]].push_back({unit, micro_batch});
    }
    std::set<int> seen;
    for (auto place = reductions_.rbegin(); place != reductions_.rend(); ++place) {
      for (Reduction& reduction : place->second)
        reduction.last = seen.insert(reduction.unit).second;
    }
  }

  void start_reductions(size_t place) {
    const auto due = reductions_.find(place);
    if (due == reductions_.end()) return;
    finish_reductions();
    for (const Reduction& reduction : due->second) {
      if (lowering_.sharding.parts) {
        program_.push_back(
            {.kind = Kind::kReduce, .micro_batch = reduction.micro_batch, .unit = reduction.unit});
      }
      pending_.push_back(reduction);
    }
    if (!lowering_.sharding.parts) finish_reductions();
  }

  void finish_reductions() {
    for (const Reduction& reduction : std::exchange(pending_, {})) {
      if (lowering_.sharding.sums) {
        program_.push_back({.kind = Kind::kAccumulate,
                            .micro_batch = reduction.micro_batch,
                            .unit = reduction.unit});
      }
      if (lowering_.sharding.copies && reduction.last)
        program_.push_back({.kind = Kind::kAllReduce, .unit = reduction.unit});
    }
  }

  void pass(size_t i) {
    const Instruction& pass = passes_[i];
    const bool arrives = i == 0 || passes_[i - 1].layer != pass.layer;
    if (lowering_.sharding.weights && arrives) {
      gather_for(stay_);
      gather_for(stay_ + 1);
    }
    const bool adds_to_pending =
        pass.kind == Kind::kBackwardWeight &&
        std::any_of(pending_.begin(), pending_.end(),
                    [&](const Reduction& reduction) { return uses(reduction.unit, pass.layer); });
    if (adds_to_pending) finish_reductions();
    if (pass.micro_batch < lowering_.micro_batches) program_.push_back(pass);
    const bool leaves = i + 1 == passes_.size() || passes_[i + 1].layer != pass.layer;
    if (leaves) ++stay_;
    if (lowering_.sharding.weights && leaves) free_unused();
  }

  bool used_in(int unit, size_t stay) const {
    return stay < stays_.size() && uses(unit, stays_[stay]);
  }

  void gather_for(size_t stay) {
    for (int unit = 0; unit < units_; ++unit) {
      if (used_in(unit, stay) && held_.insert(unit).second)
        program_.push_back({.kind = Kind::kGather, .unit = unit});
    }
  }

  /// What neither the next stay needs nor the one that it would gather for.
  void free_unused() {
    for (auto unit = held_.begin(); unit != held_.end();) {
      if (used_in(*unit, stay_) || used_in(*unit, stay_ + 1)) {
        ++unit;
        continue;
      }
      program_.push_back({.kind = Kind::kFree, .unit = *unit});
      unit = held_.erase(unit);
    }
  }

  void update() {
    for (int unit = units_ - 1; unit >= 0; --unit) {
      program_.push_back({.kind = Kind::kOptimize, .unit = unit});
      if (lowering_.sharding.parts && !lowering_.sharding.weights)
        program_.push_back({.kind = Kind::kGather, .unit = unit});
    }
  }

  const Lowering& lowering_;
  const int units_;
  const StepProgram passes_;
  std::vector<std::vector<int>> units_of_layer_;
  std::map<size_t, std::vector<Reduction>> reductions_;  // by the pass they come before
  std::vector<Reduction> pending_;                       // started, not finished
  /// Layers in the order of the passes, those that follow one another in the same layer as one.
  std::vector<int> stays_;
  size_t stay_ = 0;     // now
  std::set<int> held_;  // units whose weights are gathered
  bool trains_ = false;
  StepProgram program_;
};

}  // namespace

StepProgram lower(const Schedule& schedule, const Lowering& lowering) {
  return Lowered(schedule, lowering).take();
}

}  // namespace trainyard::engine
