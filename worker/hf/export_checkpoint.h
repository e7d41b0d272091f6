#pragma once

#include <filesystem>
#include <optional>
#include <string>
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

/// A run's configuration with the epsilon of its layer norms as layerNormEpsilon of its "model"
/// member: an imported model's own, which no manifest says. Unchanged where there is no such
/// member.
std::string with_layer_norm_epsilon(std::string config_json, double epsilon);

/// What with_layer_norm_epsilon has put there; nullopt in checkpoints from before it did, whose
/// models are taken to have GPT-2's 1e-5.
std::optional<double> layer_norm_epsilon_of(std::string_view config_json);

/// Writes a checkpoint's model as a Hugging Face folder (export_gpt2); every byte read is verified.
/// Errors: as config_of_run, CheckpointReader::read and export_gpt2.
Status export_checkpoint(checkpoint::CheckpointReader& reader, const std::filesystem::path& folder);

}  // namespace trainyard::hf
