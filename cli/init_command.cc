#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <unistd.h>
#include <vector>

#include "cli/commands.h"
#include "cli/data_notes.h"
#include "cli/data_progress.h"
#include "cli/init_proposal.h"
#include "cli/named_path.h"
#include "cli/registry.h"
#include "cli/run/format.h"
#include "common/base/clock.h"
#include "common/io/file.h"
#include "common/text/json_writer.h"
#include "worker/data/prepare.h"
#include "worker/data/sources.h"

namespace trainyard::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kFooter[] = R"(Examples:
  trainyard init --data my-texts/
  trainyard init --data book.txt --preset gpt2-3m --steps 500 --out book
  trainyard init --data my-texts/ --minutes 60
  trainyard init --data my-texts/ --tokenizer gpt2/ --cluster

Writes token shards to OUT/data and a manifest to OUT/job.yaml, and with --cluster OUT/claim.yaml: a
volume claim and a pod through which the shards get there. Without --steps and --cluster, it trains
for some seconds to measure this machine, and proposes a model and steps that fit into --minutes.
Comments in the manifest explain its numbers. If there are enough files, some of them are held out
by name for evaluation.

Exit codes: 0 done; 64 wrong usage, or files already exist at --out; 65 the text is
missing or unusable; 75 input or output failed.)";

constexpr char kManifestFile[] = "job.yaml";
constexpr char kClaimFile[] = "claim.yaml";
constexpr int64_t kFilesHeldOutMax = 20;
constexpr int64_t kStepsMax = 1'000'000'000'000;  // of engine.steps

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
  return {{kInitHeldOut, "^(" + names + ")$"}};
}

Result<data::PrepareOutcome> prepare(const InitArguments& arguments,
                                     std::vector<data::SplitRule> splits, data::Existing existing,
                                     CommandContext& context) {
  data::PrepareOptions options;
  options.tokenizer = arguments.tokenizer;
  options.include = arguments.include;
  options.inputs = {arguments.data};
  options.output = fs::path(arguments.out) / kInitData;
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
  if (arguments.steps == 0 && !arguments.cluster)
    context.err << "measuring how fast this machine trains ...\n" << std::flush;
  TRAINYARD_ASSIGN(Proposal job, propose(arguments, data->manifest));
  if (!whole && job.held_out_tokens == 0) {
    data = prepare(arguments, {}, data::Existing::kReplace, context);
    if (!data) return std::move(data).error();
    TRAINYARD_ASSIGN(job, propose(arguments, data->manifest));
  }
  return Made{std::move(job), *std::move(data)};
}

/// What may be wrong with the proposal itself.
std::vector<std::string> doubts_of(const InitArguments& arguments, const Proposal& job) {
  std::vector<std::string> doubts;
  const int64_t minutes = arguments.minutes > 0 ? arguments.minutes : kInitMinutes;
  if (job.seconds() > 61.0 * static_cast<double>(minutes)) {
    doubts.push_back("this takes longer than --minutes (" + std::to_string(minutes) + "); use " +
                     (arguments.preset.empty() ? "more of them" : "a smaller --preset"));
  }
  if (job.takes_days) {
    doubts.push_back(std::string("this may take days on ") +
                     (arguments.cluster ? "the one processor that its pod asks for"
                                        : "the processors of this machine") +
                     "; use " + (arguments.steps > 0 ? "fewer --steps" : "a smaller --preset"));
  }
  if (!job.not_measured.empty())
    doubts.push_back("this machine was not measured: " + job.not_measured);
  return doubts;
}

void print_json(const std::string& file, const Made& made, const std::vector<std::string>& doubts,
                std::ostream& out) {
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
  const auto known = [](double value) { return value > 0 ? std::optional(value) : std::nullopt; };
  json.key("tokensPerSecond");
  json.number(known(job.tokens_per_second));
  json.key("seconds");
  json.number(known(job.seconds()));
  const auto strings = [&](const char* key, const std::vector<std::string>& values) {
    json.key(key);
    json.begin_array();
    for (const std::string& value : values)
      json.string(value);
    json.end_array();
  };
  std::vector<std::string> warnings = warnings_of(made.data);
  warnings.insert(warnings.end(), doubts.begin(), doubts.end());
  strings("warnings", warnings);
  strings("skipped", skipped_of(made.data));
  json.end_object();
  out << json.take() << '\n';
}

