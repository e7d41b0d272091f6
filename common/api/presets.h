#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/api/engine_spec.h"

namespace trainyard::api {

/// A shape with a name.
struct Preset {
  std::string_view name;
  std::string_view description;
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t vocab = 0;  ///< 0: from the tokenizer or the data
  int64_t max_positions = 0;
  ModelFamily family = ModelFamily::kGPT2;
  int64_t kv_heads = 0;  ///< 0: as derive_defaults() has it, as below
  int64_t ffn = 0;
  bool tie_embeddings = true;
  std::optional<double> rope_theta = std::nullopt;
};

/// All presets: of each family, smallest first.
std::span<const Preset> presets();

/// The names of all, "gpt2-100k, gpt2-3m, ...": for messages.
std::string preset_names();

/// Sets the model's shape to the preset's; false (and `model` unchanged) where there is none of
/// that name.
bool apply_preset(std::string_view name, ModelSpec& model);

/// Fills in what the manifest may leave out: kvHeads, ffn, maxPositions, sequenceLength.
void derive_defaults(EngineSpec& engine);

}  // namespace trainyard::api
