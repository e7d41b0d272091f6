#include "worker/rank/best_model.h"

#include <utility>

#include "worker/checkpoint/communicator_group.h"

namespace trainyard::engine {

Result<std::optional<contract::BestModel>> BestModel::find(const CheckpointSchedule* checkpoints) {
  const EarlyStop& evaluations = state_.early_stop();
  if (evaluations.best_step() < 0) return std::optional<contract::BestModel>();
  contract::BestModel best{.step = evaluations.best_step(),
                           .validation_loss = evaluations.best_loss()};
  if (checkpoints == nullptr) return std::optional(best);
  auto opened = checkpoints->open_step(best.step);
  if (!opened) {
    warn(context_, "the checkpoint of the best model is gone: " + opened.error().message);
  }
  TRAINYARD_ASSIGN(const bool lacks,
                   checkpoint::CommunicatorCommitGroup(*context_.groups->world).any(!opened));
  if (lacks) return std::optional(best);
  checkpoint_ = *std::move(opened);
  best.checkpoint = checkpoint_->directory().filename().string();
  return std::optional(best);
}

Status BestModel::load() {
  if (checkpoint_ == nullptr || checkpoint_->manifest().step == state_.step()) return {};
  return state_.load(*checkpoint_);
}

}  // namespace trainyard::engine
