#pragma once

#include <filesystem>
#include <string_view>

#include "common/base/error.h"
#include "worker/checkpoint/reader.h"
#include "worker/hf/gpt2.h"

namespace trainyard::hf {

/// The GPT-2 that a run's configuration describes: reads family, layers, hidden, heads, ffn, vocab,
/// maxPositions and, where they are there, dropout and layerNormEpsilon of its "model" member.
/// Errors: kInvalidData for a missing or wrong member, kInvalidConfig for another family; both name
/// it.
Result<Gpt2Config> config_of_run(std::string_view config_json);

/// Writes a checkpoint's model as a Hugging Face folder (export_gpt2); every byte read is verified.
/// Errors: as config_of_run, CheckpointReader::read and export_gpt2.
Status export_checkpoint(checkpoint::CheckpointReader& reader, const std::filesystem::path& folder);

}  // namespace trainyard::hf
