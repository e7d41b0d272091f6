#include "operator/kube/json_text.h"

#include <exception>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "operator/kube/json_read.h"

namespace trainyard::kube {
using nlohmann::json;

Result<json> parse_json_text(std::string_view text) {
  try {
    std::optional<json> read = read_json_quickly(text);
    return read ? *std::move(read) : read_json_carefully(text);
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
