#include <memory>
#include <ostream>
#include <string>

#include "cli/checkpoint_path.h"
#include "cli/commands.h"
#include "cli/named_path.h"
#include "cli/registry.h"
#include "common/text/json_writer.h"
#include "worker/hf/export_checkpoint.h"

namespace trainyard::cli {
namespace {

constexpr char kFooter[] = R"help(Example:
  trainyard export --checkpoint runs/gpt2/pvc/ckpt --hugging-face gpt2-exported
  python3 -c "import transformers; transformers.GPT2LMHeadModel.from_pretrained('gpt2-exported')"

Exit codes: 0 exported; 64 this model cannot be exported, or not to that folder; 65 no good checkpoint;
75 input or output failed.)help";

constexpr char kFolderOption[] = "--hugging-face";

struct ExportOptions {
  std::string checkpoint;
  std::string folder;
  std::string output = "text";
};

Status export_model(const ExportOptions& options, CommandContext& context) {
  TRAINYARD_TRY(check_output_folder(kFolderOption, options.folder));
  // Before the checkpoint is read, and as what it is: the wrong folder.
  if (const Status free = hf::check_export_folder(options.folder, ""); !free) {
    return Error{ErrorCode::kInvalidConfig, free.error().with_context(kFolderOption).message};
  }
  checkpoint::PosixFileSystem files;
  PassedOver passed_over(context.err);
  const auto write = [&](checkpoint::CheckpointReader& reader) {
    return hf::export_checkpoint(reader, options.folder);
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
    json.end_object();
    context.out << json.take() << '\n';
    return {};
  }
  context.out << options.folder << ": step " << reader->manifest().step << " of "
              << reader->directory().string() << '\n';
  return {};
}

}  // namespace

void register_export(const Command& app, CommandContext& context) {
  const Command command =
      app.command("export", "Writes a trained model for other programs to load.");
  auto options = std::make_shared<ExportOptions>();
  command
      .option("--checkpoint", options->checkpoint,
              "A checkpoint, or a job's checkpoint or run directory (its newest good one)")
      .required();
  command.option(kFolderOption, options->folder, "Folder to make, as transformers reads it")
      .required();
  command.output(options->output);
  command.footer(kFooter);
  command.runs([options, &context] {
    finish(export_model(*options, context), "trainyard export", context);
  });
}

}  // namespace trainyard::cli
