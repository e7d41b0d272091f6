#pragma once

#include <memory>
#include <optional>

#include "common/base/error.h"
#include "common/worker_contract.h"
#include "worker/checkpoint/reader.h"
#include "worker/job/engine_state.h"
#include "worker/rank/checkpoint_schedule.h"
#include "worker/rank/train_loop.h"

namespace trainyard::engine {

/// The model of the lowest validation loss, when a run with early stopping is over.
class BestModel {
 public:
  /// Both must outlive this.
  BestModel(const TrainContext& context, EngineState& state) : context_(context), state_(state) {}

  /// Opens its checkpoint among `checkpoints`, which may be null. Where one rank cannot open it,
  /// the model has none. nullopt where early stopping is off. Collective.
  Result<std::optional<contract::BestModel>> find(const CheckpointSchedule* checkpoints);
  /// After find(): loads the model, where there is a checkpoint of it and the state is another
  /// step's. Collective. Errors: those of EngineState::load.
  Status load();

 private:
  const TrainContext& context_;
  EngineState& state_;
  std::unique_ptr<checkpoint::CheckpointReader> checkpoint_;
};

}  // namespace trainyard::engine
