#include "cli/trained_model.h"

#include <algorithm>
#include <ostream>
#include <utility>

#include "cli/commands.h"
#include "common/io/path_exists.h"
#include "control/local/job_store.h"

namespace trainyard::cli {
namespace {

Error bad_length(int64_t found, const std::string& wanted) {
  return {ErrorCode::kInvalidConfig,
          "--sequence-length: found " + std::to_string(found) + ", wanted " + wanted};
}

Result<bool> is_model_folder(checkpoint::FileSystem& files, const std::filesystem::path& path) {
  if (is_checkpoint(files, path)) return false;
  TRAINYARD_ASSIGN(const bool is_run, path_exists(path / control::local::kJobFile));
  if (is_run) return false;
  return path_exists(path / "config.json");
}

Result<NamedModel> load_folder(const std::filesystem::path& path, const ModelOptions& options,
                               std::ostream& err) {
  TRAINYARD_ASSIGN(const auto folder, hf::load_model(path));
  for (const std::string& note : folder->notes())
    err << printable(path.string()) << ": " << printable(note) << '\n';
  const int64_t positions = folder->spec().max_positions;
  if (options.sequence_length > positions)
    return bad_length(options.sequence_length,
                      "at most " + std::to_string(positions) + ", the model's positions");
  const int64_t length =
      options.sequence_length > 0 ? options.sequence_length : std::min(positions, kFolderWindow);
  NamedModel named{.model = nullptr, .place = path, .step = std::nullopt};
  TRAINYARD_ASSIGN(named.model, engine::TrainedModel::load(*folder, length, options.threads));
  return named;
}

}  // namespace

Result<NamedModel> load_model(checkpoint::FileSystem& files, const std::filesystem::path& path,
                              const ModelOptions& options, std::ostream& err) {
  TRAINYARD_ASSIGN(const bool is_folder, is_model_folder(files, path));
  if (is_folder) return load_folder(path, options, err);
  if (options.sequence_length > 0)
    return bad_length(options.sequence_length,
                      "none with a checkpoint: its windows are as long as the run's");
  NamedModel named;
  PassedOver passed_over(err);
  const auto load = [&](checkpoint::CheckpointReader& reader) -> Status {
    TRAINYARD_ASSIGN(named.model, engine::TrainedModel::load(reader, options.threads));
    return {};
  };
  TRAINYARD_ASSIGN(const auto reader, read_checkpoint(files, path, load, passed_over));
  named.place = reader->directory();
  named.step = reader->manifest().step;
  named.config_json = reader->manifest().config_json;
  return named;
}

}  // namespace trainyard::cli
