#include "cli/usage.h"

#include <vector>

#include <CLI/CLI.hpp>

namespace trainyard::cli {

std::string missing_command(CLI::App& app) {
  CLI::App* at = &app;
  std::string path = app.get_name();
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    path += " " + at->get_name();
  }
  if (at->get_require_subcommand_min() == 0) return "";
  std::string there;
  for (const CLI::App* command : at->get_subcommands([](CLI::App*) { return true; })) {
    if (command->get_group().empty()) continue;  // not for users
    there += (there.empty() ? "" : ", ") + command->get_name();
  }
  const std::vector<std::string> words = at->remaining();
  const std::string found = words.empty() ? "nothing" : "\"" + words.front() + "\"";
  return path + ": found " + found + ", wanted a command: " + there;
}

}  // namespace trainyard::cli
