#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "worker/data/dataset.h"
#include "worker/hf/model_folder.h"

namespace trainyard::engine {

/// The files that a spec names as input, opened.
struct Inputs {
  data::TokenSet tokens;
  std::optional<data::TokenSet> validation;
  std::string shared_text;  ///< data::shared_text of both
  /// Null where nothing is imported, and where the folder is gone.
  std::unique_ptr<hf::HfModel> imported;
  /// The import's shape, or that of the checkpoint which stands in for it; nullopt: no import.
  std::optional<api::ModelSpec> shape;
  /// The import's, or those of the checkpoint which stands in for it.
  hf::ImportedFacts facts;
  /// Of the checkpoint from whose state the run goes on, its own or that of startFrom; nullopt:
  /// there is none.
  std::optional<api::NumericsSpec> numerics;
  /// Behind each document, where they are isolated.
  std::optional<int32_t> end_of_text;
  bool starts_from_another = false;  ///< no checkpoint of its own is there, and startFrom is given
};

/// Opens tokens, held-out tokens and the import. Reads headers only. A run that has a checkpoint
/// needs its import no more: where the folder is gone, the newest one below `checkpoints` (empty:
/// none) tells the shape. The same one tells the numerics. Errors: kNotFound, kInvalidData and kIo
/// naming the field; those of hf::load_model.
Result<Inputs> open_inputs(const api::EngineSpec& spec, const std::filesystem::path& checkpoints);

/// What the checkpoint that the run goes on from was computed on: its newest one below
/// `checkpoints` (empty: none), or that of startFrom whose state it takes; nullopt where there is
/// none that can be read.
std::optional<api::DeviceKind> device_of_run(const api::EngineSpec& spec,
                                             const std::filesystem::path& checkpoints);

}  // namespace trainyard::engine
