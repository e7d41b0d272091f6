#include "cli/command.h"

#include <sstream>
#include <utility>

#include <CLI/CLI.hpp>

#include "cli/output.h"
#include "common/worker_contract.h"

namespace trainyard::cli {
namespace {

/// Adds the check to every option of `app` and of its commands.
void refuse_empty_values(CLI::App& app) {
  const auto not_empty = [](const std::string& value) {
    return std::string(value.empty() ? "found \"\", wanted a word that is not empty" : "");
  };
  for (CLI::Option* option : app.get_options())
    option->transform(CLI::Validator(not_empty, ""));  // before every check, unlike check()
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; }))
    refuse_empty_values(*command);
}

/// After a failed parse: where a command was wanted and missing, the word in its place and the
/// commands that exist; else empty.
std::string missing_command(CLI::App& app) {
  CLI::App* at = &app;
  std::string path = app.get_name();
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    path += " " + at->get_name();
  }
  if (at->get_require_subcommand_min() == 0) return "";
  std::string commands;
  for (const CLI::App* command : at->get_subcommands([](CLI::App*) { return true; })) {
    if (command->get_group().empty()) continue;  // not for users
    commands += (commands.empty() ? "" : ", ") + command->get_name();
  }
  const std::vector<std::string> words = at->remaining();
  const std::string found = words.empty() ? "nothing" : "\"" + words.front() + "\"";
  return path + ": found " + found + ", wanted a command: " + commands;
}

/// After a failed parse: the first word that looks like an option and is none, whatever CLI11 says
/// of the words that it took for others then; else empty.
std::string unknown_option(CLI::App& app) {
  CLI::App* at = &app;
  std::string path = app.get_name();
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    path += " " + at->get_name();
  }
  std::string first;
  for (const std::string& word : at->remaining()) {
    if (first.empty() && word.size() > 1 && word.starts_with('-')) first = word;
  }
  return first.empty() ? "" : path + ": found " + first + ", wanted one of its options";
}

}  // namespace

Option& Option::required() {
  option_->required();
  return *this;
}

Option& Option::one_of(std::vector<std::string> words) {
  option_->check(CLI::IsMember(std::move(words)));
  return *this;
}

Option& Option::between(int64_t least, int64_t most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Option& Option::between_reals(double least, double most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

Option& Option::with_suffixes() {
  option_->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  return *this;
}

Option& Option::separated_by(char delimiter) {
  option_->delimiter(delimiter);
  return *this;
}

Option& Option::words(int count) {
  option_->expected(count);
  return *this;
}

Option& Option::repeatable() {
  option_->take_all()->allow_extra_args(false);
  return *this;
}

Option& Option::show_default() {
  option_->capture_default_str();
  return *this;
}

Option& Option::check(std::function<std::string(const std::string&)> complaint,
                      const std::string& kind) {
  option_->check(CLI::Validator([complaint](std::string& word) { return complaint(word); }, kind));
  return *this;
}

Command Command::command(const std::string& name, const std::string& what) const {
  return Command(app_->add_subcommand(name, what));
}

template <typename Value>
Option Command::option(const std::string& name, Value& value, const std::string& help) const {
  return Option(app_->add_option(name, value, help));
}
template Option Command::option(const std::string&, std::string&, const std::string&) const;
template Option Command::option(const std::string&, int&, const std::string&) const;
template Option Command::option(const std::string&, int64_t&, const std::string&) const;
template Option Command::option(const std::string&, uint64_t&, const std::string&) const;
template Option Command::option(const std::string&, double&, const std::string&) const;
template Option Command::option(const std::string&, std::vector<std::string>&,
                                const std::string&) const;
template Option Command::option(const std::string&, std::vector<int>&, const std::string&) const;
template Option Command::option(const std::string&, std::vector<int64_t>&,
                                const std::string&) const;

Option Command::flag(const std::string& name, bool& value, const std::string& help) const {
  return Option(app_->add_flag(name, value, help));
}

Option Command::flag(const std::string& name, int64_t& value, int64_t given,
                     const std::string& help) const {
  return Option(app_->add_flag(name + "{" + std::to_string(given) + "}", value, help));
}

void Command::output(std::string& output, const std::string& help) const {
  option("-o,--output", output, help).one_of({"text", "json"}).show_default();
}

void Command::footer(const std::string& text) const { app_->footer(text); }

void Command::hide() const { app_->group(""); }

void Command::require_command() const { app_->require_subcommand(1); }

void Command::runs(std::function<void()> run) const { app_->callback(std::move(run)); }

CommandLine::CommandLine(const std::string& name, const std::string& what,
                         const std::string& version)
    : app_(std::make_unique<CLI::App>(what, name)) {
  app_->set_version_flag("--version", name + " " + version);
}

CommandLine::~CommandLine() = default;

Command CommandLine::root() const { return Command(app_.get()); }

std::optional<int> CommandLine::parse(const std::vector<std::string>& words, size_t columns,
                                      std::ostream& out, std::ostream& err) {
  refuse_empty_values(*app_);
  std::vector<std::string> reversed(words.rbegin(), words.rend());  // as CLI11 wants them
  try {
    app_->parse(reversed);
  } catch (const CLI::ParseError& error) {
    const bool asked = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
    std::string missing = asked ? "" : missing_command(*app_);
    if (missing.empty() && !asked) missing = unknown_option(*app_);
    std::ostringstream help;
    std::ostringstream complaint;
    app_->exit(error, help, complaint);
    out << wrapped(help.str(), columns);
    err << (missing.empty() ? complaint.str()
                            : missing + "\nRun with --help for more information.\n");
    return asked ? 0 : contract::kExitBadConfig;
  }
  return std::nullopt;
}

}  // namespace trainyard::cli
