#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "cli/checkpoint_path.h"
#include "worker/sample/trained_model.h"

namespace trainyard::cli {

/// A model and where it was read from.
struct NamedModel {
  std::unique_ptr<engine::TrainedModel> model;
  std::filesystem::path place;   ///< the checkpoint's directory, or the Hugging Face folder
  std::optional<int64_t> step;   ///< nullopt: of a folder
  std::string config_json = {};  ///< of the run; empty: of a folder
};

/// What `evaluate` and `sample` say of their first argument.
inline constexpr char kModelHelp[] =
    "A checkpoint, a job's checkpoint or run directory (its newest good checkpoint), or a Hugging "
    "Face folder";

struct ModelOptions {
  int threads = 0;              ///< 0: all cores
  int64_t sequence_length = 0;  ///< of a folder; 0: kFolderWindow, or as many as it has positions
};
inline constexpr int64_t kFolderWindow = 1024;

/// Loads the model that a user names: what read_checkpoint() finds, or a Hugging Face folder, which
/// is one that has a config.json and is neither a checkpoint nor a run. What the folder's files say
/// otherwise than its config.json is told to `err`. Errors: as read_checkpoint(), hf::load_model
/// and TrainedModel::load; kInvalidConfig for a sequence length that the model does not have, or
/// that is given for a checkpoint.
Result<NamedModel> load_model(checkpoint::FileSystem& files, const std::filesystem::path& path,
                              const ModelOptions& options, std::ostream& err);

}  // namespace trainyard::cli
