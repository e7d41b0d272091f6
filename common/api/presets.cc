#include "common/api/presets.h"

#include "common/api/engine_fields.h"

namespace trainyard::api {
namespace {

// The four published GPT-2 sizes: Radford et al. 2019, table 2, with the parameter counts of the
// released checkpoints. llama-160m is JackFram/llama-160m's shape (Miao et al. 2023), qwen2.5-1.5b
// that of Qwen2.5's config.json. The others are ours, for bytes or small vocabularies.
constexpr Preset kPresets[] = {
    {"gpt2-100k", "2 layers of 64; for tests", 2, 64, 4, 0, 128},
    {"gpt2-3m", "4 layers of 256; minutes on a laptop", 4, 256, 8, 0, 256},
    {"gpt2-11m", "6 layers of 384", 6, 384, 6, 0, 256},
    {"gpt2-124m", "GPT-2 small", 12, 768, 12, 50257, 1024},
    {"gpt2-355m", "GPT-2 medium", 24, 1024, 16, 50257, 1024},
    {"gpt2-774m", "GPT-2 large", 36, 1280, 20, 50257, 1024},
    {"gpt2-1558m", "GPT-2 XL", 48, 1600, 25, 50257, 1024},
    {"llama-1m", "4 layers of 128, grouped heads; for tests", 4, 128, 4, 0, 256,
     ModelFamily::kLlama, 2},
    {"llama-160m", "12 layers of 768", 12, 768, 12, 32000, 2048, ModelFamily::kLlama, 12, 3072,
     false},
    {"qwen2.5-1.5b", "the shape of Qwen2.5-1.5B", 28, 1536, 12, 151936, 32768, ModelFamily::kQwen2,
     2, 8960, true, 1e6},
};

}  // namespace

std::span<const Preset> presets() { return kPresets; }

std::string preset_names() {
  std::string names;
  for (const Preset& preset : kPresets)
    names += (names.empty() ? "" : ", ") + std::string(preset.name);
  return names;
}

bool apply_preset(std::string_view name, ModelSpec& model) {
  for (const Preset& preset : kPresets) {
    if (preset.name != name) continue;
    model.preset = std::string(name);
    model.family = preset.family;
    model.layers = preset.layers;
    model.hidden = preset.hidden;
    model.heads = preset.heads;
    model.vocab = preset.vocab;
    model.max_positions = preset.max_positions;
    model.kv_heads = preset.kv_heads;
    model.ffn = preset.ffn;
    model.tie_embeddings = preset.tie_embeddings;
    model.rope_theta = preset.rope_theta;
    return true;
  }
  return false;
}

void derive_defaults(EngineSpec& engine) {
  ModelSpec& model = engine.model;
  if (model.kv_heads == 0 && model.import_path.empty()) model.kv_heads = model.heads;
  // Of a width out of bounds nothing is derived: it is refused by its own name.
  const bool sane = model.hidden > 0 && model.hidden <= static_cast<int64_t>(kMaxHidden);
  if (model.ffn == 0 && sane && model.import_path.empty()) {
    // Three matrices of the gated kind cost what two of the other do (Shazeer 2020).
    const bool gated = model.family != ModelFamily::kGPT2;
    model.ffn = gated ? (8 * model.hidden / 3 + 63) / 64 * 64 : kFfnRatio * model.hidden;
  }
  if (engine.data.sequence_length == 0) engine.data.sequence_length = model.max_positions;
  if (model.max_positions == 0 && model.import_path.empty()) {
    model.max_positions = engine.data.sequence_length;
  }
}

}  // namespace trainyard::api
