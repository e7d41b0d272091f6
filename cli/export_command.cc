#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "cli/checkpoint_path.h"
#include "cli/commands.h"
#include "cli/named_path.h"
#include "cli/registry.h"
#include "common/text/json_writer.h"
#include "worker/hf/export_checkpoint.h"
#include "worker/hf/run_facts.h"
#include "worker/hf/run_tokenizer.h"

namespace trainyard::cli {
namespace {

constexpr char kFooter[] = R"help(Examples:
  trainyard export runs/gpt2 gpt2-exported
  trainyard export runs/gpt2 gpt2-bf16 --dtype BF16 --max-shard-size 5G
  python3 -c "import transformers; transformers.GPT2LMHeadModel.from_pretrained('gpt2-exported')"

Exit codes: 0 exported; 64 wrong usage, a model that cannot be exported, or an unusable folder; 65
no good checkpoint; 75 input or output failed.)help";

constexpr char kFolderOption[] = "--hugging-face";
constexpr char kFolder[] = "FOLDER";

struct ExportOptions {
  std::string checkpoint;
  std::string folder;
  std::string tokenizer;
  std::string dtype = "F32";
  int64_t max_shard_size = 0;
  std::string output = "text";
  std::vector<std::string> both;  ///< CHECKPOINT FOLDER, in place of the two options
};

/// Whether checkpoint and folder were each given once.
Status take_places(ExportOptions& options) {
  for (std::string* place : {&options.checkpoint, &options.folder}) {
    if (options.both.empty()) break;
    if (!place->empty())
      return Error{ErrorCode::kInvalidConfig, "found \"" + options.both.front() + "\" and \"" +
                                                  *place + "\", wanted one of them"};
    *place = options.both.front();
    options.both.erase(options.both.begin());
  }
  if (!options.both.empty())
    return Error{ErrorCode::kInvalidConfig, "found a third argument, \"" + options.both.front() +
                                                "\", wanted CHECKPOINT FOLDER"};
  if (options.checkpoint.empty() || options.folder.empty())
    return Error{ErrorCode::kInvalidConfig,
                 "found no " +
                     std::string(options.checkpoint.empty() ? "checkpoint" : "output folder") +
                     ", wanted CHECKPOINT FOLDER"};
  return {};
}

Status export_model(ExportOptions options, CommandContext& context) {
  TRAINYARD_TRY(take_places(options));
  TRAINYARD_TRY(check_output_folder(kFolder, options.folder));
  checkpoint::PosixFileSystem files;
  PassedOver passed_over(context.err);
  std::unique_ptr<data::Tokenizer> tokenizer;
  if (!options.tokenizer.empty()) {
    TRAINYARD_ASSIGN(tokenizer, data::open_tokenizer(options.tokenizer));
  }
  const hf::WeightsForm form{.dtype = *dtype_from_name(options.dtype),
                             .part_bytes_max = options.max_shard_size};
  std::string without_tokenizer;
  const auto write = [&](checkpoint::CheckpointReader& reader) -> Status {
    std::vector<std::string> places;
    if (tokenizer != nullptr) {
      const hf::RunFacts facts = hf::run_facts_of(reader.manifest().config_json);
      TRAINYARD_TRY(hf::check_run_tokenizer(facts, *tokenizer, "--tokenizer"));
      places.push_back(options.tokenizer);
    }
    auto exported = hf::export_checkpoint(reader, options.folder, std::move(places), form);
    if (!exported && exported.error().code == ErrorCode::kAlreadyExists) {  // the wrong folder
      return Error{ErrorCode::kInvalidConfig, exported.error().with_context(kFolder).message};
    }
    TRAINYARD_ASSIGN(without_tokenizer, std::move(exported));
    return {};
  };
  TRAINYARD_ASSIGN(const auto reader,
                   read_checkpoint(files, options.checkpoint, write, passed_over));
  if (options.output == "json") {
    text::JsonWriter json;
    json.begin_object();
    json.key("path");
    json.string(options.folder);
    json.key("step");
    json.integer(reader->manifest().step);
    json.key("checkpoint");
    json.string(reader->directory().string());
    json.key("withoutTokenizer");
    if (without_tokenizer.empty()) {
      json.null();
    } else {
      json.string(without_tokenizer);
    }
    json.end_object();
    context.out << json.take() << '\n';
    return {};
  }
  context.out << options.folder << ": step " << reader->manifest().step << " of "
              << printable(reader->directory().string()) << '\n';
  if (!without_tokenizer.empty()) {
    context.out << "without tokenizer files: " << printable(without_tokenizer) << '\n';
  }
  return {};
}

}  // namespace

void register_export(const Command& app, CommandContext& context) {
  const Command command =
      app.command("export", "Writes a trained model for other programs to load.");
  auto options = std::make_shared<ExportOptions>();
  command.option(
      "CHECKPOINT FOLDER", options->both,
      "A checkpoint, or a job's checkpoint or run directory (its newest good checkpoint), "
      "and the output folder for transformers");
  command.option("--checkpoint", options->checkpoint, "Another way to give CHECKPOINT");
  command.option(kFolderOption, options->folder, "Another way to give FOLDER");
  command.option("--tokenizer", options->tokenizer,
                 "Tokenizer that the model was trained with; default: the run's own");
  command.option("--dtype", options->dtype, "Type of the weights")
      .one_of({"F32", "BF16", "F16"})
      .show_default();
  command
      .option("--max-shard-size", options->max_shard_size,
              "Bytes of weights per file, such as 5G; larger models get several files and an "
              "index; 0: one file")
      .with_suffixes()
      .between(0, int64_t{1} << 50)
      .show_default();
  command.output(options->output);
  command.footer(kFooter);
  command.runs([options, &context] {
    finish(export_model(*options, context), "trainyard export", context);
  });
}

}  // namespace trainyard::cli
