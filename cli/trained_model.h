#pragma once

#include <filesystem>
#include <memory>

#include "cli/checkpoint_path.h"
#include "worker/sample/trained_model.h"

namespace trainyard::cli {

/// A model and the checkpoint it was read from.
struct NamedModel {
  std::unique_ptr<checkpoint::CheckpointReader> checkpoint;
  std::unique_ptr<engine::TrainedModel> model;
};

/// Loads the model that a user names, as read_checkpoint() finds it, for `threads` threads (0: all
/// cores). `files` outlives it. Errors: as read_checkpoint() and TrainedModel::load.
Result<NamedModel> load_model(checkpoint::FileSystem& files, const std::filesystem::path& path,
                              int threads, PassedOver& passed_over);

}  // namespace trainyard::cli
