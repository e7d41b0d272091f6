#include "cli/usage.h"

#include <vector>

#include <CLI/CLI.hpp>

namespace trainyard::cli {

void refuse_empty_values(CLI::App& app) {
  const auto not_empty = [](const std::string& value) {
    return std::string(value.empty() ? "found \"\", wanted a word that is not empty" : "");
  };
  for (CLI::Option* option : app.get_options())
    option->transform(CLI::Validator(not_empty, ""));  // before every check, unlike check()
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; }))
    refuse_empty_values(*command);
}

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
