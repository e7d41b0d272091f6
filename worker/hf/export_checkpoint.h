#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "worker/checkpoint/reader.h"
#include "worker/hf/gpt2.h"

namespace trainyard::hf {

/// The GPT-2 that a run's configuration describes: reads family, layers, hidden, heads, ffn, vocab,
/// maxPositions and, where they are there, dropout and layerNormEpsilon of its "model" member.
/// Errors: kInvalidData for a missing or wrong member, kInvalidConfig for another family; both name
/// it.
Result<Gpt2Config> config_of_run(std::string_view config_json);

/// Writes a checkpoint's model as a Hugging Face folder (export_gpt2), with the imported facts that
/// the checkpoint has kept and the files of its tokenizer where `places` or its configuration lead
/// to them; every byte read is verified. Returns why there are no tokenizer files; empty: there
/// are. Errors: as config_of_run, gather_extras, CheckpointReader::read and export_gpt2.
Result<std::string> export_checkpoint(checkpoint::CheckpointReader& reader,
                                      const std::filesystem::path& folder,
                                      std::vector<std::string> places = {});

}  // namespace trainyard::hf
