#pragma once

#include <string>

namespace CLI {
class App;
}

/// What a command line is told when it makes no sense.
namespace trainyard::cli {

/// After a failed parse: where a sub-command was wanted and none was there, which word stood in its
/// place and which ones there are; else empty.
std::string missing_command(CLI::App& app);

}  // namespace trainyard::cli
