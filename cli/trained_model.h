#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "cli/checkpoint_path.h"
#include "cli/command.h"
#include "worker/sample/trained_model.h"

namespace trainyard::cli {

struct CommandContext;

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
  std::string device = "Auto";  ///< or "Cpu", "Cuda"
  int64_t micro_sequences = 1;  ///< windows that are evaluated at once, at most
  bool samples = true;          ///< next_logits() is called, too
  int64_t sequence_length = 0;  ///< of a folder; 0: kFolderWindow, or as many as it has positions
};
inline constexpr int64_t kFolderWindow = 1024;

/// Adds --device and --threads.
void add_device_options(const Command& command, ModelOptions& options);

/// Loads the model that a user names: what read_checkpoint() finds, or a Hugging Face folder, which
/// is one that has a config.json and is neither a checkpoint nor a run. What the folder's files say
/// otherwise than its config.json is told to `context.err`. Errors: as read_checkpoint(),
/// hf::load_model and TrainedModel::load; kInvalidConfig for a sequence length that the model does
/// not have, or that is given for a checkpoint, and for --device Cuda without CUDA.
Result<NamedModel> load_model(checkpoint::FileSystem& files, const std::filesystem::path& path,
                              const ModelOptions& options, CommandContext& context);

}  // namespace trainyard::cli
