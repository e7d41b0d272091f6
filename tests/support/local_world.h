#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "common/base/clock.h"
#include "control/local/local_cluster.h"

/// LocalCluster with pods that are shell scripts, for tests.
namespace trainyard::testing_support {

/// A pod's main process: exits with the number written to its folder's FIFO `end`.
inline constexpr char kScriptUntilTold[] =
    "cd \"$TRAINYARD_POD_DIR\" && rm -f end && mkfifo end && read -r code < end && exit \"$code\"";

/// Options for a job of two nodes named "job" whose pods run `script`.
control::local::LocalClusterOptions script_options(const std::filesystem::path& run_dir,
                                                   const Clock& clock, const std::string& script);

/// Tells a pod that runs kScriptUntilTold to exit; waits until it listens. False when it does not.
bool tell_to_exit(const std::filesystem::path& run_dir, const std::string& pod_name, int exit_code);

/// Waits up to 30 s until `holds`, looking every few milliseconds.
bool wait_until(const std::function<bool()>& holds);

}  // namespace trainyard::testing_support
