#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace trainyard::control::local {

/// What is wrong with a record of ours, without the library's own prefixes: "no JSON at byte 12",
/// "key 'version' not found". What follows it says what to do.
std::string fault_of(const nlohmann::json::exception& error);

/// Reads a record. Throws nlohmann::json::exception: what is no JSON, and what is nested deeper
/// than any record of ours, which would overflow the stack when it is copied.
nlohmann::json parse_record(std::string_view text);

}  // namespace trainyard::control::local
