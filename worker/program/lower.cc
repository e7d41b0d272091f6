#include "worker/program/lower.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "worker/program/repetition.h"

namespace trainyard::engine {
namespace {

using Kind = InstructionKind;

/// Rounds of a schedule that are lowered where more are alike: what comes before the first and
/// after the last reaches into one of them at most, so that those in the middle are as all others.
constexpr int kRoundsLowered = 5;

/// Puts communication between the passes of a schedule.
class Lowered {
 public:
  Lowered(const Schedule& schedule, const Lowering& lowering, bool weights_apart)
      : lowering_(lowering),
        weights_apart_(weights_apart),
        sharding_(lowering.layout == nullptr ? layout::Sharding() : lowering.layout->sharding()),
        units_of_layer_(static_cast<size_t>(lowering.stages.layers())) {
    const int units = lowering.layout == nullptr ? 0 : lowering.layout->units();
    for (int unit = 0; unit < units; ++unit) {
      if (!lowering.layout->holds(unit, lowering.at)) continue;
      units_.push_back(unit);
      for (const int layer : lowering.layout->unit(unit).layers)
        units_of_layer_[static_cast<size_t>(layer)].push_back(unit);
    }
    expand(schedule);
    find_reductions();
    find_stays();
  }

  std::vector<Instruction> take() {
    for (size_t i = 0; i <= passes_.size(); ++i) {
      reached_.push_back(program_.size());
      add_messages(i);
      start_reductions(i);
      if (i < passes_.size()) pass(i);
    }
    finish_reductions();
    // One that another stage has, too, is summed once that stage has gone back as well, which may
    // wait for this one's passes.
    round(std::exchange(summed_, {}));
    round(std::exchange(tied_, {}));
    // Last, because overflows of backward and squares of gradients travel with it.
    program_.push_back({.kind = Kind::kReduceControl});
    if (trains_) update();
    return std::move(program_);
  }

  /// After take(): where what belongs to the `i`-th pass of the schedule begins.
  size_t begin_of(size_t i) const { return reached_[expanded_[i].pass] + expanded_[i].messages; }

 private:
  struct Reduction {
    int unit = 0;
    int micro_batch = -1;  ///< -1: of all of them together
    bool last = false;     ///< of the step
  };
  /// Where a pass of the schedule begins: among the passes by layer, and behind which of the
  /// messages before that.
  struct Begin {
    size_t pass = 0;
    size_t messages = 0;
  };

  /// Passes of the schedule by layer, without communication.
  void expand(const Schedule& schedule) {
    const layout::StageMap& stages = lowering_.stages;
    const bool trains = std::any_of(schedule.begin(), schedule.end(), [](const Pass& pass) {
      return pass.kind == Kind::kBackwardInput;
    });
    for (size_t i = 0; i < schedule.size(); ++i) {
      const Pass& pass = schedule[i];
      const layout::Range layers = stages.layers(pass.stage);
      const bool with_loss = trains && stages.has_loss(pass.stage);
      note_begin();
      receive(pass);
      const auto add = [&](std::initializer_list<Kind> kinds) {
        const auto all = expand_pass(
            kinds, pass.micro_batch,
            {.layers = layers, .with_loss = with_loss, .recomputed = lowering_.recomputed});
        passes_.insert(passes_.end(), all.begin(), all.end());
      };
      const Pass weights{Kind::kBackwardWeight, pass.micro_batch, pass.stage};
      if (pass.kind == Kind::kBackwardInput && !weights_apart_ && i + 1 < schedule.size() &&
          schedule[i + 1] == weights) {
        add({Kind::kBackwardInput, Kind::kBackwardWeight});
        send(pass, passes_.size() - 1);  // the first layer's W comes last
        note_begin();
        ++i;
      } else {
        add({pass.kind});
        send(pass, passes_.size());
      }
    }
  }

  void note_begin() {
    const auto due = messages_.find(passes_.size());
    expanded_.push_back(
        {.pass = passes_.size(), .messages = due == messages_.end() ? 0 : due->second.size()});
  }

  /// Before what comes next among the passes. Also where a stage has nothing but the loss, whose F
  /// comes in the backward pass: the rank before may wait for its activations to be received.
  void receive(const Pass& pass) {
    const layout::Range layers = lowering_.stages.layers(pass.stage);
    if (pass.kind == Kind::kForward && lowering_.stages.has_before(pass.stage)) {
      message(passes_.size(), Kind::kReceiveActivation, pass, layers.begin, pass.stage - 1);
    }
    if (pass.kind == Kind::kBackwardInput && lowering_.stages.has_after(pass.stage)) {
      message(passes_.size(), Kind::kReceiveGradient, pass, layers.end - 1, pass.stage + 1);
    }
  }

