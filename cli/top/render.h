#pragma once

#include <string>
#include <vector>

#include "cli/top/live_state.h"

/// What `trainyard top` shows of a live state. Pure.
namespace trainyard::cli {

struct TopFrame {
  const LiveState* now = nullptr;
  const LiveState* before = nullptr;  ///< an older state to take rates from; may be null
  Time clock;                         ///< for the age of `now`
  bool process_alive = false;         ///< the `trainyard run` that wrote it
  int columns = 80;
  int rows = 0;  ///< at most so many lines; 0: as many as it takes
};

/// The lines of a screen, none longer than `columns`, all of them ASCII but names.
std::vector<std::string> render_top(const TopFrame& frame);

/// The same as one JSON object on a line.
std::string top_json(const TopFrame& frame);

}  // namespace trainyard::cli
