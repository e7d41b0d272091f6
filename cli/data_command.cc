#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iomanip>
#include <map>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <system_error>
#include <unistd.h>
#include <vector>

#include "cli/camel_keys.h"
#include "cli/commands.h"
#include "cli/data_notes.h"
#include "cli/data_progress.h"
#include "cli/data_subcommands.h"
#include "cli/named_path.h"
#include "cli/registry.h"
#include "common/base/clock.h"
#include "common/text/json_writer.h"
#include "common/text/quantity.h"
#include "worker/data/dataset.h"
#include "worker/data/dataset_manifest.h"
#include "worker/data/prepare.h"

namespace trainyard::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kFooter[] = R"(Examples:
  trainyard data prepare --tokenizer bytes --out runs/data/books texts/
  trainyard data prepare --tokenizer gpt2/ --out speeches --split validation='^\d{3}5_' \
      --split recent='^20[12]' sotu/
  trainyard data show speeches
  trainyard data verify speeches/train
  trainyard data order speeches/train --sequence-length 1024 --ranks 8,6,7

A data set contains one folder of token shards per split; engine.data names these folders.

`prepare` keeps an existing data set that was made from the same files with the same options. It
replaces a different data set only with --force. A text belongs to one split: `prepare` rejects
identical files in different splits.

Exit codes: 0 done; 64 wrong usage, or --out contains something else; 65 data is damaged or missing;
70 an epoch did not visit each sample exactly once; 75 input or output failed.)";

constexpr int kIndent = 2;

std::string with_commas(int64_t number) {
  std::string digits = std::to_string(number);
  for (auto place = static_cast<int64_t>(digits.size()) - 3; place > 0; place -= 3)
    digits.insert(static_cast<size_t>(place), ",");
  return digits;
}

std::string fixed(double number, int decimals) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(decimals) << number;
  return text.str();
}

void print_splits(const data::DatasetManifest& manifest, std::ostream& out) {
  out << std::left << std::setw(16) << "SPLIT" << std::right << std::setw(10) << "DOCUMENTS"
      << std::setw(18) << "TOKENS" << std::setw(18) << "TEXT BYTES" << std::setw(8) << "SHARDS"
      << std::setw(10) << "GZIP -9" << std::setw(13) << "BYTE BIGRAM" << '\n';
  for (const data::SplitRecord& split : manifest.splits) {
    out << std::left << std::setw(16) << printable(split.name) << std::right << std::setw(10)
        << with_commas(split.documents) << std::setw(18) << with_commas(split.tokens)
        << std::setw(18) << with_commas(split.text_bytes) << std::setw(8) << split.shards.size();
    if (split.baselines) {
      out << std::setw(10) << fixed(split.baselines->gzip9_bits_per_byte, 2) << std::setw(13)
          << fixed(split.baselines->byte_bigram_bits_per_byte, 2) << "  bits per byte";
    }
    out << '\n';
  }
}

struct PrepareArguments {
  std::string tokenizer = "bytes";
  std::string out;
  std::vector<std::string> splits;
  std::string include = "\\.txt$";
  int64_t shard_tokens = int64_t{1} << 27;
  std::string dtype = "auto";
  bool force = false;
  bool drop_copies = false;
  std::string output = "text";
  std::vector<std::string> inputs;
};

Result<data::PrepareOptions> options_of(const PrepareArguments& arguments) {
  data::PrepareOptions options;
  options.tokenizer = arguments.tokenizer;
  options.output = arguments.out;
  options.inputs.assign(arguments.inputs.begin(), arguments.inputs.end());
  options.include = arguments.include;
  options.shard_tokens = arguments.shard_tokens;
  options.existing = arguments.force ? data::Existing::kReplace : data::Existing::kRefuse;
  options.copies = arguments.drop_copies ? data::Copies::kDrop : data::Copies::kRefuse;
  options.token_bytes = arguments.dtype == "u16" ? 2 : arguments.dtype == "u32" ? 4 : 0;
  for (const std::string& split : arguments.splits) {
    const size_t equals = split.find('=');
    if (equals == std::string::npos) {
      return Error{ErrorCode::kInvalidConfig,
                   "--split: found '" + split + "', wanted NAME=EXPRESSION"};
    }
    options.splits.push_back({split.substr(0, equals), split.substr(equals + 1)});
  }
  return options;
}