  void send(const Pass& pass, size_t place) {
    const layout::Range layers = lowering_.stages.layers(pass.stage);
    if (pass.kind == Kind::kForward && lowering_.stages.has_after(pass.stage))
      message(place, Kind::kSendActivation, pass, layers.end, pass.stage + 1);
    if (pass.kind == Kind::kBackwardInput && lowering_.stages.has_before(pass.stage))
      message(place, Kind::kSendGradient, pass, layers.begin - 1, pass.stage - 1);
  }

  void message(size_t place, Kind kind, const Pass& pass, int64_t layer, int other) {
    // Whoever has no such micro-batch owes nobody a message: all stages of a pipeline have it.
    if (lowering_.layout == nullptr || pass.micro_batch >= lowering_.micro_batches) return;
    messages_[place].push_back({.kind = kind,
                                .micro_batch = pass.micro_batch,
                                .layer = static_cast<int>(layer),
                                .peer = lowering_.stages.pp_of(other)});
  }

  void add_messages(size_t place) {
    const auto due = messages_.find(place);
    if (due == messages_.end()) return;
    program_.insert(program_.end(), due->second.begin(), due->second.end());
  }

  bool uses(int unit, int layer) const {
    const std::vector<int>& layers = lowering_.layout->unit(unit).layers;
    return std::binary_search(layers.begin(), layers.end(), layer);
  }

  /// By place among the passes: after the last W that adds to a unit, of each micro-batch or of
  /// all.
  void find_reductions() {
    const bool by_micro_batch = sharding_.sums;
    std::map<int, std::map<int, size_t>> ends;  // by micro-batch: after its last W of each unit
    for (size_t i = 0; i < passes_.size(); ++i) {
      if (passes_[i].kind != Kind::kBackwardWeight) continue;
      trains_ = true;
      auto& end = ends[by_micro_batch ? passes_[i].micro_batch : -1];
      // What no op uses has no gradient and is reduced first.
      if (end.empty()) {
        for (const int unit : units_)
          end[unit] = by_micro_batch ? i : 0;
      }
      for (const int unit : units_of_layer_[static_cast<size_t>(passes_[i].layer)])
        end[unit] = i + 1;
    }
    for (const auto& [micro_batch, end] : ends) {
      for (const auto& [unit, place] : end)
        reductions_[place].push_back({unit, micro_batch});
    }
    std::set<int> seen;
    for (auto place = reductions_.rbegin(); place != reductions_.rend(); ++place) {
      for (Reduction& reduction : place->second)
        reduction.last = seen.insert(reduction.unit).second;
    }
  }

  /// Passes in one layer that follow each other. A W on its own, which reads no weights, is part of
  /// none.
  void find_stays() {
    for (size_t i = 0; i < passes_.size(); ++i) {
      const bool with_last = in_stay_.empty() ? false : in_stay_.back() && continues(i);
      in_stay_.push_back(passes_[i].kind != Kind::kBackwardWeight || with_last);
      if (in_stay_[i] && (stays_.empty() || passes_[i].layer != stays_.back()))
        stays_.push_back(passes_[i].layer);
    }
  }

  bool continues(size_t i) const { return passes_[i - 1].layer == passes_[i].layer; }

  void start_reductions(size_t place) {
    const auto due = reductions_.find(place);
    if (due == reductions_.end()) return;
    const std::vector<int> summed = std::exchange(summed_, {});
    if (sharding_.sums) {
      finish_reductions();
    } else {
      // Nobody wants the buffer: what copies add up may wait until the next parts are on their way.
      finish(std::exchange(lagging_, std::exchange(pending_, {})));
    }
    for (const Reduction& reduction : due->second) {
      if (sharding_.parts) {
        program_.push_back(
            {.kind = Kind::kReduce, .micro_batch = reduction.micro_batch, .unit = reduction.unit});
      }
      pending_.push_back(reduction);
    }
    if (!sharding_.parts) finish_reductions();
    // The next sums are on their way while this rank waits for those.
    round(summed);
  }

  void round(const std::vector<int>& units) {
    for (const int unit : units)
      program_.push_back({.kind = Kind::kRound, .unit = unit});
  }

  void finish_reductions() {
    finish(std::exchange(lagging_, {}));
    finish(std::exchange(pending_, {}));
  }

