#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <sys/stat.h>
#include <vector>

#include "cli/checkpoint_path.h"
#include "cli/ckpt_subcommands.h"
#include "cli/commands.h"
#include "common/io/file.h"
#include "common/text/json_writer.h"
#include "worker/checkpoint/prune.h"

namespace trainyard::cli {
namespace {

namespace ckpt = checkpoint;

constexpr char kFooter[] =
    R"(Without --yes, `prune` only lists checkpoints. It keeps the --keep-last newest good
checkpoints. It reads each of them in full, so that a damaged checkpoint does not count. It also
keeps the checkpoint of the best model, and every checkpoint whose step is a multiple of
--keep-every. It does not touch checkpoints that it finds damaged, unfinished checkpoints of the
newest generation, or checkpoints of other branches or jobs. It removes all others: older
checkpoints, which it does not read, and unfinished checkpoints of older generations. If `prune`
cannot read a checkpoint that it may have to keep, for a reason other than damage (permissions, an
I/O error), it removes nothing.

A running job removes its old checkpoints itself (checkpointPolicy.keepLast). With --yes, `prune`
first locks the run directory above PATH. If there is no run directory above PATH, pass --stopped to
confirm that no job writes to PATH.

Examples:
  trainyard ckpt prune --keep-last 2 runs/gpt2
  trainyard ckpt prune --keep-last 1 --keep-every 1000 --yes runs/gpt2/pvc/ckpt/gpt2

Exit codes: 0 done; 64 no run directory above PATH and no --stopped; 65 no good checkpoint; 75 the
job is running, a checkpoint cannot be read, or input or output failed.)";

constexpr int kIndent = 2;
// RUN/pvc/CLAIM/PATH, where PATH may have several parts.
constexpr int kMaxParents = 16;

struct PruneOptions {
  std::string path;
  std::string output = "text";
  int64_t keep_last = 3;
  int64_t keep_every = 0;
  bool yes = false;
  bool stopped = false;
};

/// The directory of the `trainyard run` that `path` lies in (docs/formats/run-directory.md), by its
/// links or by where they lead: a run's checkpoints may be kept on another disk.
std::optional<std::filesystem::path> run_directory_above(const std::filesystem::path& path) {
  std::error_code error;
  for (std::filesystem::path at : {std::filesystem::canonical(path, error),
                                   std::filesystem::absolute(path, error).lexically_normal()}) {
    for (int i = 0; i < kMaxParents && at.has_relative_path(); ++i) {
      // Of one file of that name alone nothing follows: anybody may have left it in a folder above.
      if (std::filesystem::exists(at / "job.json", error) &&
          std::filesystem::exists(at / "status.json", error)) {
        return at;
      }
      at = at.parent_path();
    }
  }
  return std::nullopt;
}

/// Bytes that come free: shards are shared by hard links, and count when their last name goes.
int64_t freed_bytes(const std::filesystem::path& root,
                    const std::vector<ckpt::CheckpointId>& removed) {
  std::map<ino_t, nlink_t> names;
  int64_t bytes = 0;
  for (const ckpt::CheckpointId& id : removed) {
    std::error_code error;
    for (const auto& entry :
         std::filesystem::directory_iterator(root / ckpt::directory_name(id), error)) {
      struct stat info {};
      if (::lstat(entry.path().c_str(), &info) != 0) continue;
      if (++names[info.st_ino] == info.st_nlink) bytes += info.st_size;
    }
  }
  return bytes;
}

/// A plan, and what became of it where it was carried out.
struct Pruned {
  std::vector<ckpt::CheckpointId> removed;  ///< or would be
  std::vector<std::string> left_alone;
  int64_t bytes = 0;
};

void print_plan(const PruneOptions& options, const ckpt::PrunePlan& plan, const Pruned& pruned,
                std::ostream& out) {
  for (const ckpt::CheckpointId& id : pruned.removed) {
    out << (options.yes ? "removed " : "would remove ") << ckpt::directory_name(id) << '\n';
  }
  for (const ckpt::CheckpointId& id : plan.kept)
    out << "kept " << ckpt::directory_name(id) << '\n';
  for (const std::string& line : pruned.left_alone)
    out << "left alone " << printable(line) << '\n';
  out << pruned.removed.size() << (pruned.removed.size() == 1 ? " checkpoint, " : " checkpoints, ")
      << pruned.bytes << " bytes"
      << (options.yes ? " removed\n" : " would be removed; --yes removes them\n");
}

std::string plan_as_json(const PruneOptions& options, const ckpt::PrunePlan& plan,
                         const Pruned& pruned) {
  text::JsonWriter json(kIndent);
  const auto names = [&](const char* key, const std::vector<ckpt::CheckpointId>& ids) {
    json.key(key);
    json.begin_array();
    for (const ckpt::CheckpointId& id : ids)
      json.string(ckpt::directory_name(id));
    json.end_array();
  };
  json.begin_object();
  json.key("done");
  json.boolean(options.yes);
  names("removed", pruned.removed);
  names("kept", plan.kept);
  json.key("leftAlone");
  json.begin_array();
  for (const std::string& line : pruned.left_alone)
    json.string(line);
  json.end_array();
  json.key("bytes");
  json.integer(pruned.bytes);
  json.end_object();
  return json.take();
}

/// What keeps a job from running meanwhile. Errors: kConflict while one does; kInvalidConfig where
/// that cannot be known.
Result<std::optional<DirectoryLock>> keep_stopped(const PruneOptions& options) {
  const auto run = run_directory_above(options.path);
  if (run) {
    TRAINYARD_ASSIGN(DirectoryLock lock, DirectoryLock::acquire(*run));
    return std::optional(std::move(lock));
  }
  if (options.stopped) return std::optional<DirectoryLock>();
  return Error{ErrorCode::kInvalidConfig,
               options.path +
                   ": it is not below the directory of a `trainyard run`, so it is unknown whether "
                   "its job runs; make sure that it does not and pass --stopped"};
}

Status run_prune(const PruneOptions& options, CommandContext& context) {
  std::optional<DirectoryLock> lock;
  if (options.yes) {
    TRAINYARD_ASSIGN(lock, keep_stopped(options));
  }
  ckpt::PosixFileSystem files;
  TRAINYARD_ASSIGN(const std::filesystem::path root, checkpoints_at(options.path));
  TRAINYARD_ASSIGN(
      const ckpt::PrunePlan plan,
      ckpt::plan_prune(files, root,
                       {.keep_last = options.keep_last, .keep_every_steps = options.keep_every}));
  Pruned pruned{plan.removed, plan.left_alone, freed_bytes(root, plan.removed)};
  std::vector<std::string> notes;
  ckpt::CleanUp done;
  if (options.yes) {
    done = ckpt::prune(files, root, plan, &notes);
    pruned.bytes -= freed_bytes(root, plan.removed);  // of what could not be removed
    pruned.removed = done.removed;
    pruned.left_alone.insert(pruned.left_alone.end(), done.left.begin(), done.left.end());
  }
  for (const std::string& note : notes)
    context.err << printable(note) << '\n';
  if (options.output == "json") {
    context.out << plan_as_json(options, plan, pruned) << '\n';
  } else {
    print_plan(options, plan, pruned, context.out);
  }
  if (!done.unremoved) return {};
  return Error{done.unremoved->code, root.string() + ": " + std::to_string(done.left.size()) +
                                         " of " + std::to_string(plan.removed.size()) +
                                         " could not be removed: " + done.left.front()};
}

}  // namespace

void register_ckpt_prune(const Command& parent, CommandContext& context) {
  const Command command = parent.command("prune", "Removes old checkpoints of a stopped job.");
  command.footer(kFooter);
  auto options = std::make_shared<PruneOptions>();
  command.option("PATH", options->path, "A job's checkpoint or run directory").required();
  command.option("--keep-last", options->keep_last, "Number of newest good checkpoints to keep")
      .between(1, 1'000'000)
      .show_default();
  command
      .option("--keep-every", options->keep_every,
              "Also keep checkpoints whose step is a multiple of this number; 0: none")
      .between(0, 1'000'000'000'000)
      .show_default();
  command.flag("--yes", options->yes, "Remove checkpoints instead of only listing them");
  command.flag("--stopped", options->stopped,
               "Confirm that no job writes to PATH (needed if no run directory is above PATH)");
  command.output(options->output);
  command.runs(
      [options, &context] { finish(run_prune(*options, context), "trainyard ckpt", context); });
}

}  // namespace trainyard::cli
