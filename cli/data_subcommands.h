#pragma once

#include "cli/commands.h"

/// Sub-commands of `trainyard data` with a file of their own.
namespace trainyard::cli {

/// Adds `order`.
void register_data_order(const Command& parent, CommandContext& context);

}  // namespace trainyard::cli
