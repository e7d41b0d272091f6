#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/base/clock.h"

namespace trainyard::text {

/// The time in UTC as RFC 3339 has it: "2026-01-02T03:04:05Z", with as many digits of a fraction as
/// it takes to be exact.
std::string format_time(Time time);

/// The time in UTC with exactly six digits of a fraction: what metav1.MicroTime of Kubernetes
/// reads.
std::string format_micro_time(Time time);

/// The inverse of format_time; also reads other offsets ("+02:00"). nullopt for anything else, leap
/// seconds and years before 1678 or after 2261 (which nanoseconds cannot hold).
std::optional<Time> parse_time(std::string_view text);

}  // namespace trainyard::text