  void finish(const std::vector<Reduction>& reductions) {
    for (const Reduction& reduction : reductions) {
      if (sharding_.sums) {
        program_.push_back({.kind = Kind::kAccumulate,
                            .micro_batch = reduction.micro_batch,
                            .unit = reduction.unit});
      }
      if (!reduction.last || !lowering_.layout->has_copies(reduction.unit, lowering_.at)) continue;
      program_.push_back({.kind = Kind::kAllReduce, .unit = reduction.unit});
      const bool is_tied = lowering_.layout->unit(reduction.unit).stages.size() > 1;
      (is_tied ? tied_ : summed_).push_back(reduction.unit);
    }
  }

  void pass(size_t i) {
    const Instruction& pass = passes_[i];
    const bool reads = sharding_.weights && in_stay_[i];
    if (reads && pass.layer != here_) {
      here_ = pass.layer;
      gather_for(stay_);
      gather_for(stay_ + 1);
    }
    const bool adds_to_pending =
        pass.kind == Kind::kBackwardWeight &&
        std::any_of(pending_.begin(), pending_.end(),
                    [&](const Reduction& reduction) { return uses(reduction.unit, pass.layer); });
    if (adds_to_pending) finish_reductions();
    if (pass.micro_batch < lowering_.micro_batches) program_.push_back(pass);
    if (!reads) return;
    const auto next =
        std::find(in_stay_.begin() + static_cast<std::ptrdiff_t>(i) + 1, in_stay_.end(), true);
    const auto place = static_cast<size_t>(next - in_stay_.begin());
    if (place < passes_.size() && passes_[place].layer == pass.layer) return;
    ++stay_;
    free_unused();
  }

  bool used_in(int unit, size_t stay) const {
    return stay < stays_.size() && uses(unit, stays_[stay]);
  }

  void gather_for(size_t stay) {
    if (stay >= stays_.size()) return;
    for (const int unit : units_of_layer_[static_cast<size_t>(stays_[stay])]) {
      if (held_.insert(unit).second) program_.push_back({.kind = Kind::kGather, .unit = unit});
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
    for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) {
      program_.push_back({.kind = Kind::kOptimize, .unit = *unit});
      if (sharding_.parts && !sharding_.weights)
        program_.push_back({.kind = Kind::kGather, .unit = *unit});
    }
  }

