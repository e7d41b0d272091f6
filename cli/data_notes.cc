#include "cli/data_notes.h"

#include <ostream>

#include "cli/commands.h"

namespace trainyard::cli {
namespace {

constexpr size_t kNamesShown = 10;

}  // namespace

void print_groups(const char* what, const std::vector<data::PassedOver>& groups,
                  std::ostream& out) {
  for (const data::PassedOver& group : groups)
    out << what << printable(data::describe(group, kNamesShown)) << '\n';
}

void print_notes(const data::PrepareOutcome& outcome, std::ostream& out) {
  for (const std::string& note : outcome.tokenizer_notes)
    out << "tokenizer: " << printable(note) << '\n';
  print_groups("warning: ", outcome.remarks, out);
  print_groups("skipped: ", outcome.manifest.passed_over, out);
}

std::vector<std::string> warnings_of(const data::PrepareOutcome& outcome) {
  std::vector<std::string> warnings = outcome.tokenizer_notes;
  for (const data::PassedOver& group : outcome.remarks)
    warnings.push_back(data::describe(group, kNamesShown));
  return warnings;
}

std::vector<std::string> skipped_of(const data::PrepareOutcome& outcome) {
  std::vector<std::string> skipped;
  for (const data::PassedOver& group : outcome.manifest.passed_over)
    skipped.push_back(data::describe(group, kNamesShown));
  return skipped;
}

}  // namespace trainyard::cli
