#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace trainyard::testing_support {

/// What does not add up in the goodput ledger of a job's status, as status.json has it; a sentence
/// each. Empty: every millisecond since the job's start is in exactly one category
/// (docs/concepts/goodput.md), and a finished job is counted until its end.
std::vector<std::string> faults_of_ledger(const nlohmann::json& status);

/// A decimal number of seconds ("12.345") in milliseconds; -1 for anything else, such as more than
/// three digits of a fraction.
int64_t milliseconds_of(const std::string& seconds);

/// An RFC 3339 time in whole milliseconds since 1970, rounded down as the ledger does; nullopt for
/// anything else.
std::optional<int64_t> unix_milliseconds_of(const std::string& time);

}  // namespace trainyard::testing_support
