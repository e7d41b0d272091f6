#pragma once

#include <optional>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace trainyard::kube {

/// The two ways by which parse_json_text() reads: what the quick one gives is always what the
/// careful one would have given.

/// Some four times as fast. Nothing: the text is no JSON, or one that only the careful way reads
/// (nested deeper than kJsonDepthMax, an integer beyond 64 bits, a byte order mark).
std::optional<nlohmann::json> read_json_quickly(std::string_view text);

/// Throws std::exception with what is wrong and where.
nlohmann::json read_json_carefully(std::string_view text);

}  // namespace trainyard::kube
