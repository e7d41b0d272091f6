#include "worker/engine/batches.h"

namespace trainyard::engine {
namespace {

MicroBatchView view_of(const data::MicroBatch& batch) {
  return {.size = batch.size,
          .tokens_per_sample = batch.tokens_per_sample,
          .tokens = batch.tokens_BT,
          .targets = batch.targets_BT,
          .samples = batch.ordinals};
}

Error out_of_step(int64_t found, int wanted) {
  return {ErrorCode::kInternal, "batch loader: found micro-batch " + std::to_string(found) +
                                    ", the step program wanted " + std::to_string(wanted)};
}

}  // namespace

Result<MicroBatchView> TrainingBatches::micro_batch(int index) {
  TRAINYARD_ASSIGN(const data::MicroBatch batch, loader_.next());
  if (batch.micro_index != index) return out_of_step(batch.micro_index, index);
  return view_of(batch);
}

Result<MicroBatchView> EvaluationBatches::micro_batch(int index) {
  TRAINYARD_ASSIGN(const std::optional<data::MicroBatch> batch, loader_.next());
  if (!batch) return out_of_step(-1, index);
  return view_of(*batch);
}

}  // namespace trainyard::engine
