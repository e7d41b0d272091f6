#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/base/error.h"

/// Reading members of a config.json. Null and absent are alike, as for transformers. Errors:
/// kInvalidConfig naming the key, what was found and what is wanted.
namespace trainyard::engine {

Error bad_config_value(const std::string& key, const nlohmann::json& found,
                       const std::string& wanted);

/// The member, or null where it is absent.
const nlohmann::json& config_member(const nlohmann::json& object, const char* key);

/// A positive size; `fallback` where it is absent (0: it must be there).
Result<int64_t> config_size(const nlohmann::json& object, const char* key, int64_t fallback,
                            double most);

/// A number from 0 to 1.
Result<double> config_fraction(const nlohmann::json& object, const char* key, double fallback);

Result<bool> config_flag(const nlohmann::json& object, const char* key, bool fallback);
Status require_config_flag(const nlohmann::json& object, const char* key, bool wanted,
                           bool fallback);

/// What no family computes: quantised weights, code of its own, pruned heads, an encoder before.
Status refuse_strange_config(const nlohmann::json& object);

}  // namespace trainyard::engine
