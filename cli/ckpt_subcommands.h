#pragma once

#include "cli/commands.h"

/// Sub-commands of `trainyard ckpt` with a file of their own.
namespace trainyard::cli {

/// Adds `diff`.
void register_ckpt_diff(CLI::App& parent, CommandContext& context);
/// Adds `prune`.
void register_ckpt_prune(CLI::App& parent, CommandContext& context);

}  // namespace trainyard::cli
