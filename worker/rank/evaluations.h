#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "common/base/error.h"
#include "worker/data/evaluation_loader.h"
#include "worker/engine/engine.h"
#include "worker/job/engine_state.h"
#include "worker/job/inputs.h"
#include "worker/rank/train_loop.h"

namespace trainyard::engine {

/// The evaluations of a run on held-out windows: when one is due, its loss, and what early stopping
/// makes of it. Every rank decides alike.
class Evaluations {
 public:
  /// Of inputs.validation, which must be there and stay. All arguments must outlive this. Errors:
  /// those of data::EvaluationLoader::open.
  static Result<std::unique_ptr<Evaluations>> open(const TrainContext& context,
                                                   const Inputs& inputs, Engine& engine,
                                                   EngineState& state);

  /// Whether the manifest wants one after the engine's newest step.
  bool is_due() const;
  /// Whether early stopping has not counted the one that was due there: it was cut short.
  bool is_missed() const;
  /// Whether that step's model has been evaluated.
  bool is_done() const { return step_ == engine_.steps_done(); }

  /// Evaluates. `judges`: early stopping counts the loss; of a step that changed nothing it says
  /// nothing new. `stop_asked`: cuts it short. Whether it was. Collective. Errors: those of
  /// Engine::evaluate.
  Result<bool> evaluate(bool judges, const StopAsked& stop_asked);

  /// NaN before the first one.
  double loss() const { return loss_; }
  /// Whether the newest one had the lowest loss. Asked again, it is no news.
  bool take_best() { return std::exchange(is_best_, false); }

 private:
  Evaluations(const TrainContext& context, Engine& engine, EngineState& state,
              data::EvaluationLoader loader, int64_t micro_sequences)
      : context_(context),
        engine_(engine),
        state_(state),
        loader_(std::move(loader)),
        micro_sequences_(micro_sequences) {}
  void judge();

  const TrainContext& context_;
  Engine& engine_;
  EngineState& state_;
  data::EvaluationLoader loader_;
  int64_t micro_sequences_;
  int64_t step_ = -1;
  double loss_ = std::numeric_limits<double>::quiet_NaN();
  bool is_best_ = false;
};

/// The loss of the engine's model on one window of inputs.tokens per data rank. Collective. Errors:
/// those of data::EvaluationLoader::open and Engine::evaluate.
Result<double> loss_of_windows(const Inputs& inputs, Engine& engine);

}  // namespace trainyard::engine
