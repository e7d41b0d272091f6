#include <memory>
#include <ostream>
#include <string>

#include "cli/commands.h"
#include "cli/registry.h"
#include "common/api/crd.h"
#include "common/api/reference.h"

namespace trainyard::cli {
namespace {

constexpr char kFooter[] = R"(Examples:
  trainyard reference trainingjob > docs/reference/trainingjob.md
  trainyard reference crd > manifests/crd.yaml

Exit codes: 0 printed.)";

}  // namespace

/// For the project's own documentation: left out of `trainyard --help`.
void register_reference(const Command& app, CommandContext& context) {
  const Command command =
      app.command("reference", "Prints a page generated from the API's field tables.");
  auto page = std::make_shared<std::string>();
  command
      .option("PAGE", *page, "trainingjob: the reference page; crd: the custom resource definition")
      .required()
      .one_of({"trainingjob", "crd"});
  command.hide();
  command.footer(kFooter);
  command.runs([page, &context] {
    context.out << (*page == "crd" ? api::crd_manifest() : api::reference_page());
  });
}

}  // namespace trainyard::cli
