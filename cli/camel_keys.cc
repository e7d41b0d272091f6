#include "cli/camel_keys.h"

#include <cctype>

#include <nlohmann/json.hpp>

namespace trainyard::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string camel(const std::string& key) {
  std::string text;
  bool raise = false;
  for (const char c : key) {
    if (c == '_') {
      raise = true;
      continue;
    }
    text += raise ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    raise = false;
  }
  return text;
}

Json converted(const Json& value) {
  if (value.is_object()) {
    Json object = Json::object();
    for (const auto& [key, member] : value.items())
      object[camel(key)] = converted(member);
    return object;
  }
  if (!value.is_array()) return value;
  Json array = Json::array();
  for (const Json& item : value)
    array.push_back(converted(item));
  return array;
}

}  // namespace

std::string with_camel_keys(const std::string& json) {
  const Json parsed = Json::parse(json, nullptr, false);
  if (parsed.is_discarded()) return json;
  return converted(parsed).dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace trainyard::cli
