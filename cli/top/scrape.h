#pragma once

#include <string>

#include "cli/top/live_state.h"

namespace trainyard::cli {

/// The live state that the body of a run's or an agent's /metrics tells
/// (docs/reference/metrics.md); pid is 0. Series that are not known are ignored. Errors:
/// kInvalidData for text without a series of ours.
Result<LiveState> live_from_metrics(const std::string& text, Time at);

/// Asks http://ADDRESS/metrics. Errors: those of http::fetch and live_from_metrics.
Result<LiveState> scrape(const std::string& address, Time at);

}  // namespace trainyard::cli
