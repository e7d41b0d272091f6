#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/registry.h"
#include "common/api/decode.h"
#include "common/io/file.h"
#include "common/text/json_writer.h"
#include "common/worker_contract.h"

namespace trainyard::cli {
namespace {

constexpr char kFooter[] = R"(Examples:
  trainyard validate job.yaml
  trainyard validate -o json jobs/*.yaml

Every fault is printed, a line each: FILE:LINE: FIELD: found X, wanted Y.

Exit codes: 0 every file is valid; 64 a file has faults or cannot be read.)";

struct ValidateOptions {
  std::vector<std::string> files;
  std::string output = "text";
};

struct Checked {
  std::string file;
  std::string job_name;
  std::vector<api::Fault> faults;
};

Checked check_file(const std::string& file) {
  const Result<std::string> text = read_file(file, api::kMaxManifestBytes);
  if (!text) {
    return {file, "", {{file, 0, "", "", "a readable manifest: " + text.error().message}}};
  }
  api::CheckedJob checked = api::check_training_job(*text, {.file = file});
  return {file, checked.job.metadata.name, std::move(checked.faults)};
}

void print_text(const std::vector<Checked>& results, CommandContext& context) {
  for (const Checked& result : results) {
    for (const api::Fault& fault : result.faults)
      context.err << api::to_string(fault) << '\n';
    if (result.faults.empty()) context.out << result.file << ": valid\n";
  }
}

void print_json(const std::vector<Checked>& results, CommandContext& context) {
  constexpr int kIndent = 2;
  text::JsonWriter json(kIndent);
  json.begin_array();
  for (const Checked& result : results) {
    json.begin_object();
    json.key("file");
    json.string(result.file);
    json.key("valid");
    json.boolean(result.faults.empty());
    json.key("faults");
    json.begin_array();
    for (const api::Fault& fault : result.faults) {
      json.begin_object();
      json.key("line");
      json.integer(fault.line);
      json.key("field");
      json.string(fault.field);
      json.key("found");
      json.string(fault.found);
      json.key("wanted");
      json.string(fault.wanted);
      json.end_object();
    }
    json.end_array();
    json.end_object();
  }
  json.end_array();
  context.out << json.take() << '\n';
}

void validate(const ValidateOptions& options, CommandContext& context) {
  std::vector<Checked> results;
  for (const std::string& file : options.files)
    results.push_back(check_file(file));
  if (options.output == "json") {
    print_json(results, context);
  } else {
    print_text(results, context);
  }
  for (const Checked& result : results) {
    if (!result.faults.empty()) context.exit_code = contract::kExitBadConfig;
  }
}

}  // namespace

void register_validate(CLI::App& app, CommandContext& context) {
  CLI::App* command = app.add_subcommand("validate", "Lists everything wrong with manifests.");
  auto options = std::make_shared<ValidateOptions>();
  command->add_option("FILE", options->files, "Manifests to check, YAML or JSON")->required();
  command->add_option("-o,--output", options->output, "How results are printed")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command->footer(kFooter);
  command->callback([options, &context] { validate(*options, context); });
}

}  // namespace trainyard::cli
