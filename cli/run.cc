#include <algorithm>
#include <ostream>
#include <sstream>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/registry.h"
#include "cli/run/terminal.h"
#include "cli/usage.h"
#include "common/worker_contract.h"

namespace trainyard::cli {
namespace {

constexpr size_t kHelpColumnsMin = 40;
constexpr size_t kHelpColumnsMax = 100;

constexpr char kFooter[] =
    "Exit codes: 0 done; 64 wrong usage or a wrong manifest; 74 standard output could not be\n"
    "written; each command's --help lists its own.\n"
    "`trainyard COMMAND --help` shows examples.";

}  // namespace

void add_output(CLI::App& command, std::string& output) {
  command.add_option("-o,--output", output, "How results are printed")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
}

void finish(const Status& status, std::string_view command, CommandContext& context) {
  if (status) return;
  context.err << command << ": " << status.error().message << "\n";
  context.exit_code = contract::exit_code_of(status.error().code);
}

int run(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  CommandContext context{out, err};
  CLI::App app{"Trains models from one manifest on this machine.", "trainyard"};
  app.set_version_flag("--version", "trainyard " TRAINYARD_VERSION);
  app.require_subcommand(1);
  app.footer(kFooter);
  for (const RegisterCommand register_command : kCommands)
    register_command(app, context);
  refuse_empty_values(app);

  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    const bool asked = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
    const std::string missing = asked ? "" : missing_command(app);
    std::ostringstream help;
    std::ostringstream complaint;
    app.exit(error, help, complaint);
    const auto columns = static_cast<size_t>(terminal::size().columns);
    out << wrapped(help.str(), std::clamp(columns, kHelpColumnsMin, kHelpColumnsMax));
    err << (missing.empty() ? complaint.str()
                            : missing + "\nRun with --help for more information.\n");
    return settle_output(asked ? 0 : contract::kExitBadConfig, out, err);
  }
  return settle_output(context.exit_code, out, err);
}

}  // namespace trainyard::cli
