#include "worker/model/config_keys.h"

#include <nlohmann/json.hpp>

namespace trainyard::engine {
using nlohmann::json;

Error bad_config_value(const std::string& key, const json& found, const std::string& wanted) {
  return {ErrorCode::kInvalidConfig,
          "config.json: " + key + ": found " + found.dump() + ", wanted " + wanted};
}

const json& config_member(const json& object, const char* key) {
  static const json kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

Result<int64_t> config_size(const json& object, const char* key, int64_t fallback, double most) {
  const json& value = config_member(object, key);
  if (value.is_null() && fallback > 0) return fallback;
  if (!value.is_number_unsigned() || value.get<uint64_t>() == 0 ||
      value.get<uint64_t>() > static_cast<uint64_t>(most)) {
    return bad_config_value(
        key, value, "a whole number from 1 to " + std::to_string(static_cast<int64_t>(most)));
  }
  return static_cast<int64_t>(value.get<uint64_t>());
}

Result<double> config_fraction(const json& object, const char* key, double fallback) {
  const json& value = config_member(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_number() || !(value.get<double>() >= 0.0 && value.get<double>() < 1.0)) {
    return bad_config_value(key, value, "a number from 0 to 1");
  }
  return value.get<double>();
}

Result<bool> config_flag(const json& object, const char* key, bool fallback) {
  const json& value = config_member(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) return bad_config_value(key, value, "true or false");
  return value.get<bool>();
}

Status require_config_flag(const json& object, const char* key, bool wanted, bool fallback) {
  const json& value = config_member(object, key);
  const bool found = value.is_boolean() ? value.get<bool>() : fallback;
  if ((!value.is_null() && !value.is_boolean()) || found != wanted) {
    return bad_config_value(key, value, wanted ? "true" : "false");
  }
  return {};
}

Status refuse_strange_config(const json& object) {
  for (const char* key : {"pruned_heads", "quantization_config", "auto_map"}) {
    const json& value = config_member(object, key);
    if (!value.is_null() && !value.empty()) return bad_config_value(key, value, "none");
  }
  return require_config_flag(object, "is_encoder_decoder", false, false);
}

}  // namespace trainyard::engine
