#include "operator/kube/watch_event.h"

#include <utility>

#include "operator/kube/json_text.h"

namespace trainyard::kube {
namespace {

using nlohmann::json;

ApiError no_event(std::string why) {
  return {
      .status = 200, .reason = Reason::kUnknown, .message = "no watch event: " + std::move(why)};
}

ApiError error_event(const json& object) {
  const json* code = member(object, "code");
  const int64_t status = code != nullptr && code->is_number_integer() ? code->get<int64_t>() : 500;
  const bool sane = status >= 400 && status < 600;
  return decode_error(sane ? static_cast<int>(status) : 500, to_json_text(object), std::nullopt);
}

}  // namespace

ApiResult<WatchEvent> decode_event(std::string_view line) {
  Result<json> parsed = parse_json_text(line);
  if (!parsed) return no_event(parsed.error().message);
  const std::string type = string_member(*parsed, "type");
  const auto object = parsed->is_object() ? parsed->find("object") : parsed->end();
  if (!parsed->is_object() || object == parsed->end() || !object->is_object()) {
    return no_event("a mapping with \"type\" and a mapping \"object\" is wanted, found " +
                    quoted_words(line, 80));
  }
  if (type == "ERROR") return error_event(*object);
  WatchEvent event;
  if (type == "ADDED") {
    event.type = EventType::kAdded;
  } else if (type == "MODIFIED") {
    event.type = EventType::kModified;
  } else if (type == "DELETED") {
    event.type = EventType::kDeleted;
  } else if (type == "BOOKMARK") {
    event.type = EventType::kBookmark;
  } else {
    return no_event("type \"" + quoted_words(type, 40) +
                    "\", wanted ADDED, MODIFIED, DELETED, BOOKMARK or ERROR");
  }
  event.object = std::move(*object);
  return event;
}

}  // namespace trainyard::kube