void print_next(const InitArguments& arguments, const Proposal& job, std::ostream& out) {
  const auto in_out = [&](const char* name) {
    return shell_word((fs::path(arguments.out) / name).string());
  };
  const std::string file = in_out(kManifestFile);
  const std::string run = shell_word((arguments.cluster ? "runs/cluster/" : "runs/") + job.name);
  std::string sets;
  std::string tokenizer;
  out << "next:\n";
  if (arguments.cluster) {
    const std::string filler = "  kubectl apply -f " + in_out(kClaimFile) +
                               "     # may complain of the size of a claim that exists"
                               "\n  kubectl wait --for=condition=Ready pod/filler --timeout=5m\n";
    const std::string folder = "/claim/" + init_claim_folder(job);
    out << filler << "  kubectl exec filler -- sh -c 'rm -rf " << folder << " && mkdir -p /claim/"
        << kInitClaimData << "'\n  kubectl cp " << in_out(kInitData) << " filler:" << folder
        << "\n  kubectl delete pod filler --grace-period=1     # one node at a time "
           "mounts the claim\n  kubectl apply -f "
        << file << "\n  kubectl get tj " << job.name << " -w\n"
        << "when it is complete:\n"
        << filler << "  mkdir -p runs/cluster && kubectl exec filler -- tar -C /claim -cf - "
        << job.name
        << " | tar -C runs/cluster -xf -\n  kubectl delete pod filler --grace-period=1\n";
    // Its run directory is not here, nor does its manifest know where the tokenizer is.
    sets = " " + shell_word((fs::path(arguments.out) / kInitData / kInitHeldOut).string());
    if (arguments.tokenizer != "bytes")
      tokenizer = " --tokenizer " + shell_word(arguments.tokenizer);
  } else {
    out << "  trainyard run " << file << "\n  trainyard top " << run
        << "     # in a second terminal\n";
  }
  out << "  trainyard sample " << run << tokenizer << '\n';
  if (job.held_out_tokens > 0) out << "  trainyard evaluate " << run << sets << '\n';
  out << "  trainyard export " << run << " " << shell_word(job.name + "-hf") << tokenizer << '\n';
  if (arguments.cluster) {
    out << "To train further, create another job with engine.startFrom.\n";
  } else {
    out << "  trainyard run " << file << " --steps " << std::min(2 * job.steps, kStepsMax)
        << "     # trains further, at the lowest rate\n";
  }
}

Status run_init(InitArguments arguments, CommandContext& context) {
  if (arguments.steps > 0 && arguments.minutes > 0) {
    return Error{ErrorCode::kInvalidConfig,
                 "--minutes: found " + std::to_string(arguments.minutes) +
                     " with --steps, which says how many steps to train; wanted one of the two"};
  }
  if (arguments.cluster && arguments.minutes > 0) {
    return Error{ErrorCode::kInvalidConfig,
                 "--minutes: found " + std::to_string(arguments.minutes) +
                     " with --cluster, wanted none, because this machine is not the cluster: use "
                     "--steps"};
  }
  if (arguments.out.empty()) arguments.out = init_name_of(arguments.data) + "-job";
  TRAINYARD_TRY(check_output_folder("--out", arguments.out));
  TRAINYARD_TRY(init_preset_of(arguments, 0));
  const fs::path file = fs::path(arguments.out) / kManifestFile;
  const fs::path claim = fs::path(arguments.out) / kClaimFile;
  std::error_code code;
  for (const fs::path& made : {file, claim}) {
    if (arguments.force || (made == claim && !arguments.cluster) || !fs::exists(made, code))
      continue;
    return Error{
        ErrorCode::kInvalidConfig,
        made.string() + ": exists already; choose another --out, or replace it with --force"};
  }
  TRAINYARD_ASSIGN(const Made made, make(arguments, context));
  const Proposal& job = made.job;
  TRAINYARD_TRY(write_file_atomic(file, init_manifest_of(job, arguments.cluster)));
  if (arguments.cluster) TRAINYARD_TRY(write_file_atomic(claim, init_claim(job)));
  const std::vector<std::string> doubts = doubts_of(arguments, job);
  if (arguments.output == "json") {
    print_json(file.string(), made, doubts, context.out);
    return {};
  }
  context.out << printable(file.string()) << ": " << job.preset.name << ", " << si(job.parameters)
              << " parameters, on " << si(job.tokens) << " tokens of " << job.files
              << (job.files == 1 ? " file" : " files") << ", "
              << (job.held_out_tokens > 0 ? si(job.held_out_tokens) + " held out"
                                          : std::string("nothing held out"))
              << "; " << job.steps << " steps of " << si(job.step_tokens());
  if (job.seconds() > 0) {
    context.out << ", about " << duration_text(job.seconds()) << " at "
                << si(std::llround(job.tokens_per_second))
                << " tokens/s on the processors of this machine";
  }
  context.out << '\n';
  for (const std::string& doubt : doubts)
    context.out << "warning: " << printable(doubt) << '\n';
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
                 "Model preset (default: chosen by the size of the text and the time it takes)");
  command
      .option(
          "--steps", arguments->steps,
          "Number of steps (default: ten epochs or at least 100 steps, if they fit into --minutes; "
          "with --cluster at most 2000)")
      .between(1, kStepsMax);
  command
      .option("--minutes", arguments->minutes,
              "How long the proposed run may take on the processors of this machine (default 10)")
      .between(1, 1'000'000);
  command.flag("--cluster", arguments->cluster, "Write a manifest for kubectl apply");
  command.flag("--force", arguments->force, "Replace the output of an earlier call");
  command.output(arguments->output);
  command.footer(kFooter);
  command.runs(
      [arguments, &context] { finish(run_init(*arguments, context), "trainyard init", context); });
}

}  // namespace trainyard::cli
