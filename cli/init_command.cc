#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include "cli/commands.h"
#include "cli/data_notes.h"
#include "cli/data_progress.h"
#include "cli/named_path.h"
#include "cli/registry.h"
#include "cli/run/format.h"
#include "common/api/decode.h"
#include "common/api/presets.h"
#include "common/base/clock.h"
#include "common/io/control_group.h"
#include "common/io/file.h"
#include "common/text/json_writer.h"
#include "worker/data/prepare.h"
#include "worker/data/sources.h"
#include "worker/model/family.h"

namespace trainyard::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kFooter[] = R"(Examples:
  trainyard init --data my-texts/
  trainyard init --data book.txt --preset gpt2-3m --steps 500 --out book
  trainyard init --data my-texts/ --tokenizer gpt2/ --cluster

Writes token shards to OUT/data and a manifest to OUT/job.yaml. Comments in the manifest explain its
numbers. If there are enough files, some of them are held out by name for evaluation.

Exit codes: 0 done; 64 wrong usage, or files already exist at --out; 65 the text is
missing or unusable; 75 input or output failed.)";

constexpr char kManifestFile[] = "job.yaml";
constexpr char kDataFolder[] = "data";
constexpr char kHeldOut[] = "heldout";
constexpr int64_t kFilesHeldOutMax = 20;
constexpr int64_t kRanksMax = 2;
/// Tokens that each preset is proposed up to.
constexpr struct {
  int64_t tokens;
  const char* preset;
} kSizes[] = {{300'000, "gpt2-100k"}, {50'000'000, "gpt2-3m"}, {500'000'000, "gpt2-11m"}};
constexpr char kLargest[] = "gpt2-124m";

struct InitArguments {
  std::string data;
  std::string out;
  std::string tokenizer = "bytes";
  std::string include = "\\.txt$";
  std::string preset;
  int64_t steps = 0;
  bool cluster = false;
  bool force = false;
  std::string output = "text";
};

/// What the job is made of, and the numbers that follow.
struct Proposal {
  std::string name;
  api::Preset preset;
  int64_t files = 0;
  int64_t bytes = 0;
  int64_t vocabulary = 0;
  std::string tokenizer;        ///< its path, as YAML; empty: none that `sample` would have to find
  int64_t tokens = 0;           ///< to train on
  int64_t held_out_tokens = 0;  ///< 0: nothing is held out
  int64_t parameters = 0;
  int64_t length = 0;
  int64_t sequences = 0;
  int64_t micro = 0;
  int64_t ranks = 1;
  int64_t steps = 0;
  double learning_rate = 0;

  int64_t step_tokens() const { return sequences * length; }
  double epochs() const {
    return static_cast<double>(steps * step_tokens()) / static_cast<double>(tokens);
  }
};

std::string name_of(const fs::path& data) {
  std::error_code code;
  const fs::path whole = fs::weakly_canonical(data, code);
  return api::job_name_of(code ? data : whole, "model");
}

/// The name of a file as an expression that it alone fits.
std::string literal(const std::string& name) {
  std::string text;
  for (const char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || static_cast<signed char>(c) < 0;
    if (!plain) text += '\\';
    text += c;
  }
  return text;
}

/// Files to hold out: evenly spaced, at most 20, with about a tenth of the bytes; only such whose
/// name no other file has, as a rule goes by names. None where they would be more than a quarter.
std::vector<data::SplitRule> held_out_of(const std::vector<data::Source>& files) {
  std::map<std::string, int> seen;
  int64_t bytes = 0;
  for (const data::Source& file : files) {
    ++seen[file.path.filename().string()];
    bytes += file.bytes;
  }
  std::vector<const data::Source*> fit;
  for (const data::Source& file : files) {
    if (seen[file.path.filename().string()] == 1 && file.bytes > 0 && 4 * file.bytes <= bytes)
      fit.push_back(&file);
  }
  const auto count = std::ssize(fit);
  const int64_t wanted = std::clamp<int64_t>(count / 10, 1, kFilesHeldOutMax);
  std::string names;
  int64_t held = 0;
  for (int64_t i = 0; i < wanted && count > 0; ++i) {
    const data::Source& file = *fit[static_cast<size_t>((2 * i + 1) * count / (2 * wanted))];
    if (4 * (held + file.bytes) > bytes) continue;
    held += file.bytes;
    names += (names.empty() ? "" : "|") + literal(file.path.filename().string());
  }
  if (names.empty()) return {};
  return {{kHeldOut, "^(" + names + ")$"}};
}

Result<data::PrepareOutcome> prepare(const InitArguments& arguments,
                                     std::vector<data::SplitRule> splits, data::Existing existing,
                                     CommandContext& context) {
  data::PrepareOptions options;
  options.tokenizer = arguments.tokenizer;
  options.include = arguments.include;
  options.inputs = {arguments.data};
  options.output = fs::path(arguments.out) / kDataFolder;
  options.existing = existing;
  options.copies = data::Copies::kDrop;
  options.splits = std::move(splits);
  std::error_code code;
  fs::create_directories(arguments.out, code);
  if (code) return io_error("create " + arguments.out, code.value());
  const SystemClock clock;
  DataProgress progress(context.err, ::isatty(STDERR_FILENO) == 1, clock);
  options.progress = [&](const data::PrepareProgress& now) { progress.show(now); };
  Result<data::PrepareOutcome> outcome = data::prepare(options);
  progress.clear();
  if (outcome) return outcome;
  Error error = std::move(outcome).error();
  if (error.code == ErrorCode::kAlreadyExists) error.code = ErrorCode::kInvalidConfig;
  return error;
}

Result<api::Preset> preset_of(const InitArguments& arguments, int64_t tokens) {
  std::string name = arguments.preset;
  if (name.empty()) {
    const auto* const size =
        std::ranges::find_if(kSizes, [&](const auto& entry) { return tokens <= entry.tokens; });
    name = size == std::end(kSizes) ? kLargest : size->preset;
  }
  std::string names;
  for (const api::Preset& preset : api::presets()) {
    if (preset.name == name) return preset;
    names += (names.empty() ? "" : ", ") + std::string(preset.name);
  }
  return Error{ErrorCode::kInvalidConfig, "--preset: found '" + name + "', wanted one of " + names};
}

/// Kaplan et al. 2020, "Scaling Laws for Neural Language Models", equation D.1, to one digit.
double learning_rate_for(int64_t parameters) {
  const double rate = 0.003239 - 0.0001395 * std::log(static_cast<double>(parameters));
  return std::round(rate * 1e4) / 1e4;
}

Result<Proposal> propose(const InitArguments& arguments, const data::DatasetManifest& data) {
  Proposal job;
  job.name = name_of(arguments.data);
  job.vocabulary = data.recipe.vocabulary;
  if (arguments.tokenizer != "bytes" && !arguments.cluster) {
    text::JsonWriter path;  // a JSON string is one of YAML
    path.string(fs::absolute(arguments.tokenizer).lexically_normal().string());
    job.tokenizer = path.take();
  }
  job.files = std::ssize(data.recipe.sources);
  for (const data::SplitRecord& split : data.splits)
    (split.name == kHeldOut ? job.held_out_tokens : job.tokens) = split.tokens;
  for (const data::SourceRecord& source : data.recipe.sources)
    job.bytes += source.bytes;
  TRAINYARD_ASSIGN(job.preset, preset_of(arguments, job.tokens));
  job.vocabulary = std::max(job.vocabulary, job.preset.vocab);
  // Of little text some sixteen different sequences a step are wanted all the same.
  job.length = std::min<int64_t>(job.preset.max_positions, 256);
  if (job.preset.name == kLargest) job.length = job.preset.max_positions;
  while (job.length > 16 && job.length * 16 > job.tokens)
    job.length /= 2;
  if (job.tokens <= job.length) {
    return Error{ErrorCode::kInvalidData, arguments.data + ": found " + std::to_string(job.tokens) +
                                              " tokens to train on, wanted more than " +
                                              std::to_string(job.length)};
  }
  if (job.held_out_tokens <= job.length) job.held_out_tokens = 0;
  job.sequences = job.preset.layers > 6 ? 64 : 16;
  job.micro = job.preset.layers > 6 ? 1 : 4;
  job.ranks = arguments.cluster ? 1 : std::clamp<int64_t>(usable_cpus(), 1, kRanksMax);
  const int64_t epochs10 = 10 * job.tokens / job.step_tokens();
  // A multiple of ten, so that the last of ten evaluations is that of the last step.
  job.steps =
      arguments.steps > 0 ? arguments.steps : std::clamp<int64_t>(epochs10 / 10 * 10, 100, 2000);
  api::ModelSpec shape;
  api::apply_preset(job.preset.name, shape);
  api::EngineSpec proposed{.model = shape};
  api::derive_defaults(proposed);
  shape = proposed.model;
  shape.vocab = job.vocabulary;
  TRAINYARD_ASSIGN(const engine::Model model, engine::build_model(shape));
  job.parameters = model.parameter_count();
  job.learning_rate = learning_rate_for(job.parameters);
  return job;
}

/// A job and its data.
struct Made {
  Proposal job;
  data::PrepareOutcome data;
};

/// The data set and the numbers that follow; without a part held out where there would be too
/// little of it, or too little left.
Result<Made> make(const InitArguments& arguments, CommandContext& context) {
  const std::vector<fs::path> inputs = {arguments.data};
  TRAINYARD_ASSIGN(const data::Sources sources,
                   data::collect_sources(inputs, arguments.include, {}));
  const std::vector<data::SplitRule> splits = held_out_of(sources.files);
  const auto existing = arguments.force ? data::Existing::kReplace : data::Existing::kRefuse;
  auto data = prepare(arguments, splits, existing, context);
  bool whole = splits.empty();
  if (!data && !whole && data.error().code == ErrorCode::kInvalidData) {
    data = prepare(arguments, {}, existing, context);
    whole = true;
  }
  if (!data) return std::move(data).error();
  TRAINYARD_ASSIGN(Proposal job, propose(arguments, data->manifest));
  if (!whole && job.held_out_tokens == 0) {
    data = prepare(arguments, {}, data::Existing::kReplace, context);
    if (!data) return std::move(data).error();
    TRAINYARD_ASSIGN(job, propose(arguments, data->manifest));
  }
  return Made{std::move(job), *std::move(data)};
}

std::string si(int64_t number) {
  std::ostringstream text;
  text.precision(3);
  const auto value = static_cast<double>(number);
  if (number >= 1'000'000'000)
    text << value / 1e9 << "G";
  else if (number >= 1'000'000)
    text << value / 1e6 << "M";
  else if (number >= 1'000)
    text << value / 1e3 << "k";
  else
    text << number;
  return text.str();
}

std::string epochs_text(const Proposal& job) {
  std::ostringstream text;
  text.precision(2);
  text << job.epochs();
  return text.str();
}

std::string manifest_of(const Proposal& job, bool cluster) {
  const std::string folder = cluster ? "/data/" : std::string(kDataFolder) + "/";
  const int64_t every = std::max<int64_t>(1, job.steps / 10);
  std::ostringstream out;
  out << "# " << job.files << (job.files == 1 ? " file" : " files") << " of text, " << si(job.bytes)
      << " bytes. Every field: docs/reference/trainingjob.md.\n"
      << "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: " << job.name
      << "}\nspec:\n  numNodes: 1\n  numProcPerNode: " << job.ranks
      << "          # ranks; any number gives the same bits\n  engine:\n    model:\n"
      << "      preset: " << job.preset.name << "        # " << job.preset.description << ", "
      << si(job.parameters) << " parameters\n";
  if (job.preset.vocab != job.vocabulary)
    out << "      vocab: " << job.vocabulary << "          # as in the tokenizer\n";
  out << "    data:\n      tokens: [" << folder << "train]     # " << si(job.tokens) << " tokens\n";
  if (job.held_out_tokens > 0) {
    out << "      validation: [" << folder << kHeldOut << "]     # " << si(job.held_out_tokens)
        << " tokens that training never sees\n";
  } else {
    out << "      # nothing is held out; with more or larger files, init holds out some of them to "
           "measure the loss on unseen text\n";
  }
  if (!job.tokenizer.empty())
    out << "      tokenizer: " << job.tokenizer << "     # `trainyard sample` loads it from here\n";
  out << "      sequenceLength: " << job.length
      << "\n    batch: {globalSequences: " << job.sequences << ", microSequences: " << job.micro
      << "}     # " << si(job.step_tokens())
      << " tokens per step; microSequences changes memory, not the result\n    steps: " << job.steps
      << "     # reads the text " << epochs_text(job)
      << (cluster ? " times\n" : " times; raise it and run again to train further\n")
      << "    optimizer: {learningRate: " << job.learning_rate
      << "}     # chosen by the number of parameters; halve it if the loss jumps\n"
      << "    learningRateSchedule: {name: Cosine, warmupSteps: "
      << std::max<int64_t>(1, job.steps / 20) << ", horizonSteps: " << job.steps
      << "}     # set horizonSteps to the final number of steps if you plan to train further\n";
  if (job.held_out_tokens > 0)
    out << "    evaluation: {everySteps: " << every << ", sequences: 64}\n";
  out << "  checkpointPolicy:\n    storage: {persistentVolumeClaim: {claimName: "
      << (cluster ? "training" : "checkpoints") << "}}"
      << (cluster ? "" : "     # locally a folder in the run directory")
      << "\n    everySteps: " << every << "\n    keepLast: 3\n";
  if (!cluster) return out.str();
  out << "  template:\n    spec:\n      containers:\n      - name: trainer\n        resources:\n"
      << "          requests: {cpu: \"1\", memory: 1Gi}\n        volumeMounts:\n"
      << "        - {name: training, mountPath: /data, subPath: data, readOnly: true}\n"
      << "      volumes:\n      - {name: training, persistentVolumeClaim: {claimName: training}}\n";
  return out.str();
}

void print_json(const std::string& file, const Made& made, std::ostream& out) {
  const Proposal& job = made.job;
  text::JsonWriter json(2);
  json.begin_object();
  const auto string = [&](const char* key, std::string_view value) {
    json.key(key);
    json.string(value);
  };
  const auto integer = [&](const char* key, int64_t value) {
    json.key(key);
    json.integer(value);
  };
  string("manifest", file);
  string("name", job.name);
  string("preset", job.preset.name);
  integer("parameters", job.parameters);
  integer("files", job.files);
  integer("textBytes", job.bytes);
  integer("tokens", job.tokens);
  integer("heldOutTokens", job.held_out_tokens);
  integer("steps", job.steps);
  integer("stepTokens", job.step_tokens());
  const auto strings = [&](const char* key, const std::vector<std::string>& values) {
    json.key(key);
    json.begin_array();
    for (const std::string& value : values)
      json.string(value);
    json.end_array();
  };
  strings("warnings", warnings_of(made.data));
  strings("skipped", skipped_of(made.data));
  json.end_object();
  out << json.take() << '\n';
}

void print_next(const InitArguments& arguments, const Proposal& job, std::ostream& out) {
  const std::string file = shell_word((fs::path(arguments.out) / kManifestFile).string());
  out << "next:\n";
  if (arguments.cluster) {
    out << "  kubectl cp " << shell_word((fs::path(arguments.out) / kDataFolder).string())
        << " filler:/claim/data     # manifests/examples/claim-and-filler.yaml creates the claim "
           "and the pod\n  kubectl apply -f "
        << file << "\n  kubectl get tj " << job.name << " -w\n";
    return;
  }
  const std::string run = shell_word("runs/" + job.name);
  out << "  trainyard run " << file << "\n  trainyard sample " << run << "\n  trainyard export "
      << run << " " << shell_word(job.name + "-hf") << '\n';
}

Status run_init(InitArguments arguments, CommandContext& context) {
  if (arguments.out.empty()) arguments.out = name_of(arguments.data) + "-job";
  TRAINYARD_TRY(check_output_folder("--out", arguments.out));
  TRAINYARD_TRY(preset_of(arguments, 0));
  const fs::path file = fs::path(arguments.out) / kManifestFile;
  std::error_code code;
  if (!arguments.force && fs::exists(file, code)) {
    return Error{
        ErrorCode::kInvalidConfig,
        file.string() + ": exists already; choose another --out, or replace it with --force"};
  }
  TRAINYARD_ASSIGN(const Made made, make(arguments, context));
  const Proposal& job = made.job;
  TRAINYARD_TRY(write_file_atomic(file, manifest_of(job, arguments.cluster)));
  if (arguments.output == "json") {
    print_json(file.string(), made, context.out);
    return {};
  }
  context.out << printable(file.string()) << ": " << job.preset.name << ", " << si(job.parameters)
              << " parameters, on " << si(job.tokens) << " tokens of " << job.files
              << (job.files == 1 ? " file" : " files") << ", "
              << (job.held_out_tokens > 0 ? si(job.held_out_tokens) + " held out"
                                          : std::string("nothing held out"))
              << "; " << job.steps << " steps of " << si(job.step_tokens()) << '\n';
  print_notes(made.data, context.out);
  print_next(arguments, job, context.out);
  return {};
}

}  // namespace

void register_init(const Command& app, CommandContext& context) {
  const Command command = app.command("init", "Creates a job from your own text.");
  auto arguments = std::make_shared<InitArguments>();
  command.option("--data", arguments->data, "Text file, or folder of text files").required();
  command.option("--out", arguments->out,
                 "Folder of the job (default NAME-job; NAME comes from --data)");
  command
      .option("--tokenizer", arguments->tokenizer,
              "bytes, a tokenizer.json, or a tokenizer folder, as in `trainyard data prepare`")
      .show_default();
  command
      .option("--include", arguments->include,
              "Regular expression; in folders, only files whose name matches are read")
      .show_default();
  command.option("--preset", arguments->preset,
                 "Model preset (default: chosen by the size of the text)");
  command
      .option("--steps", arguments->steps,
              "Number of steps (default: ten epochs, but at least 100 and at most 2000)")
      .between(1, 1'000'000'000'000);
  command.flag("--cluster", arguments->cluster, "Write a manifest for kubectl apply");
  command.flag("--force", arguments->force, "Replace the output of an earlier call");
  command.output(arguments->output);
  command.footer(kFooter);
  command.runs(
      [arguments, &context] { finish(run_init(*arguments, context), "trainyard init", context); });
}

}  // namespace trainyard::cli
