#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/numerics_view.h"
#include "cli/registry.h"
#include "cli/server_check.h"
#include "common/api/decode.h"
#include "common/api/job_size.h"
#include "common/io/file.h"
#include "common/text/json_writer.h"
#include "common/worker_contract.h"
#include "control/policies/elastic.h"
#include "worker/job/preflight.h"
#include "worker/job/resolve.h"

namespace trainyard::cli {
namespace {

constexpr char kFooter[] = R"(Examples:
  trainyard validate job.yaml
  trainyard validate -o json jobs/*.yaml
  trainyard validate --server job.yaml
  helm template chart | trainyard validate -

Prints every fault, one per line: FILE:LINE: FIELD: found X, wanted Y. Checks the pod template
against the types and rules of Kubernetes' PodTemplateSpec. If the data is on this machine, checks
the manifest against it. For a valid file, the output names the checks that were skipped and, if the
sizes of the model are known, the numerics of a new run.

Exit codes: 0 every file is valid; 64 a file has faults or cannot be read; 75 --server got no answer
from the API server.)";

struct ValidateOptions {
  std::vector<std::string> files;
  std::string output = "text";
  bool server = false;
};

struct Checked {
  std::string file;
  std::string job_name;
  std::vector<api::Fault> faults;
  bool data_seen = false;                 ///< held against the data, or needs none
  bool has_template = false;              ///< whose pods an API server would judge
  bool server_asked = false;              ///< and it takes the manifest, where there is no fault
  std::string server_silence;             ///< why it could not be asked, though it was to be
  std::string doubt;                      ///< what is valid and hardly meant; empty: nothing
  std::optional<api::EngineSpec> engine;  ///< resolved, where the sizes of its model are known
};

/// A manifest without faults, held against what its ranks would hold it against.
Status check_engine(api::TrainingJobSpec spec, Checked& checked) {
  checked.data_seen = true;
  if (!spec.engine) return {};
  TRAINYARD_ASSIGN(const std::filesystem::path folder, api::folder_of_manifest(checked.file));
  api::resolve_paths(*spec.engine, folder);
  spec.num_nodes = control::policies::nodes_at_start(spec);
  const int64_t ranks = api::ranks_of(spec);
  checked.data_seen = engine::sees_inputs(*spec.engine);
  if (!checked.data_seen) {
    TRAINYARD_TRY(engine::check_shapes(*spec.engine, ranks));
    TRAINYARD_ASSIGN(checked.doubt, engine::check_pods(spec, nullptr));
    if (!spec.engine->model.import_path.empty()) return {};
    checked.engine = spec.engine;
    return engine::resolve_spec(*checked.engine, std::nullopt);
  }
  TRAINYARD_ASSIGN(const engine::Inputs inputs, engine::open_inputs(*spec.engine, {}));
  checked.doubt = inputs.shared_text;
  TRAINYARD_TRY(engine::check_inputs(*spec.engine, inputs, ranks));
  TRAINYARD_ASSIGN(const std::string pods, engine::check_pods(spec, &inputs));
  checked.doubt += (checked.doubt.empty() || pods.empty() ? "" : "; ") + pods;
  checked.engine = spec.engine;
  TRAINYARD_TRY(engine::resolve_spec(*checked.engine, inputs));
  return engine::check_export_place(*spec.engine, inputs, {});
}

/// "FIELD: found X, wanted Y" taken apart again; of what has another form the field alone.
api::Fault fault_of(const std::string& file, const std::string& message) {
  constexpr std::string_view kFound = ": found ";
  constexpr std::string_view kWanted = ", wanted ";
  const size_t found = message.find(kFound);
  const size_t wanted = message.find(kWanted);
  if (found == std::string::npos || wanted == std::string::npos || wanted < found) {
    const size_t end = message.starts_with("engine.") ? message.find(": ") : std::string::npos;
    if (end == std::string::npos) return {file, 0, "engine", message, ""};
    return {file, 0, message.substr(0, end), message.substr(end + 2), ""};
  }
  const size_t value = found + kFound.size();
  return {file, 0, message.substr(0, found), message.substr(value, wanted - value),
          message.substr(wanted + kWanted.size())};
}

/// What the API server says about a manifest without faults.
void check_server(const std::string& manifest, const api::TrainingJob& job, Checked& checked) {
  Result<ServerAnswer> answer = ask_server(manifest, job);
  if (!answer) {
    checked.server_silence = answer.error().message;
  } else if (!answer->not_asked.empty()) {
    checked.server_silence = answer->not_asked;
  } else if (!answer->refusal.empty()) {
    checked.faults.push_back(
        {checked.file, 0, "", "the API server refuses it: " + answer->refusal, ""});
  }
  checked.server_asked = checked.server_silence.empty();
}

/// Reads the file once: it may be a pipe. "-" is standard input.
Checked check_file(const std::string& file, bool server) {
  const Result<std::string> text = api::read_manifest(file);
  if (!text) return {file, "", {{"", 0, "", text.error().message, ""}}};
  api::CheckedJob checked = api::check_training_job(*text, {.file = file});
  Checked result{file, checked.job.metadata.name, std::move(checked.faults)};
  if (!result.faults.empty()) return result;
  result.has_template = checked.job.spec.pod_template.has_value();
  if (server) check_server(*text, checked.job, result);
  if (const Status fit = check_engine(std::move(checked.job.spec), result); !fit) {
    result.faults.push_back(fault_of(file, fit.error().message));
  }
  return result;
}

/// " (X was not checked; Y)" for what a valid file was not held against; empty where for all.
std::string unseen(const Checked& result) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? " (" : "; ") + part; };
  if (!result.data_seen) add("its data is not on this machine and was not checked");
  if (!result.server_silence.empty()) {
    add("no API server was asked: " + result.server_silence);
  } else if (result.has_template && !result.server_asked) {
    add("its pods were not checked by an API server; --server does this");
  }
  return text.empty() ? text : text + ")";
}

void print_text(const std::vector<Checked>& results, CommandContext& context) {
  for (const Checked& result : results) {
    for (const api::Fault& fault : result.faults)
      context.err << printable(api::to_string(fault)) << '\n';
    if (!result.faults.empty()) continue;
    context.out << result.file << ": valid" << unseen(result) << '\n';
    if (result.engine)
      context.out << result.file << ": " << numerics_text(*result.engine, result.data_seen) << '\n';
    if (!result.doubt.empty())
      context.out << result.file << ": warning: " << printable(result.doubt) << '\n';
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
    json.key("dataSeen");
    json.boolean(result.data_seen);
    json.key("serverAsked");
    json.boolean(result.server_asked);
    if (!result.doubt.empty()) {
      json.key("warning");
      json.string(result.doubt);
    }
    if (result.engine && result.faults.empty()) write_numerics(json, *result.engine);
    if (!result.server_silence.empty()) {
      json.key("serverSilence");
      json.string(result.server_silence);
    }
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
    results.push_back(check_file(file, options.server));
  if (options.output == "json") {
    print_json(results, context);
  } else {
    print_text(results, context);
  }
  for (const Checked& result : results) {
    if (!result.faults.empty()) {
      context.exit_code = contract::kExitBadConfig;
    } else if (!result.server_silence.empty() && context.exit_code == 0) {
      context.exit_code = contract::kExitRetry;
    }
  }
}

}  // namespace

void register_validate(const Command& app, CommandContext& context) {
  const Command command = app.command("validate", "Lists every fault in manifests.");
  auto options = std::make_shared<ValidateOptions>();
  command
      .option("FILE", options->files, "Manifests to check, in YAML or JSON; - reads standard input")
      .required();
  command.flag(
      "--server", options->server,
      "Also send a dry run, which changes nothing, to the API server of kubectl's context");
  command.output(options->output);
  command.footer(kFooter);
  command.runs([options, &context] { validate(*options, context); });
}

}  // namespace trainyard::cli
