#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "common/base/error.h"

namespace trainyard::kube {

/// Deeper than any schema goes, and far from what would exhaust a stack.
inline constexpr int kJsonDepthMax = 128;

/// Reads one JSON value as the API server writes it. metadata.managedFields, often half of an
/// object, is left out while reading, and so is what is nested deeper than kJsonDepthMax: an object
/// that some user has made so must not hide the list that it is in. Errors: kInvalidData.
Result<nlohmann::json> parse_json_text(std::string_view text);

/// The object as compact JSON; what is not UTF-8 is replaced.
std::string to_json_text(const nlohmann::json& value);

/// A member of a mapping that is a string, else empty; never throws.
std::string string_member(const nlohmann::json& object, const char* key);

/// A member of a mapping; nullptr where there is none or `object` is no mapping.
const nlohmann::json* member(const nlohmann::json& object, const char* key);

/// The server's words for a message: control characters escaped, cut at `bytes_max`.
std::string quoted_words(std::string_view text, size_t bytes_max);

}  // namespace trainyard::kube