Status run_prepare(const PrepareArguments& arguments, CommandContext& context) {
  TRAINYARD_TRY(check_output_folder("--out", arguments.out));
  TRAINYARD_ASSIGN(data::PrepareOptions options, options_of(arguments));
  const SystemClock clock;
  DataProgress progress(context.err, ::isatty(STDERR_FILENO) == 1, clock);
  options.progress = [&](const data::PrepareProgress& now) { progress.show(now); };
  const MonoTime start = clock.mono();
  const Result<data::PrepareOutcome> outcome = data::prepare(options);
  progress.clear();
  if (!outcome) {
    Error error = outcome.error();
    // Something else lies at --out: another folder is the user's to choose.
    if (error.code == ErrorCode::kAlreadyExists) error.code = ErrorCode::kInvalidConfig;
    return error;
  }

  const double seconds = std::chrono::duration<double>(clock.mono() - start).count();
  int64_t bytes = 0;
  for (const data::SourceRecord& source : outcome->manifest.recipe.sources)
    bytes += source.bytes;
  const double rate = static_cast<double>(bytes) / 1e6 / std::max(seconds, 1e-9);
  if (arguments.output == "json") {
    text::JsonWriter json(kIndent);
    json.begin_object();
    json.key("path");
    json.string(arguments.out);
    json.key("unchanged");
    json.boolean(outcome->unchanged);
    json.key("seconds");
    json.number(seconds);
    json.key("megabytesPerSecond");
    json.number(rate);
    json.key("dataset");
    json.raw(with_camel_keys(data::encode_manifest(outcome->manifest)));
    json.key("warnings");
    json.begin_array();
    for (const std::string& warning : warnings_of(*outcome))
      json.string(warning);
    json.end_array();
    json.end_object();
    context.out << json.take() << '\n';
    return {};
  }
  if (outcome->unchanged) {
    context.out << arguments.out << ": unchanged, prepared from the same files and options\n";
  } else {
    context.out << arguments.out << ": " << with_commas(bytes) << " bytes of text in "
                << text::counted(std::ssize(outcome->manifest.recipe.sources), "file")
                << ", tokenizer " << outcome->manifest.recipe.tokenizer << ", " << fixed(seconds, 1)
                << " s, " << fixed(rate, 1) << " MB/s\n";
  }
  print_notes(*outcome, context.out);
  print_splits(outcome->manifest, context.out);
  return {};
}

struct PathArguments {
  std::string path;
  std::string output = "text";
};

bool is_dataset(const fs::path& path) {
  std::error_code code;
  return fs::exists(path / data::kManifestName, code);
}

Result<data::TokenSet> open_set(const std::string& path) {
  const std::vector<std::string> paths = {path};
  return data::TokenSet::open(std::span<const std::string>(paths));
}

void show_set(const std::string& path, const data::TokenSet& set, std::ostream& out) {
  const auto line = [&](const char* name, const std::string& value) {
    out << std::left << std::setw(18) << name << printable(value) << '\n';
  };
  line("path", path);
  line("tokenizer", set.tokenizer() + ", hash " + to_hex(set.tokenizer_hash()));
  line("vocabulary", with_commas(set.vocabulary()));
  line("tokens", with_commas(set.tokens()));
  line("documents", with_commas(set.documents()));
  line("text bytes", set.text_bytes() ? with_commas(*set.text_bytes()) : "not known");
  line("identity", to_hex(set.identity()));
  for (const data::TokenFile& file : set.files()) {
    out << "  " << printable(file.path().filename().string()) << "  "
        << with_commas(file.info().tokens) << " tokens of " << file.info().token_bytes
        << " bytes\n";
  }
}

std::string set_as_json(const std::string& path, const data::TokenSet& set) {
  text::JsonWriter json(kIndent);
  const auto integer = [&](const char* name, int64_t value) {
    json.key(name);
    json.integer(value);
  };
  const auto string = [&](const char* name, std::string_view value) {
    json.key(name);
    json.string(value);
  };
  json.begin_object();
  string("path", path);
  string("tokenizer", set.tokenizer());
  string("tokenizerHash", to_hex(set.tokenizer_hash()));
  integer("vocabulary", set.vocabulary());
  integer("tokens", set.tokens());
  integer("documents", set.documents());
  json.key("textBytes");
  set.text_bytes() ? json.integer(*set.text_bytes()) : json.null();
  integer("shards", static_cast<int64_t>(set.files().size()));
  string("identity", to_hex(set.identity()));
  json.end_object();
  return json.take();
}

