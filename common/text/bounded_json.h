#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/text/pointer_file.h"

namespace trainyard {

/// Parses JSON from outside that is nested at most `depth_max` levels deep. The parser itself does
/// not recurse, but printing and copying a value do: some 100,000 brackets would overflow the stack
/// there. `Json` is nlohmann::json or nlohmann::ordered_json. Errors: kInvalidData.
template <class Json>
Result<Json> parse_bounded_json(std::string_view text, int depth_max) {
  const auto limit_depth = [depth_max](int depth, typename Json::parse_event_t, const Json&) {
    if (depth > depth_max) {
      throw std::length_error("nested too deeply, beyond " + std::to_string(depth_max) + " levels");
    }
    return true;
  };
  try {
    return Json::parse(text, limit_depth);
  } catch (const std::exception& error) {
    if (const auto pointer = text::pointer_file(text)) {
      return Error{ErrorCode::kInvalidData, "not JSON: found " + std::string(pointer->found) +
                                                "; " + std::string(pointer->advice)};
    }
    return Error{ErrorCode::kInvalidData, std::string("not JSON: ") + error.what()};
  }
}

}  // namespace trainyard
