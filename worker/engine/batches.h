#pragma once

#include <optional>

#include "worker/data/batch_loader.h"
#include "worker/data/evaluation_loader.h"
#include "worker/engine/interpreter.h"

namespace trainyard::engine {

/// The training order: micro-batches of one rank's share, read ahead.
class TrainingBatches final : public MicroBatchSource {
 public:
  /// `loader` is not owned.
  explicit TrainingBatches(data::BatchLoader& loader) : loader_(loader) {}
  Result<MicroBatchView> micro_batch(int index) override;

 private:
  data::BatchLoader& loader_;
};

/// Held-out windows.
class EvaluationBatches final : public MicroBatchSource {
 public:
  /// `loader` is not owned; rewound by the caller.
  explicit EvaluationBatches(data::EvaluationLoader& loader) : loader_(loader) {}
  Result<MicroBatchView> micro_batch(int index) override;

 private:
  data::EvaluationLoader& loader_;
};

}  // namespace trainyard::engine
