#include "operator/kube/json_text.h"

#include <exception>

#include <nlohmann/json.hpp>

namespace trainyard::kube {
namespace {

using nlohmann::json;

/// Decides while reading what is kept.
class Filter {
 public:
  /// `depth`: of what is around the key or value.
  bool operator()(int depth, json::parse_event_t event, const json& parsed) {
    using Event = json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) return depth < kJsonDepthMax;
    if (event != Event::key) return true;
    // Also of what would still fit: the library forgets a member only by its key.
    if (depth >= kJsonDepthMax) return false;
    const auto& key = parsed.get_ref<const std::string&>();
    if (depth == metadata_depth_ + 1 && key == "managedFields") return false;
    if (key == "metadata") {
      metadata_depth_ = depth;
    } else if (depth <= metadata_depth_) {
      metadata_depth_ = kNone;
    }
    return true;
  }

 private:
  static constexpr int kNone = -2;
  int metadata_depth_ = kNone;
};

}  // namespace

Result<json> parse_json_text(std::string_view text) {
  try {
    Filter filter;
    return json::parse(text.begin(), text.end(),
                       [&filter](int depth, json::parse_event_t event, json& parsed) {
                         return filter(depth, event, parsed);
                       });
  } catch (const std::exception& error) {
    return Error{ErrorCode::kInvalidData, "no JSON: " + quoted_words(error.what(), 200) + ", in " +
                                              std::to_string(text.size()) + " bytes that begin " +
                                              quoted_words(text, 80)};
  }
}

std::string to_json_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string string_member(const json& object, const char* key) {
  const json* found = member(object, key);
  return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
}

const json* member(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

std::string quoted_words(std::string_view text, size_t bytes_max) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    if (out.size() >= bytes_max) return out + "...";
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\x";
      out += kHex[byte >> 4U];
      out += kHex[byte & 15U];
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace trainyard::kube
