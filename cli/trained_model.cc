#include "cli/trained_model.h"

#include <algorithm>
#include <ostream>
#include <utility>

#include "cli/commands.h"
#include "common/api/enum_names.h"
#include "common/io/path_exists.h"
#include "control/local/job_store.h"
#include "worker/device/device_choice.h"

namespace trainyard::cli {
namespace {

Error bad_length(int64_t found, const std::string& wanted) {
  return {ErrorCode::kInvalidConfig,
          "--sequence-length: found " + std::to_string(found) + ", wanted " + wanted};
}

Result<engine::InferenceOptions> inference_options(const ModelOptions& options,
                                                   CommandContext& context) {
  engine::InferenceOptions made{.threads = options.threads,
                                .device = *api::enum_from_name<api::DeviceKind>(options.device),
                                .cuda = context.cuda,
                                .micro_sequences = options.micro_sequences,
                                .samples = options.samples};
  if (made.device == api::DeviceKind::kCuda && made.cuda == nullptr) {
    return Error{ErrorCode::kInvalidConfig,
                 "--device: found Cuda, wanted Auto or Cpu: this program was built without CUDA; "
                 "use trainyard-cuda, which is built where CMake finds nvcc, or the trainyard of "
                 "the image trainyard/worker-cuda"};
  }
  return made;
}

/// Where a GPU may be at fault, what to do without one.
Error with_way_on(Error error, const engine::InferenceOptions& how) {
  const auto device = engine::resolve_device(how.device, 0, how.cuda);
  const bool may_be_gpus = !device || *device == api::DeviceKind::kCuda;
  if (may_be_gpus && error.code != ErrorCode::kInvalidData)
    error.message += "; --device Cpu computes on the CPU";
  return error;
}

Result<bool> is_model_folder(checkpoint::FileSystem& files, const std::filesystem::path& path) {
  if (is_checkpoint(files, path)) return false;
  TRAINYARD_ASSIGN(const bool is_run, path_exists(path / control::local::kJobFile));
  if (is_run) return false;
  return path_exists(path / "config.json");
}

Result<NamedModel> load_folder(const std::filesystem::path& path, const ModelOptions& options,
                               const engine::InferenceOptions& how, std::ostream& err) {
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
  auto model = engine::TrainedModel::load(*folder, length, how);
  if (!model) return with_way_on(std::move(model).error(), how);
  named.model = *std::move(model);
  return named;
}

}  // namespace

void add_device_options(const Command& command, ModelOptions& options) {
  command
      .option("--device", options.device,
              "Where to compute; Auto: on a GPU if this program and this machine have one that "
              "takes the model")
      .one_of({"Auto", "Cpu", "Cuda"})
      .show_default();
  command.option("--threads", options.threads, "Number of threads; 0: all cores")
      .between(0, 1024)
      .show_default();
}

Result<NamedModel> load_model(checkpoint::FileSystem& files, const std::filesystem::path& path,
                              const ModelOptions& options, CommandContext& context) {
  TRAINYARD_ASSIGN(const engine::InferenceOptions how, inference_options(options, context));
  TRAINYARD_ASSIGN(const bool is_folder, is_model_folder(files, path));
  if (is_folder) return load_folder(path, options, how, context.err);
  if (options.sequence_length > 0)
    return bad_length(options.sequence_length,
                      "none with a checkpoint: its windows are as long as the run's");
  NamedModel named;
  PassedOver passed_over(context.err);
  const auto load = [&](checkpoint::CheckpointReader& reader) -> Status {
    auto model = engine::TrainedModel::load(reader, how);
    if (!model) return with_way_on(std::move(model).error(), how);
    named.model = *std::move(model);
    return {};
  };
  TRAINYARD_ASSIGN(const auto reader, read_checkpoint(files, path, load, passed_over));
  named.place = reader->directory();
  named.step = reader->manifest().step;
  named.config_json = reader->manifest().config_json;
  return named;
}

}  // namespace trainyard::cli
