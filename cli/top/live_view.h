#pragma once

#include <filesystem>
#include <memory>

#include "cli/run/run_view.h"
#include "cli/top/live_state.h"

namespace trainyard::cli {

/// The live state of a snapshot.
LiveState live_state_of(const RunHeader& header, const Snapshot& snapshot);

/// A view that also keeps RUN/live.json, about once a second; a file that cannot be written is told
/// once.
std::unique_ptr<RunView> make_live_view(std::unique_ptr<RunView> inner,
                                        const std::filesystem::path& run_dir);

}  // namespace trainyard::cli
