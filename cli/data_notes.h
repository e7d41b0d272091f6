#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "worker/data/prepare.h"

namespace trainyard::cli {

/// Prints groups of files, a line each: `what`, why, how many, the first names.
void print_groups(const char* what, const std::vector<data::PassedOver>& groups, std::ostream& out);

/// Prints what a preparation has found about its tokenizer and texts, a line each.
void print_notes(const data::PrepareOutcome& outcome, std::ostream& out);

/// Those about files that were read, for `-o json`.
std::vector<std::string> warnings_of(const data::PrepareOutcome& outcome);
/// Those about entries of folders that were not read.
std::vector<std::string> skipped_of(const data::PrepareOutcome& outcome);

}  // namespace trainyard::cli
