#pragma once

#include <vector>

#include "cli/report/chart.h"
#include "cli/report/history.h"

namespace trainyard::cli {

/// What the report draws of a history, in order: loss, learning rate, tokens per second and, where
/// stages were measured, the split of a step's time. Restarts are marks, steps done twice bands.
/// Empty without points. Pure.
std::vector<Chart> charts_of(const History& history);

/// Milliseconds a step by stage, one layer a stage: means over some dozen stretches of the run.
/// Without layers where nothing was measured. Pure.
Chart step_split(const History& history);

}  // namespace trainyard::cli
