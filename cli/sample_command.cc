#include <charconv>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <unistd.h>
#include <utility>

#include "cli/commands.h"
#include "cli/registry.h"
#include "cli/terminal_text.h"
#include "cli/trained_model.h"
#include "common/api/enum_names.h"
#include "common/text/json_writer.h"
#include "worker/data/text/prompt.h"
#include "worker/data/text/tokenizer.h"
#include "worker/hf/run_tokenizer.h"
#include "worker/sample/generator.h"

namespace trainyard::cli {
namespace {

constexpr char kFooter[] = R"(Examples:
  trainyard sample runs/gpt2 --prompt "The people of "
  trainyard sample runs/gpt2 --tokens 400 --temperature 0.7 --top-k 40 --seed 7
  trainyard sample runs/gpt2/pvc/ckpt/gpt2/g1-step-0000001000 -o json
  trainyard sample models/Qwen2.5-0.5B --prompt "The people of "

On one device the same seed gives the same text. Exit codes: 0 done; 64 wrong usage or tokenizer; 65
no good checkpoint, or the model has diverged; 75 no memory, or the GPU fails.)";

struct Options {
  std::string checkpoint;
  std::string prompt = "\n";
  std::string tokenizer;
  std::string output = "text";
  ModelOptions model;
  engine::SampleOptions sample;
};

/// The tokenizer given, else the one that the model was trained with, where the run leads to it. A
/// checkpoint that does not say with which: the one the run names, else bytes where they fit. Of a
/// folder, the one that lies in it.
Result<std::unique_ptr<data::Tokenizer>> tokenizer_of(const Options& options,
                                                      const NamedModel& named) {
  const std::string& config_json = named.config_json;
  if (config_json.empty()) {
    auto tokenizer =
        data::open_tokenizer(options.tokenizer.empty() ? named.place.string() : options.tokenizer);
    if (tokenizer || !options.tokenizer.empty()) return tokenizer;
    return Error{ErrorCode::kInvalidConfig,
                 "--tokenizer: not given, and " + tokenizer.error().message};
  }
  const hf::RunFacts facts = hf::run_facts_of(config_json);
  if (!options.tokenizer.empty()) {
    TRAINYARD_ASSIGN(auto tokenizer, data::open_tokenizer(options.tokenizer));
    TRAINYARD_TRY(hf::check_run_tokenizer(facts, *tokenizer, "--tokenizer"));
    return tokenizer;
  }
  if (!facts.tokenizer_hash.empty()) {
    auto found = hf::find_run_tokenizer(facts, hf::tokenizer_places(config_json));
    if (found) return std::move(found->tokenizer);
    return Error{ErrorCode::kInvalidConfig, "--tokenizer: not given, and " + found.error().message};
  }
  const engine::Engine& engine = named.model->engine();
  const std::string& configured = engine.spec().data.tokenizer;
  if (!configured.empty()) return data::open_tokenizer(configured);
  TRAINYARD_ASSIGN(auto bytes, data::open_tokenizer("bytes"));
  if (bytes->vocabulary() == engine.model().vocab) return bytes;
  return Error{ErrorCode::kInvalidConfig,
               "--tokenizer: not given, and the run names none; the model has " +
                   std::to_string(engine.model().vocab) +
                   " tokens: name the folder its data was prepared with"};
}

Status sample(const Options& options, CommandContext& context) {
  checkpoint::PosixFileSystem files;
  TRAINYARD_ASSIGN(const NamedModel named,
                   load_model(files, options.checkpoint, options.model, context));
  TRAINYARD_ASSIGN(const auto tokenizer, tokenizer_of(options, named));
  engine::SampleOptions how = options.sample;
  how.tokenizer_vocabulary = tokenizer->vocabulary();
  const bool as_text = options.output == "text";
  // A model may say anything that its data said; a file or a pipe gets it as it is.
  const bool terminal = &context.out == &std::cout && ::isatty(STDOUT_FILENO) == 1;
  TerminalText shown;
  const auto show = [&](const std::string& piece) {
    context.out << (terminal ? shown.pass(piece) : piece) << std::flush;
  };
  std::string text;
  Status decoded;
  bool begun = false;
  TRAINYARD_ASSIGN(std::vector<int32_t> prompt, data::prompt_tokens(*tokenizer, options.prompt));
  if (const data::LeftOut lost = tokenizer->take_left_out(); lost.bytes > 0) {
    context.err << "warning: the tokenizer leaves out " << lost.bytes
                << " bytes of the prompt (without a token, or removed by a Split), as in '"
                << printable(data::on_one_line(lost.example)) << "'\n";
  }
  TRAINYARD_TRY(engine::generate(named.model->engine(), std::move(prompt), how, [&](int32_t token) {
    std::string piece;
    decoded = tokenizer->decode_token(token, piece);
    text += piece;
    if (!as_text) return decoded.has_value();
    if (!std::exchange(begun, true)) show(options.prompt);
    show(piece);
    return decoded.has_value();
  }));
  TRAINYARD_TRY(decoded);
  if (as_text) {
    context.out << shown.end() << "\n";
    return {};
  }
  text::JsonWriter json;
  json.begin_object();
  json.key("checkpoint");
  json.string(named.place.string());
  json.key("step");
  named.step ? json.integer(*named.step) : json.null();
  json.key("device");
  json.string(api::name_of(named.model->engine().spec().device));
  json.key("seed");
  json.integer(static_cast<int64_t>(options.sample.seed));
  json.key("prompt");
  json.string(options.prompt);
  json.key("text");
  json.string(text);
  json.end_object();
  context.out << json.take() << "\n";
  return {};
}

}  // namespace

void register_sample(const Command& app, CommandContext& context) {
  const Command command = app.command("sample", "Generates text from a trained model.");
  auto options = std::make_shared<Options>();
  command.option("CHECKPOINT", options->checkpoint, kModelHelp).required();
  command.option("--prompt", options->prompt, "Text to continue (default: a new line)");
  command.option("--tokens", options->sample.tokens, "Tokens to generate")
      .between(1, int64_t{1} << 20)
      .show_default();
  command
      .option("--temperature", options->sample.temperature,
              "Randomness; 0: always the most probable token")
      .check(
          [](const std::string& text) {
            char* end = nullptr;
            const double value = std::strtod(text.c_str(), &end);
            const bool good = end != text.c_str() && *end == '\0' && value >= 0 && value <= 100;
            return good ? std::string() : "found " + text + ", wanted a number from 0 to 100";
          },
          "NUMBER in [0 - 100]")
      .show_default();
  command
      .option("--top-k", options->sample.top_k,
              "Sample from the K most probable tokens; 0: from all")
      .between(0, 1'000'000'000)
      .show_default();
  command.option("--seed", options->sample.seed, "Seed of the sampling")
      .check(
          [](const std::string& text) {
            uint64_t value = 0;
            const char* end = text.data() + text.size();
            const auto [read, code] = std::from_chars(text.data(), end, value);
            if (code == std::errc() && read == end) return std::string();
            return "found " + text + ", wanted a whole number from 0 to " +
                   std::to_string(std::numeric_limits<uint64_t>::max());
          },
          "UINT")
      .show_default();
  command.option(
      "--tokenizer", options->tokenizer,
      "Tokenizer that the model was trained with: \"bytes\", a folder or a tokenizer.json; "
      "default: the run's own");
  add_device_options(command, options->model);
  command.output(options->output);
  command.footer(kFooter);
  command.runs(
      [options, &context] { finish(sample(*options, context), "trainyard sample", context); });
}

}  // namespace trainyard::cli
