#include <algorithm>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/registry.h"
#include "cli/run/terminal.h"
#include "common/log/text.h"
#include "common/worker_contract.h"

namespace trainyard::cli {
namespace {

constexpr size_t kHelpColumnsMin = 40;
constexpr size_t kHelpColumnsMax = 100;

constexpr char kFooter[] =
    "Exit codes: 0 done; 64 wrong usage or manifest; 74 standard output could not be written.\n"
    "`trainyard COMMAND --help` shows examples and the exit codes of the command.";

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  while (true) {
    const size_t end = text.find('\n');
    shown += printable_text(text.substr(0, end), std::string::npos);
    if (end == std::string_view::npos) return shown;
    shown += '\n';
    text.remove_prefix(end + 1);
  }
}

void finish(const Status& status, std::string_view command, CommandContext& context) {
  if (status) return;
  context.err << command << ": " << printable(status.error().message) << "\n";
  context.exit_code = contract::exit_code_of(status.error().code);
}

int run(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err,
        const engine::CudaSupport* cuda) {
  CommandContext context{.out = out, .err = err, .cuda = cuda};
  CommandLine line("trainyard", "Trains models from manifests on this machine.", TRAINYARD_VERSION);
  line.root().require_command();
  line.root().footer(kFooter);
  for (const RegisterCommand register_command : kCommands)
    register_command(line.root(), context);
  const auto columns =
      std::clamp(static_cast<size_t>(terminal::size().columns), kHelpColumnsMin, kHelpColumnsMax);
  const std::optional<int> ended = line.parse(arguments, columns, out, err);
  return settle_output(ended ? *ended : context.exit_code, out, err);
}

}  // namespace trainyard::cli
