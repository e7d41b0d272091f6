#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "worker/checkpoint/reader.h"
#include "worker/hf/model_folder.h"

namespace trainyard::hf {

/// Writes a checkpoint's model as a Hugging Face folder (export_model), with the imported facts
/// that the checkpoint has kept and the files of its tokenizer where `places` or its configuration
/// lead to them; every byte read is verified. Returns why there are no tokenizer files; empty:
/// there are. Errors: as spec_of_run, gather_extras, CheckpointReader::read and export_model.
Result<std::string> export_checkpoint(checkpoint::CheckpointReader& reader,
                                      const std::filesystem::path& folder,
                                      std::vector<std::string> places = {},
                                      const WeightsForm& form = {});

}  // namespace trainyard::hf
