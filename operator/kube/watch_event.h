#pragma once

#include <string_view>

#include <nlohmann/json.hpp>

#include "operator/kube/api_error.h"
#include "operator/kube/client.h"

namespace trainyard::kube {

/// One event of a watch. Of kBookmark the object holds little more than its resourceVersion.
struct WatchEvent {
  EventType type = EventType::kAdded;
  nlohmann::json object;  ///< always a mapping; without metadata.managedFields
};

/// Reads one line of a watch. An ERROR event becomes the error that its Status object describes.
ApiResult<WatchEvent> decode_event(std::string_view line);

}  // namespace trainyard::kube
