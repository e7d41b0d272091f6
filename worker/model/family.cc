#include "worker/model/family.h"

#include <nlohmann/json.hpp>

#include "common/api/enum_names.h"
#include "worker/model/gpt2.h"

namespace trainyard::engine {
namespace {

constexpr Family kFamilies[] = {
    {.family = api::ModelFamily::kGPT2,
     .model_type = "gpt2",
     .prefix = "transformer.",
     .build = build_gpt2,
     .from_config = gpt2_from_config,
     .to_config = gpt2_to_config,
     .is_buffer = is_gpt2_buffer},
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

Result<Model> build_model(const api::ModelSpec& spec) {
  TRAINYARD_ASSIGN(const Family* const family, find_family(spec.family));
  return family->build(spec);
}

}  // namespace trainyard::engine
