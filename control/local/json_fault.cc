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

}  // namespace trainyard::control::local
