#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace trainyard::control::local {

/// What is wrong with a record of ours, without the library's own prefixes: "no JSON at byte 12",
/// "key 'version' not found". What follows it says what to do.
std::string fault_of(const nlohmann::json::exception& error);

}  // namespace trainyard::control::local