  const Lowering& lowering_;
  const bool weights_apart_;
  const layout::Sharding sharding_;
  std::vector<int> units_;  // that this rank holds
  std::vector<Instruction> passes_;
  std::vector<Begin> expanded_;  // by pass of the schedule
  std::vector<size_t> reached_;  // by pass: where what belongs to it begins in the program
  std::vector<std::vector<int>> units_of_layer_;
  std::map<size_t, std::vector<Reduction>> reductions_;  // by the pass they come before
  std::map<size_t, std::vector<Instruction>> messages_;  // the same
  std::vector<Reduction> pending_;                       // started, not finished
  std::vector<Reduction> lagging_;                       // the same, before those
  std::vector<int> summed_;                              // units that copies add up, not rounded
  std::vector<int> tied_;                                // the same of two stages
  std::vector<bool> in_stay_;                            // by pass
  std::vector<int> stays_;                               // their layers
  size_t stay_ = 0;                                      // now
  int here_ = -1;                                        // its layer, once it has begun
  std::set<int> held_;                                   // units whose weights are gathered
  bool trains_ = false;
  std::vector<Instruction> program_;
};

/// The middle one of the rounds that are lowered of a repetition, whose first pass is pass `first`
/// of the lowered schedule. Nothing, where it is not followed by one like it.
std::optional<ProgramLoop> loop_of(const Lowered& lowered, const std::vector<Instruction>& listed,
                                   size_t first, const Repetition& repetition) {
  const auto round = [&](int n) {
    return lowered.begin_of(first + static_cast<size_t>(n) * repetition.length);
  };
  const ProgramLoop loop{.begin = round(2), .end = round(3), .step = repetition.step};
  if (round(4) - loop.end != loop.body()) return std::nullopt;
  for (size_t i = loop.begin; i < loop.end; ++i) {
    Instruction next = listed[i];
    if (next.micro_batch >= 0) next.micro_batch += repetition.step;
    if (listed[i + loop.body()] != next) return std::nullopt;
  }
  return loop;
}

/// The same for each part of a schedule in phases.
std::optional<StepProgram> lower_phases(const Schedule& schedule,
                                        const std::vector<Repetition>& phases,
                                        const Lowering& lowering) {
  const int left_out = phases.front().times - kRoundsLowered;
  Lowering lowering_few = lowering;
  lowering_few.micro_batches -= left_out;
  // Rounds 0 to 3 of each phase run on this rank: the middle one, so all that are left out, and the
  // one that it is compared with.
  if (lowering_few.micro_batches < kRoundsLowered - 1) return std::nullopt;
  Schedule few;
  for (const Repetition& phase : phases) {
    const auto begin = schedule.begin() + static_cast<std::ptrdiff_t>(phase.begin);
    few.insert(few.end(), begin,
               begin + static_cast<std::ptrdiff_t>(kRoundsLowered * phase.length));
  }
  Lowered lowered(few, lowering_few, runs_weights_apart(schedule));
  std::vector<Instruction> listed = lowered.take();
  std::vector<ProgramLoop> loops;
  size_t first = 0;
  for (const Repetition& phase : phases) {
    const std::optional<ProgramLoop> loop = loop_of(lowered, listed, first, phase);
    if (!loop) return std::nullopt;
    loops.push_back(*loop);
    first += kRoundsLowered * phase.length;
  }
  return StepProgram(std::move(listed), std::move(loops)).with_more_rounds(left_out);
}

/// Lowers a few of the rounds and says that the middle one runs for all that are left out.
std::optional<StepProgram> lower_rounds(const Schedule& schedule, const Repetition& repetition,
                                        const Lowering& lowering) {
  const std::optional<Schedule> few = shortened(schedule, repetition, kRoundsLowered);
  if (!few) return std::nullopt;
  const int left_out = (repetition.times - kRoundsLowered) * repetition.step;
  Lowering lowering_few = lowering;
  if (schedule[repetition.begin].micro_batch < lowering.micro_batches)
    lowering_few.micro_batches -= left_out;
  const size_t kept = repetition.begin + kRoundsLowered * repetition.length;
  for (size_t i = 0; i < few->size(); ++i) {
    const Pass& original = schedule[i < kept ? i : i + schedule.size() - few->size()];
    if (((*few)[i].micro_batch < lowering_few.micro_batches) !=
        (original.micro_batch < lowering.micro_batches))
      return std::nullopt;
  }
  Lowered lowered(*few, lowering_few, runs_weights_apart(schedule));
  std::vector<Instruction> listed = lowered.take();
  const std::optional<ProgramLoop> loop = loop_of(lowered, listed, repetition.begin, repetition);
  if (!loop) return std::nullopt;
  return StepProgram(std::move(listed), {*loop})
      .with_more_rounds(repetition.times - kRoundsLowered);
}

}  // namespace

std::vector<Instruction> expand_pass(std::initializer_list<InstructionKind> kinds, int micro_batch,
                                     const StageLayers& stage) {
  const layout::Range layers = stage.layers;
  std::vector<Instruction> all;
  const auto add = [&](Kind kind, int64_t layer) {
    all.push_back({.kind = kind, .micro_batch = micro_batch, .layer = static_cast<int>(layer)});
  };
  if (*kinds.begin() == Kind::kForward) {
    for (int64_t layer = layers.begin; layer < layers.end - (stage.with_loss ? 1 : 0); ++layer)
      add(Kind::kForward, layer);
    return all;
  }
  const bool goes_back = *kinds.begin() == Kind::kBackwardInput;
  if (stage.with_loss && goes_back) add(Kind::kForward, layers.end - 1);
  for (int64_t layer = layers.end - 1; layer >= layers.begin; --layer) {
    if (goes_back && std::binary_search(stage.recomputed.begin(), stage.recomputed.end(), layer))
      add(Kind::kRecompute, layer);
    for (const Kind kind : kinds)
      add(kind, layer);
  }
  return all;
}

StepProgram lower(const Schedule& schedule, const Lowering& lowering) {
  const std::vector<Repetition> phases = find_phases(schedule, kRoundsLowered);
  if (!phases.empty()) {
    if (auto program = lower_phases(schedule, phases, lowering)) return *std::move(program);
  }
  const auto repetition = find_repetition(schedule, lowering.micro_batches, kRoundsLowered);
  if (repetition) {
    if (auto program = lower_rounds(schedule, *repetition, lowering)) return *std::move(program);
  }
  return Lowered(schedule, lowering, runs_weights_apart(schedule)).take();
}

}  // namespace trainyard::engine
