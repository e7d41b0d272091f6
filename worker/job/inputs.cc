#include "worker/job/inputs.h"

#include <string>
#include <vector>

#include "common/io/unexpanded.h"
#include "worker/checkpoint/reader.h"
#include "worker/data/copies.h"
#include "worker/data/dataset_manifest.h"
#include "worker/data/documents.h"
#include "worker/hf/run_facts.h"
#include "worker/job/same_run.h"

namespace trainyard::engine {
namespace {

Result<data::TokenSet> open_tokens(const std::vector<std::string>& paths, const char* field,
                                   data::ManifestCache& manifests) {
  const std::vector<std::filesystem::path> converted(paths.begin(), paths.end());
  auto tokens = data::TokenSet::open(converted, manifests);
  if (!tokens) return tokens.error().with_context(field);
  return tokens;
}

Status take_from_newest(const std::filesystem::path& checkpoints, Inputs& inputs) {
  checkpoint::PosixFileSystem files;
  TRAINYARD_ASSIGN(const std::unique_ptr<checkpoint::CheckpointReader> newest,
                   checkpoint::open_newest_good(files, checkpoints, std::nullopt,
                                                checkpoint::Verify::kManifest, nullptr));
  TRAINYARD_ASSIGN(const api::EngineSpec spec, hf::spec_of_run(*newest));
  inputs.shape = spec.model;
  inputs.facts = hf::run_facts_of(newest->manifest().config_json).imported;
  return {};
}

Status open_import(const std::string& folder, const std::filesystem::path& checkpoints,
                   Inputs& inputs) {
  auto model = hf::load_model(folder);
  if (model) {
    inputs.imported = *std::move(model);
    inputs.shape = inputs.imported->spec();
    inputs.facts = inputs.imported->facts();
    return {};
  }
  Error error = std::move(model).error();
  if (const std::string reason = unexpanded(folder); !reason.empty())
    error.message += "; " + reason;
  if (error.code != ErrorCode::kNotFound || checkpoints.empty()) return error;
  const Status taken = take_from_newest(checkpoints, inputs);
  if (taken) return {};
  if (taken.error().code != ErrorCode::kNotFound) {
    error.message += "; put it back, as the checkpoints do not give the model's shape either: " +
                     taken.error().message;
  }
  return error.with_context("engine.model.import");
}

/// The newest good checkpoint below `checkpoints` (empty: none); null where there is none.
std::unique_ptr<checkpoint::CheckpointReader> open_own(checkpoint::FileSystem& files,
                                                       const std::filesystem::path& checkpoints) {
  if (checkpoints.empty()) return nullptr;
  auto own = checkpoint::open_newest_good(files, checkpoints, std::nullopt,
                                          checkpoint::Verify::kManifest, nullptr);
  return own ? *std::move(own) : nullptr;
}

/// What the run goes on with: the numerics of its newest checkpoint, or of the one whose state it
/// starts from. What the run before had imported, the run that starts from it keeps; a run that has
/// a checkpoint needs the other's no more.
Status take_stored(const api::EngineSpec& spec, const std::filesystem::path& checkpoints,
                   Inputs& inputs) {
  checkpoint::PosixFileSystem files;
  std::unique_ptr<checkpoint::CheckpointReader> reader = open_own(files, checkpoints);
  inputs.starts_from_another = reader == nullptr && spec.start_from;
  if (inputs.starts_from_another) {
    TRAINYARD_ASSIGN(reader, open_start(files, *spec.start_from));
  }
  if (reader == nullptr) return {};
  if (!inputs.starts_from_another || spec.start_from->what == api::StartWhat::kState) {
    // Whoever reads the state says what is wrong with a configuration that cannot be read.
    const auto stored = hf::spec_of_run(*reader);
    if (stored) inputs.numerics = stored->numerics;
  }
  if (spec.start_from && spec.model.import_path.empty())
    inputs.facts = hf::run_facts_of(reader->manifest().config_json).imported;
  return {};
}

}  // namespace

std::optional<api::DeviceKind> device_of_run(const api::EngineSpec& spec,
                                             const std::filesystem::path& checkpoints) {
  checkpoint::PosixFileSystem files;
  std::unique_ptr<checkpoint::CheckpointReader> reader = open_own(files, checkpoints);
  if (reader == nullptr && spec.start_from && spec.start_from->what == api::StartWhat::kState) {
    auto start = open_start(files, *spec.start_from);
    if (start) reader = *std::move(start);
  }
  if (reader == nullptr) return std::nullopt;
  const auto stored = hf::spec_of_run(*reader);
  if (!stored) return std::nullopt;
  // Checkpoints of before the field are of processors.
  return stored->device == api::DeviceKind::kCuda ? api::DeviceKind::kCuda : api::DeviceKind::kCpu;
}

Result<Inputs> open_inputs(const api::EngineSpec& spec, const std::filesystem::path& checkpoints) {
  data::ManifestCache manifests;
  TRAINYARD_ASSIGN(data::TokenSet tokens,
                   open_tokens(spec.data.tokens, "engine.data.tokens", manifests));
  Inputs inputs{std::move(tokens), std::nullopt, "", nullptr, std::nullopt, {}, {}, {}, false};
  if (spec.data.documents == api::Documents::kIsolate) {
    TRAINYARD_ASSIGN(inputs.end_of_text, data::end_of_text_of(inputs.tokens, manifests));
  }
  if (!spec.data.validation.empty()) {
    TRAINYARD_ASSIGN(inputs.validation,
                     open_tokens(spec.data.validation, "engine.data.validation", manifests));
    inputs.shared_text = data::shared_text(inputs.tokens, *inputs.validation, manifests);
  }
  if (!spec.model.import_path.empty()) {
    TRAINYARD_TRY(open_import(spec.model.import_path, checkpoints, inputs));
  }
  TRAINYARD_TRY(take_stored(spec, checkpoints, inputs));
  return inputs;
}

}  // namespace trainyard::engine
