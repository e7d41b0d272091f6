#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

/// Paths into the API server's objects, which may lack anything, for those who judge them. The
/// labels are written out, not taken from the product: a judge that followed it would not see it
/// change them.
namespace trainyard::testing_support {

inline constexpr char kLabelJobUid[] = "trainyard.dev/job-uid";
inline constexpr char kLabelNodeIndex[] = "trainyard.dev/node-index";
inline constexpr char kLabelGeneration[] = "trainyard.dev/created-generation";
inline constexpr char kLabelMember[] = "trainyard.dev/member";
inline constexpr char kLabelSpare[] = "trainyard.dev/spare";
inline constexpr char kAnnotationTrainer[] = "trainyard.dev/trainer-container";

/// The member, or a null that lives for ever.
inline const nlohmann::json& at(const nlohmann::json& object, const char* key) {
  static const nlohmann::json kNothing;
  if (!object.is_object()) return kNothing;
  const auto found = object.find(key);
  return found == object.end() ? kNothing : *found;
}

/// The member where it is a text; else empty.
inline std::string text(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = at(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

/// The member where it is an integer; else 0.
inline int64_t number(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = at(object, key);
  return value.is_number_integer() ? value.get<int64_t>() : 0;
}

/// metadata.labels.KEY; empty where it is not there.
inline std::string label(const nlohmann::json& object, const char* key) {
  return text(at(at(object, "metadata"), "labels"), key);
}

/// The condition of that type in a status; null where there is none.
inline const nlohmann::json& condition_of(const nlohmann::json& status, const std::string& type) {
  for (const nlohmann::json& condition : at(status, "conditions")) {
    if (text(condition, "type") == type) return condition;
  }
  return at(status, "");
}

}  // namespace trainyard::testing_support
