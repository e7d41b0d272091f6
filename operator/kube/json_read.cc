#include "operator/kube/json_read.h"

#include <cstdint>
#include <simdjson.h>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "operator/kube/json_text.h"

namespace trainyard::kube {
namespace {

using nlohmann::json;
namespace dom = simdjson::dom;

constexpr const char* kMetadata = "metadata";
constexpr const char* kUnread = "managedFields";  ///< of metadata, often half of an object

/// Leaves out what is nested deeper than kJsonDepthMax. `depth`: of what is around the value.
bool is_near(int depth, json::parse_event_t event, const json& /*parsed*/) {
  using Event = json::parse_event_t;
  if (event == Event::object_start || event == Event::array_start) return depth < kJsonDepthMax;
  // A member of a mapping that is too deep: the library forgets it only by its key.
  return event != Event::key || depth < kJsonDepthMax;
}

void forget_unread(json& value) {
  if (!value.is_structured()) return;
  if (const auto found = value.is_object() ? value.find(kMetadata) : value.end();
      found != value.end() && found->is_object()) {
    found->erase(kUnread);
  }
  for (json& member : value)
    forget_unread(member);
}

json kept(dom::element value, bool in_metadata);

json kept_object(dom::object object, bool in_metadata) {
  json::object_t members;
  for (const auto [key, value] : object) {
    if (in_metadata && key == kUnread) continue;
    // The last of several with one name counts.
    members.insert_or_assign(std::string(key), kept(value, key == kMetadata));
  }
  return members;
}

json kept_array(dom::array array) {
  json::array_t items;
  items.reserve(array.size());
  for (const dom::element item : array)
    items.push_back(kept(item, false));
  return items;
}

/// `in_metadata`: an object is some object's metadata.
json kept(dom::element value, bool in_metadata) {
  using Type = dom::element_type;
  switch (value.type()) {
    case Type::OBJECT:
      return kept_object(value.get_object().value_unsafe(), in_metadata);
    case Type::ARRAY:
      return kept_array(value.get_array().value_unsafe());
    case Type::STRING:
      return std::string(value.get_string().value_unsafe());
    case Type::UINT64:
      return value.get_uint64().value_unsafe();
    case Type::DOUBLE:
      return value.get_double().value_unsafe();
    case Type::BOOL:
      return value.get_bool().value_unsafe();
    case Type::INT64: {
      const int64_t number = value.get_int64().value_unsafe();
      // Of the type that the careful way gives it.
      return number < 0 ? json(number) : json(static_cast<uint64_t>(number));
    }
    default:
      return nullptr;
  }
}

}  // namespace

std::optional<json> read_json_quickly(std::string_view text) {
  dom::parser parser;
  // The depth that the parser counts includes the value itself.
  if (parser.allocate(text.size(), kJsonDepthMax) != simdjson::SUCCESS) return std::nullopt;
  dom::element value;
  if (parser.parse(text.data(), text.size()).get(value) != simdjson::SUCCESS) return std::nullopt;
  return kept(value, false);
}

json read_json_carefully(std::string_view text) {
  json read = json::parse(text.begin(), text.end(), is_near);
  forget_unread(read);
  return read;
}

}  // namespace trainyard::kube
