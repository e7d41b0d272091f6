#include "control/local/json_fault.h"

#include <nlohmann/json.hpp>

namespace trainyard::control::local {

std::string fault_of(const nlohmann::json::exception& error) {
  if (const auto* parse = dynamic_cast<const nlohmann::json::parse_error*>(&error)) {
    return "no JSON at byte " + std::to_string(parse->byte);
  }
  const std::string text = error.what();  // "[json.exception.out_of_range.403] key ..."
  const size_t end = text.find("] ");
  return end == std::string::npos ? text : text.substr(end + 2);
}

nlohmann::json parse_record(std::string_view text) {
  constexpr int kDepthMax = 32;
  const auto limit_depth = [](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
    if (depth > kDepthMax) {
      throw nlohmann::json::other_error::create(
          501, "nested too deeply, beyond " + std::to_string(kDepthMax) + " levels", nullptr);
    }
    return true;
  };
  return nlohmann::json::parse(text, limit_depth);
}

}  // namespace trainyard::control::local
