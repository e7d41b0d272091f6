#include "worker/model/family.h"

#include <nlohmann/json.hpp>

#include "common/api/enum_names.h"
#include "worker/model/decoder.h"
#include "worker/model/gpt2.h"

namespace trainyard::engine {
namespace {

template <const DecoderFamily& kFamily>
constexpr Family decoder_family() {
  return {
      .family = kFamily.family,
      .model_type = kFamily.model_type,
      .prefix = "model.",
      .build = [](const api::ModelSpec& spec,
                  int64_t tensor_chunks) { return build_decoder(kFamily, spec, tensor_chunks); },
      .from_config =
          [](const nlohmann::json& config, std::vector<std::string>& notes) {
            return decoder_from_config(kFamily, config, notes);
          },
      .to_config = [](const api::ModelSpec& spec) { return decoder_to_config(kFamily, spec); },
      .untied_embedding = "embed_tokens.weight",
      .is_buffer = is_decoder_buffer};
}

constexpr Family kFamilies[] = {
    {.family = api::ModelFamily::kGPT2,
     .model_type = "gpt2",
     .prefix = "transformer.",
     .build = build_gpt2,
     .from_config = gpt2_from_config,
     .to_config = gpt2_to_config,
     .untied_embedding = "",
     .is_buffer = is_gpt2_buffer},
    decoder_family<kLlamaFamily>(),
    decoder_family<kQwen2Family>(),
    decoder_family<kQwen3Family>(),
    decoder_family<kMistralFamily>(),
};

/// The family with that value of `key`; `name_of` says what the values are called.
template <class Key, class NameOf>
Result<const Family*> find(Key Family::*key, Key wanted, const char* field, NameOf name_of) {
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.*key == wanted) return &family;
    known += (known.empty() ? "" : ", ") + std::string(name_of(family.*key));
  }
  return Error{ErrorCode::kInvalidConfig, std::string(field) + ": found " +
                                              std::string(name_of(wanted)) + ", wanted " + known};
}

}  // namespace

Result<const Family*> find_family(api::ModelFamily family) {
  return find(&Family::family, family, "engine.model.family",
              [](api::ModelFamily value) { return api::name_of(value); });
}

Result<const Family*> find_family(std::string_view model_type) {
  return find(&Family::model_type, model_type, "config.json: model_type",
              [](std::string_view value) { return value; });
}

Result<Model> build_model(const api::ModelSpec& spec, int64_t tensor_chunks) {
  TRAINYARD_ASSIGN(const Family* const family, find_family(spec.family));
  return family->build(spec, tensor_chunks);
}

}  // namespace trainyard::engine