Status run_show(const PathArguments& arguments, CommandContext& context) {
  const bool as_json = arguments.output == "json";
  if (is_dataset(arguments.path)) {
    TRAINYARD_ASSIGN(const data::DatasetManifest manifest, data::read_manifest(arguments.path));
    if (as_json) {
      context.out << with_camel_keys(data::encode_manifest(manifest)) << '\n';
      return {};
    }
    const data::DatasetManifest::Recipe& recipe = manifest.recipe;
    context.out << "data set          " << arguments.path << "\ntokenizer         "
                << printable(recipe.tokenizer) << ", vocabulary " << with_commas(recipe.vocabulary)
                << ", hash " << recipe.tokenizer_hash << "\nsources           "
                << text::counted(std::ssize(recipe.sources), "file") << "\n";
    if (manifest.left_out) print_groups("warning: ", *manifest.left_out, context.out);
    print_groups("skipped: ", manifest.passed_over, context.out);
    print_splits(manifest, context.out);
    return {};
  }
  TRAINYARD_ASSIGN(const data::TokenSet set, open_set(arguments.path));
  if (as_json)
    context.out << set_as_json(arguments.path, set) << '\n';
  else
    show_set(arguments.path, set, context.out);
  return {};
}

Status run_verify(const PathArguments& arguments, CommandContext& context) {
  Status status;
  if (is_dataset(arguments.path)) {
    status = data::verify_dataset(arguments.path);
  } else {
    TRAINYARD_ASSIGN(const data::TokenSet set, open_set(arguments.path));
    status = set.verify();
  }
  if (arguments.output == "json") {
    text::JsonWriter json(kIndent);
    json.begin_object();
    json.key("path");
    json.string(arguments.path);
    json.key("good");
    json.boolean(status.has_value());
    if (!status) {
      json.key("message");
      json.string(status.error().message);
    }
    json.end_object();
    context.out << json.take() << '\n';
  } else if (status) {
    context.out << arguments.path << ": good\n";
  }
  return status;
}

void add_prepare(const Command& parent, CommandContext& context) {
  const Command command = parent.command("prepare", "Turns text into token shards.");
  auto arguments = std::make_shared<PrepareArguments>();
  command
      .option("--tokenizer", arguments->tokenizer,
              "'bytes', a tokenizer.json, or a folder; `prepare` looks in the folder for "
              "tokenizer.json, then vocab.json with merges.txt, then encoder.json with vocab.bpe")
      .show_default();
  command
      .option("--out", arguments->out, "Folder of the data set, written completely or not at all")
      .required();
  command
      .option("--split", arguments->splits,
              "NAME=EXPRESSION: put files whose name matches into split NAME; the first match "
              "counts, and all other files go to 'train'; repeatable")
      .repeatable();
  command
      .option("--include", arguments->include,
              "Regular expression; in folders, only files whose name matches are read")
      .show_default();
  command.option("--shard-tokens", arguments->shard_tokens, "Tokens per shard").show_default();
  command.flag("--force", arguments->force,
               "Replace a data set that was made from other files or options, or by a version "
               "that did not count the bytes left out");
  command.flag("--drop-copies", arguments->drop_copies,
               "Leave out copies of held-out files instead of rejecting them");
  command.option("--dtype", arguments->dtype, "Type of a token: auto, u16 or u32")
      .one_of({"auto", "u16", "u32"})
      .show_default();
  command.output(arguments->output);
  command.option("INPUT", arguments->inputs, "Text files, or folders of text files").required();
  command.runs([arguments, &context] {
    finish(run_prepare(*arguments, context), "trainyard data", context);
  });
}

using PathCommand = Status (*)(const PathArguments&, CommandContext&);

void add_path_command(const Command& parent, CommandContext& context, const char* name,
                      const char* what, PathCommand run) {
  const Command command = parent.command(name, what);
  auto arguments = std::make_shared<PathArguments>();
  command.option("PATH", arguments->path, "Data set, folder of shards, or shard").required();
  command.output(arguments->output);
  command.runs(
      [arguments, run, &context] { finish(run(*arguments, context), "trainyard data", context); });
}

}  // namespace

void register_data(const Command& app, CommandContext& context) {
  const Command command = app.command("data", "Prepares, shows and verifies training data.");
  command.require_command();
  command.footer(kFooter);
  add_prepare(command, context);
  add_path_command(command, context, "show", "Shows the contents of a data set or shard.",
                   run_show);
  add_path_command(command, context, "verify", "Reads every byte and reports damage.", run_verify);
  register_data_order(command, context);
}

}  // namespace trainyard::cli
