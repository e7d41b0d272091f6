#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/text/bounded_json.h"

/// Typed access to members of parsed JSON, for this folder's .cc files only. Every error is
/// kInvalidData and names the member, what it is and what was wanted.
namespace trainyard::checkpoint {

using Json = nlohmann::json;

/// Deeper than what ranks report to each other.
inline constexpr int kReportDepthMax = 32;

inline Error field_error(const std::string& path, const std::string& why) {
  return {ErrorCode::kInvalidData, path + ": " + why};
}

/// The member, which must be there.
inline Result<const Json*> member_of(const Json& object, const char* name,
                                     const std::string& path) {
  const auto found = object.find(name);
  if (found == object.end()) return field_error(path + name, "missing");
  return &*found;
}

/// A JSON integer that fits int64 and lies in [low, high].
inline Result<int64_t> integer_of(const Json& json, const std::string& path, int64_t low,
                                  int64_t high = std::numeric_limits<int64_t>::max()) {
  if (!json.is_number_integer()) {
    return field_error(path, std::string("is ") + json.type_name() + ", wanted an integer");
  }
  // A value above int64 would wrap when read as such.
  const bool too_large = json.is_number_unsigned() &&
                         json.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
  const int64_t value = too_large ? 0 : json.get<int64_t>();
  if (too_large || value < low || value > high) {
    return field_error(path, "is " + json.dump() + ", wanted " + std::to_string(low) + " to " +
                                 std::to_string(high));
  }
  return value;
}

inline Result<int64_t> integer_member(const Json& object, const char* name, const std::string& path,
                                      int64_t low,
                                      int64_t high = std::numeric_limits<int64_t>::max()) {
  TRAINYARD_ASSIGN(const Json* json, member_of(object, name, path));
  return integer_of(*json, path + name, low, high);
}

inline Result<std::string> string_member(const Json& object, const char* name,
                                         const std::string& path) {
  TRAINYARD_ASSIGN(const Json* json, member_of(object, name, path));
  if (!json->is_string()) {
    return field_error(path + name, std::string("is ") + json->type_name() + ", wanted a string");
  }
  return json->get<std::string>();
}

inline Result<const Json*> array_member(const Json& object, const char* name,
                                        const std::string& path, size_t most) {
  TRAINYARD_ASSIGN(const Json* json, member_of(object, name, path));
  if (!json->is_array()) {
    return field_error(path + name, std::string("is ") + json->type_name() + ", wanted an array");
  }
  if (json->size() > most) {
    return field_error(path + name, "has " + std::to_string(json->size()) +
                                        " elements, the limit is " + std::to_string(most));
  }
  return json;
}

/// An array of integers, each at least `low`.
inline Result<std::vector<int64_t>> integers_member(const Json& object, const char* name,
                                                    const std::string& path, int64_t low,
                                                    size_t most) {
  TRAINYARD_ASSIGN(const Json* json, array_member(object, name, path, most));
  std::vector<int64_t> values;
  for (const Json& element : *json) {
    TRAINYARD_ASSIGN(const int64_t value, integer_of(element, path + name, low));
    values.push_back(value);
  }
  return values;
}

}  // namespace trainyard::checkpoint
