#pragma once

#include <string>

#include <nlohmann/json.hpp>

/// Paths into the server's objects, which may lack anything.
namespace trainyard::cluster {

/// The member, or a null that lives for ever.
inline const nlohmann::json& at(const nlohmann::json& object, const char* key) {
  static const nlohmann::json kNothing;
  if (!object.is_object()) return kNothing;
  const auto found = object.find(key);
  return found == object.end() ? kNothing : *found;
}

/// The member where it is a text; else empty.
inline std::string text_at(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = at(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

}  // namespace trainyard::cluster
