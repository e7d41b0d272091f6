#include <cmath>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/registry.h"
#include "cli/trained_model.h"
#include "common/api/enum_names.h"
#include "common/text/json_writer.h"
#include "worker/data/dataset.h"
#include "worker/data/documents.h"
#include "worker/data/evaluation_loader.h"
#include "worker/hf/run_facts.h"
#include "worker/job/import_export.h"
#include "worker/job/resolve.h"

namespace trainyard::cli {
namespace {

constexpr char kFooter[] = R"(Examples:
  trainyard evaluate runs/gpt2
  trainyard evaluate runs/gpt2 data/heldout data/recent -o json
  trainyard evaluate models/Qwen2.5-0.5B data/heldout --sequence-length 512

Each TOKENS path is one set: a token shard or a folder of shards. Without TOKENS, the set is the
run's own data.validation; evaluations during training score evaluation.sequences of its windows.
Bits per byte can be compared between models with different tokenizers. Exit codes: 0 done; 64 wrong
usage, or tokens of another tokenizer; 65 no good checkpoint, damaged tokens, or the model has
diverged; 75 no memory, or the GPU fails.)";

struct Options {
  std::string checkpoint;
  std::vector<std::string> sets;
  std::string output = "text";
  int64_t sequences = 0;
  ModelOptions model{.micro_sequences = 8, .samples = false};
};

struct Score {
  std::string set;
  double loss = 0;  ///< nats a token
  std::optional<double> bits_per_byte;
  int64_t windows = 0;
  int64_t tokens = 0;
};

/// Refuses tokens that another tokenizer than the model's has made, where the run says with which
/// it was trained; of a folder it is told what speaks against them.
Status check_tokenizer(const NamedModel& named, const data::TokenSet& tokens,
                       const std::string& path, std::ostream& err) {
  if (named.config_json.empty()) {
    const std::string doubt =
        engine::doubt_of_tokens(tokens, named.place, named.model->engine().model().vocab);
    if (!doubt.empty()) err << printable(path + ": " + doubt) << '\n';
    return {};
  }
  const hf::RunFacts facts = hf::run_facts_of(named.config_json);
  const std::string hash = to_hex(tokens.tokenizer_hash());
  if (facts.tokenizer_hash.empty() || hash == facts.tokenizer_hash) return {};
  return Error{ErrorCode::kInvalidConfig,
               path + ": found tokens of tokenizer " + tokens.tokenizer() + " (" + hash +
                   "), wanted " + facts.tokenizer + " (" + facts.tokenizer_hash +
                   "), which the model was trained with; prepare the set with that tokenizer"};
}

/// Token shards that are scored together, and their name.
struct NamedSet {
  std::string name;
  std::vector<std::string> paths;
};

/// Those given, each by itself, else the run's own.
Result<std::vector<NamedSet>> sets_of(const Options& options, const NamedModel& named) {
  std::vector<NamedSet> sets;
  for (const std::string& path : options.sets)
    sets.push_back({.name = path, .paths = {path}});
  if (!sets.empty()) return sets;
  const std::vector<std::string>& own = named.model->engine().spec().data.validation;
  if (own.empty()) {
    return Error{ErrorCode::kInvalidConfig,
                 "TOKENS: found none, and " + named.place.string() +
                     (named.config_json.empty()
                          ? " is a model folder, not a run with a data.validation of its own"
                          : " is of a run without data.validation") +
                     ": name a set of held-out token shards"};
  }
  std::string name;
  for (const std::string& path : own)
    name += (name.empty() ? "" : ", ") + path;
  sets.push_back({.name = std::move(name), .paths = own});
  return sets;
}

Result<Score> evaluate_set(const NamedModel& named, const NamedSet& set, const Options& options,
                           std::ostream& err) {
  engine::Engine& engine = named.model->engine();
  const std::string& path = set.name;
  Result<data::TokenSet> opened = data::TokenSet::open(std::span<const std::string>(set.paths));
  if (!opened && options.sets.empty()) {
    Error error = std::move(opened).error();
    error.message += "; this path is the run's data.validation: if the set lies elsewhere, name it";
    return error;
  }
  TRAINYARD_ASSIGN(const data::TokenSet tokens, std::move(opened));
  TRAINYARD_TRY(engine::check_held_out(tokens, nullptr, engine.model().vocab, path));
  TRAINYARD_TRY(check_tokenizer(named, tokens, path, err));
  const int64_t length = engine.spec().data.sequence_length;
  std::optional<int32_t> end_of_text;
  if (engine.spec().data.documents == api::Documents::kIsolate) {
    TRAINYARD_ASSIGN(end_of_text, data::end_of_text_of(tokens));
  }
  TRAINYARD_ASSIGN(auto loader, data::EvaluationLoader::open(
                                    tokens, {.tokens_per_sample = length,
                                             .micro_sequences = options.model.micro_sequences,
                                             .windows_max = options.sequences,
                                             .end_of_text = end_of_text}));
  auto report = engine.evaluate(loader, loader.windows(), options.model.micro_sequences);
  if (!report) {
    Error error = std::move(report).error();
    if (error.code == ErrorCode::kUnavailable && engine.spec().device == api::DeviceKind::kCuda)
      error.message += "; a smaller --micro-sequences takes less memory";
    return error;
  }
  const double loss = report->loss;
  if (!std::isfinite(loss)) {
    return Error{ErrorCode::kInvalidData,
                 path +
                     ": found a loss that is not finite, wanted a number of nats per token; the "
                     "model has diverged: name an older checkpoint (trainyard ckpt ls)"};
  }
  if (!tokens.text_bytes()) {
    err << printable(path) << ": bits per byte are not known, as not all shards say how many bytes "
        << "of text their tokens stand for\n";
  }
  return Score{.set = path,
               .loss = loss,
               .bits_per_byte = tokens.bits_per_byte(loss),
               .windows = loader.windows(),
               .tokens = loader.windows() * length};
}

void print_json(const std::vector<Score>& scores, const NamedModel& named, std::ostream& out) {
  text::JsonWriter json;
  json.begin_object();
  json.key("step");
  named.step ? json.integer(*named.step) : json.null();
  json.key("device");
  json.string(api::name_of(named.model->engine().spec().device));
  json.key("sets");
  json.begin_array();
  for (const Score& score : scores) {
    json.begin_object();
    json.key("set");
    json.string(score.set);
    json.key("lossNatsPerToken");
    json.number(score.loss);
    json.key("bitsPerByte");
    json.number(score.bits_per_byte);
    json.key("windows");
    json.integer(score.windows);
    json.key("tokens");
    json.integer(score.tokens);
    json.end_object();
  }
  json.end_array();
  json.end_object();
  out << json.take() << "\n";
}

/// Of a model that has diverged it can be beyond any double.
std::string perplexity_of(double loss) {
  const double perplexity = std::exp(loss);
  if (!std::isfinite(perplexity)) return "above 1e308";
  return perplexity < 1e9 ? fmt::format("{:.2f}", perplexity) : fmt::format("{:.2e}", perplexity);
}

Status evaluate(const Options& options, CommandContext& context) {
  checkpoint::PosixFileSystem files;
  TRAINYARD_ASSIGN(const NamedModel named,
                   load_model(files, options.checkpoint, options.model, context));
  std::vector<Score> scores;
  TRAINYARD_ASSIGN(const std::vector<NamedSet> sets, sets_of(options, named));
  for (const NamedSet& set : sets) {
    TRAINYARD_ASSIGN(Score score, evaluate_set(named, set, options, context.err));
    scores.push_back(std::move(score));
  }
  if (options.output == "json") {
    print_json(scores, named, context.out);
    return {};
  }
  for (const Score& score : scores) {
    const std::string bits = score.bits_per_byte
                                 ? fmt::format("{:.4f} bits/byte", *score.bits_per_byte)
                                 : "bits/byte not known";
    context.out << fmt::format("loss {:.4f} nats/token, {}, perplexity {}, {} windows  ",
                               score.loss, bits, perplexity_of(score.loss), score.windows)
                << printable(score.set) << "\n";
  }
  return {};
}

}  // namespace

void register_evaluate(const Command& app, CommandContext& context) {
  const Command command =
      app.command("evaluate", "Measures a model's loss on held-out token shards.");
  auto options = std::make_shared<Options>();
  command.option("CHECKPOINT", options->checkpoint, kModelHelp).required();
  command.option(
      "TOKENS", options->sets,
      "Sets of token shards, each scored separately (default: the run's data.validation)");
  command.option("--sequences", options->sequences, "Score only the first N windows; 0: all")
      .between(0, 1'000'000'000)
      .show_default();
  command.option("--micro-sequences", options->model.micro_sequences, "Windows per micro-batch")
      .between(1, int64_t{1} << 16)
      .show_default();
  command
      .option("--sequence-length", options->model.sequence_length,
              "Tokens per window for a Hugging Face folder; 0: 1024, or the model's number of "
              "positions if that is smaller")
      .between(0, int64_t{1} << 20)
      .show_default();
  add_device_options(command, options->model);
  command.output(options->output);
  command.footer(kFooter);
  command.runs(
      [options, &context] { finish(evaluate(*options, context), "trainyard evaluate", context); });
}

}  // namespace trainyard::cli
