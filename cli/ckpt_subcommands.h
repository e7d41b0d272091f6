#pragma once

#include "cli/commands.h"

/// Sub-commands of `trainyard ckpt` with a file of their own.
namespace trainyard::cli {

/// Adds `diff`.
void register_ckpt_diff(const Command& parent, CommandContext& context);
/// Adds `prune`.
void register_ckpt_prune(const Command& parent, CommandContext& context);

}  // namespace trainyard::cli
