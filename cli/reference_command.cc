#include <memory>
#include <ostream>
#include <string>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/registry.h"
#include "common/api/reference.h"

namespace trainyard::cli {
namespace {

constexpr char kFooter[] = R"(Example:
  trainyard reference trainingjob > docs/reference/trainingjob.md

Exit codes: 0 printed.)";

}  // namespace

/// For the project's own documentation: left out of `trainyard --help`.
void register_reference(CLI::App& app, CommandContext& context) {
  CLI::App* command =
      app.add_subcommand("reference", "Prints a reference page made from the code.");
  auto page = std::make_shared<std::string>();
  command->add_option("PAGE", *page, "The page")->required()->check(CLI::IsMember({"trainingjob"}));
  command->group("");
  command->footer(kFooter);
  command->callback([page, &context] { context.out << api::reference_page(); });
}

}  // namespace trainyard::cli
