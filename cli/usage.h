#pragma once

#include <string>

namespace CLI {
class App;
}

/// What a command line is told when it makes no sense.
namespace trainyard::cli {

/// Has every option of `app` and of its sub-commands refuse the empty word: none means anything by
/// it, and a script's variable that was never set is where it comes from.
void refuse_empty_values(CLI::App& app);

/// After a failed parse: where a sub-command was wanted and none was there, which word stood in its
/// place and which ones there are; else empty.
std::string missing_command(CLI::App& app);

}  // namespace trainyard::cli
