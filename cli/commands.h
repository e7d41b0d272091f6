#pragma once

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "common/base/error.h"

namespace trainyard::engine {
struct CudaSupport;
}

/// The sub-commands of `trainyard`. Each lives in `cli/<name>_command.cc`, which defines
/// `register_<name>`, and is listed in cli/CMakeLists.txt by `trainyard_command(<name> DEPS ...)`;
/// the calls are generated from that list, in its order.
namespace trainyard::cli {

/// What a running command writes to and has for GPUs, and what it leaves: its exit code.
struct CommandContext {
  std::ostream& out;
  std::ostream& err;
  const engine::CudaSupport* cuda = nullptr;  ///< null: the program was built without CUDA
  int exit_code = 0;
};

/// Adds a sub-command to `app`. Its callback does the work, prints to `context.out` (results) and
/// `context.err` (complaints) and sets `context.exit_code`; both arguments outlive the callback.
using RegisterCommand = void (*)(const Command& app, CommandContext& context);

/// What files name (paths, tensors, keys, sets) as it may be shown on a terminal: characters that
/// would move its cursor or turn its text around become U+FFFD, line ends stay.
std::string printable(std::string_view text);

/// Where a command has failed: complains as `command`, for example "trainyard sample", and sets the
/// exit code that belongs to the error.
void finish(const Status& status, std::string_view command, CommandContext& context);

/// Runs `trainyard` with these arguments (without the program's name). Returns the exit code: the
/// command's, 0 for --help and --version, 64 for wrong usage. `cuda`: what the program has for
/// GPUs. Thread-compatible.
int run(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err,
        const engine::CudaSupport* cuda = nullptr);

}  // namespace trainyard::cli
