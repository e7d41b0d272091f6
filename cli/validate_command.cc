#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/registry.h"

namespace trainyard::cli {

void register_validate(CLI::App& app, CommandContext& context) {
  (void)app;
  (void)context;
}

}  // namespace trainyard::cli
