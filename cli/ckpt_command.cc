#include <algorithm>
#include <iomanip>
#include <memory>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include "cli/checkpoint_path.h"
#include "cli/ckpt_subcommands.h"
#include "cli/commands.h"
#include "cli/registry.h"
#include "common/text/json_writer.h"
#include "common/text/quantity.h"
#include "common/worker_contract.h"
#include "worker/checkpoint/state_hash.h"
#include "worker/checkpoint/store.h"

namespace trainyard::cli {
namespace {

namespace ckpt = checkpoint;

constexpr char kFooter[] = R"(Examples:
  trainyard ckpt ls runs/gpt2
  trainyard ckpt ls --verify runs/gpt2/pvc/ckpt/gpt2
  trainyard ckpt show --hash runs/gpt2/pvc/ckpt/gpt2/latest
  trainyard ckpt verify -o json runs/gpt2
  trainyard ckpt diff runs/a runs/b
  trainyard ckpt prune --keep-last 2 runs/gpt2

PATH is the directory of one checkpoint, a job's checkpoint directory or a run directory. If PATH is
one checkpoint, damage in it is an error. Otherwise `show`, `hash` and `diff` read the newest good
checkpoint and list skipped checkpoints on standard error. `show` checks the manifest and the size
of every shard. `show --hash`, `hash` and `diff` read the tensors, so they also find flipped bits.

`ls` checks manifests and the size of every shard. With --verify, it reads every byte, as `verify`
does. The state "current" then also means that the checkpoint is undamaged.

Exit codes: 0 done; 1 `diff` found a difference; 65 a checkpoint is damaged or missing; 75 input or
output failed.)";

constexpr int kIndent = 2;
constexpr char kDamaged[] = "damaged";

struct CkptOptions {
  std::string path;
  std::string output = "text";
  bool hash = false;
  bool verify = false;
};

using Run = Status (*)(const CkptOptions&, CommandContext&);

/// What `ls` says of one directory.
struct Listed {
  ckpt::CheckpointId id;
  std::string state;  // current, superseded, unrecorded, foreign, incomplete, damaged
  std::string message;
  bool unread = false;  ///< damaged or not: the disk does not let it be read
  std::optional<ckpt::Manifest> manifest;
};

int64_t bytes_of(const ckpt::Manifest& manifest) {
  int64_t bytes = 0;
  for (const ckpt::ShardRecord& shard : manifest.shards)
    bytes += shard.bytes;
  return bytes;
}

/// Whether what was a checkpoint is none any more: a running job cleans up, and reading takes long.
bool removed_meanwhile(ckpt::FileSystem& files, const std::filesystem::path& path) {
  const auto names = files.list(path);
  if (!names) return names.error().code == ErrorCode::kNotFound;
  return !std::binary_search(names->begin(), names->end(), std::string(ckpt::kManifestFile));
}

/// Of a checkpoint with a manifest; nullopt: it was removed meanwhile.
std::optional<Listed> listed_committed(ckpt::FileSystem& files, const std::filesystem::path& root,
                                       const ckpt::CheckpointId& id, ckpt::Verify verify,
                                       const ckpt::LineageRecords& records,
                                       const ckpt::Lineage& lineage) {
  const std::filesystem::path path = root / ckpt::directory_name(id);
  const auto reader = ckpt::CheckpointReader::open(files, path, verify);
  if (!reader) {
    if (removed_meanwhile(files, path)) return std::nullopt;
    const bool unread = reader.error().code == ErrorCode::kIo;
    return Listed{id, kDamaged, reader.error().message, unread, std::nullopt};
  }
  const ckpt::Manifest& manifest = (*reader)->manifest();
  if (const Status own = ckpt::check_own(manifest, records); !own) {
    return Listed{id, "foreign", own.error().message, false, manifest};
  }
  if (!records.contains(id.generation)) {
    return Listed{
        id, "unrecorded",
        "found no readable " + std::string(ckpt::kLineageDirectory) + "/" +
            std::to_string(id.generation) +
            ".json; restore it from a copy, otherwise the run does not use this checkpoint",
        false, manifest};
  }
  return Listed{id, lineage.accepts(id) ? "current" : "superseded", "", false, manifest};
}

Result<std::vector<Listed>> list_checkpoints(ckpt::FileSystem& files,
                                             const std::filesystem::path& root,
                                             ckpt::Verify verify) {
  TRAINYARD_TRY(files.list(root));  // a missing directory is an error here
  TRAINYARD_ASSIGN(const ckpt::StoredLineage stored, ckpt::load_lineage(files, root));
  TRAINYARD_ASSIGN(const auto found, ckpt::find_checkpoints(files, root));
  ckpt::Lineage lineage;
  if (!stored.records.empty()) {
    TRAINYARD_ASSIGN(lineage, ckpt::Lineage::of(stored.records.rbegin()->first, stored.records));
  }
  std::vector<Listed> listed;
  for (const ckpt::FoundDirectory& directory : found) {
    std::optional<Listed> one = Listed{directory.id, "incomplete", "", false, std::nullopt};
    if (directory.committed) {
      one = listed_committed(files, root, directory.id, verify, stored.records, lineage);
    }
    if (one) listed.push_back(*std::move(one));
  }
  return listed;
}

void print_listed(const std::vector<Listed>& listed, std::ostream& out) {
  out << std::left << std::setw(22) << "CHECKPOINT" << std::right << std::setw(10) << "STEP"
      << std::setw(12) << "SAMPLES" << std::setw(6) << "RANKS" << std::setw(15) << "BYTES"
      << "  STATE\n";
  for (const Listed& one : listed) {
    out << std::left << std::setw(22) << ckpt::directory_name(one.id) << std::right << std::setw(10)
        << one.id.step;
    if (one.manifest) {
      out << std::setw(12) << one.manifest->samples_consumed << std::setw(6)
          << one.manifest->shards.size() << std::setw(15) << bytes_of(*one.manifest);
    } else {
      out << std::setw(12) << "-" << std::setw(6) << "-" << std::setw(15) << "-";
    }
    out << "  " << one.state << (one.message.empty() ? "" : ": " + printable(one.message)) << '\n';
  }
}

std::string listed_as_json(const std::vector<Listed>& listed) {
  text::JsonWriter json(kIndent);
  json.begin_array();
  for (const Listed& one : listed) {
    json.begin_object();
    json.key("name");
    json.string(ckpt::directory_name(one.id));
    json.key("generation");
    json.integer(one.id.generation);
    json.key("step");
    json.integer(one.id.step);
    json.key("state");
    json.string(one.state);
    if (one.manifest) {
      json.key("samplesConsumed");
      json.integer(one.manifest->samples_consumed);
      json.key("ranks");
      json.integer(static_cast<int64_t>(one.manifest->shards.size()));
      json.key("bytes");
      json.integer(bytes_of(*one.manifest));
    }
    if (!one.message.empty()) {
      json.key("message");
      json.string(one.message);
    }
    json.end_object();
  }
  json.end_array();
  return json.take();
}

/// kInvalidData that names the damaged ones; kIo where one of them may be good.
Status damage_of(const std::vector<Listed>& listed, const std::filesystem::path& root) {
  int64_t damaged = 0;
  bool unread = false;
  std::string names;
  for (const Listed& one : listed) {
    if (one.state != kDamaged) continue;
    unread |= one.unread;
    names += (damaged++ == 0 ? "" : ", ") + ckpt::directory_name(one.id);
  }
  if (damaged == 0) return {};
  return Error{unread ? ErrorCode::kIo : ErrorCode::kInvalidData,
               root.string() + ": " + std::to_string(damaged) + " of " +
                   std::to_string(listed.size()) +
                   (unread ? " damaged or unreadable: " : " damaged: ") + names};
}

Status run_ls(const CkptOptions& options, CommandContext& context) {
  ckpt::PosixFileSystem files;
  TRAINYARD_ASSIGN(const std::filesystem::path root, checkpoints_at(options.path));
  TRAINYARD_ASSIGN(
      const std::vector<Listed> listed,
      list_checkpoints(files, root, options.verify ? ckpt::Verify::kAll : ckpt::Verify::kManifest));
  if (listed.empty()) {
    return Error{ErrorCode::kNotFound,
                 root.string() +
                     ": no checkpoint here; name a run directory (runs/NAME) or a checkpoint "
                     "directory (the summary of a run prints it)"};
  }
  if (options.output == "json") {
    context.out << listed_as_json(listed) << '\n';
  } else {
    print_listed(listed, context.out);
  }
  return damage_of(listed, root);
}

std::string scalar_text(const ckpt::Scalar& scalar) {
  return std::visit(
      [](const auto& value) -> std::string {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return text::quote_json(value);
        } else if constexpr (std::is_same_v<T, double>) {
          return text::shortest(value);
        } else {
          return std::to_string(value);
        }
      },
      scalar);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t size : shape)
    text += (text.size() > 1 ? "," : "") + std::to_string(size);
  return text + "]";
}

void print_manifest(const ckpt::CheckpointReader& reader, const std::string& hash,
                    std::ostream& out) {
  const ckpt::Manifest& manifest = reader.manifest();
  const auto line = [&](const std::string& name, const std::string& value) {
    out << std::left << std::setw(18) << printable(name) << printable(value) << '\n';
  };
  line("checkpoint", reader.directory().string());
  line("checksum", reader.checksum());
  line("job", manifest.job_uid);
  line("generation", std::to_string(manifest.generation));
  if (manifest.parent_generation) {
    line("parent", std::to_string(*manifest.parent_generation) + ", forked at step " +
                       std::to_string(manifest.fork_step));
  }
  if (manifest.adopted_from) line("adopted from", ckpt::directory_name(manifest.adopted_from->id));
  if (manifest.previous) line("previous", ckpt::directory_name(manifest.previous->id));
  line("step", std::to_string(manifest.step));
  line("samples consumed", std::to_string(manifest.samples_consumed));
  line("written by", text::counted(std::ssize(manifest.shards), "rank") + ", " +
                         std::to_string(bytes_of(manifest)) + " bytes");
  for (const auto& [name, scalar] : manifest.scalars)
    line(name, scalar_text(scalar));
  if (!hash.empty()) line("state hash", hash);
  line("config", manifest.config_json);
  for (const ckpt::TensorRecord& tensor : manifest.tensors) {
    out << "  " << std::left << std::setw(32) << printable(tensor.name) << std::setw(10)
        << ckpt::name_of(tensor.kind) << std::setw(5) << name_of(tensor.dtype)
        << shape_text(tensor.shape) << " in " << tensor.slices.size() << '\n';
  }
}

std::string manifest_as_json(const ckpt::CheckpointReader& reader, const std::string& hash) {
  const ckpt::Manifest& manifest = reader.manifest();
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
  string("path", reader.directory().string());
  string("checksum", reader.checksum());
  string("jobUid", manifest.job_uid);
  integer("generation", manifest.generation);
  if (manifest.parent_generation) integer("parentGeneration", *manifest.parent_generation);
  integer("forkStep", manifest.fork_step);
  integer("step", manifest.step);
  integer("samplesConsumed", manifest.samples_consumed);
  integer("ranks", static_cast<int64_t>(manifest.shards.size()));
  integer("bytes", bytes_of(manifest));
  if (!hash.empty()) string("stateHash", hash);
  json.key("scalars");
  json.begin_object();
  for (const auto& [name, scalar] : manifest.scalars) {
    json.key(name);
    json.raw(scalar_text(scalar));
  }
  json.end_object();
  json.key("config");
  json.raw(manifest.config_json);
  json.key("tensors");
  json.begin_array();
  for (const ckpt::TensorRecord& tensor : manifest.tensors) {
    json.begin_object();
    string("name", tensor.name);
    string("kind", ckpt::name_of(tensor.kind));
    string("dtype", name_of(tensor.dtype));
    json.key("shape");
    json.raw(shape_text(tensor.shape));
    integer("slices", static_cast<int64_t>(tensor.slices.size()));
    json.end_object();
  }
  json.end_array();
  json.end_object();
  return json.take();
}

Status run_show(const CkptOptions& options, CommandContext& context) {
  ckpt::PosixFileSystem files;
  PassedOver passed_over(context.err);
  std::string hash;
  const auto read = [&](ckpt::CheckpointReader& reader) -> Status {
    if (!options.hash) return {};
    TRAINYARD_ASSIGN(const Hash128 found, ckpt::state_hash_of(reader));
    hash = to_hex(found);
    return {};
  };
  TRAINYARD_ASSIGN(const auto reader, read_checkpoint(files, options.path, read, passed_over));
  if (options.output == "json") {
    context.out << manifest_as_json(*reader, hash) << '\n';
  } else {
    print_manifest(*reader, hash, context.out);
  }
  return {};
}

Status run_hash(const CkptOptions& options, CommandContext& context) {
  ckpt::PosixFileSystem files;
  PassedOver passed_over(context.err);
  Hash128 hash;
  const auto read = [&](ckpt::CheckpointReader& reader) -> Status {
    TRAINYARD_ASSIGN(hash, ckpt::state_hash_of(reader));
    return {};
  };
  TRAINYARD_ASSIGN(const auto reader, read_checkpoint(files, options.path, read, passed_over));
  if (options.output == "json") {
    text::JsonWriter json;
    json.begin_object();
    json.key("path");
    json.string(reader->directory().string());
    json.key("step");
    json.integer(reader->manifest().step);
    json.key("stateHash");
    json.string(to_hex(hash));
    json.end_object();
    context.out << json.take() << '\n';
    return {};
  }
  context.out << to_hex(hash) << '\n';
  return {};
}

/// One checkpoint and everything wrong with it.
struct Verified {
  std::string path;
  int64_t bytes = 0;
  std::vector<ckpt::Damage> damages;
};

Verified verify_one(ckpt::FileSystem& files, const std::filesystem::path& path) {
  Verified verified{path.string(), 0, {}};
  const auto reader = ckpt::CheckpointReader::open(files, path, ckpt::Verify::kManifest);
  if (!reader) {
    verified.damages.push_back({ckpt::kManifestFile, -1, reader.error().message});
    return verified;
  }
  verified.bytes = bytes_of((*reader)->manifest());
  verified.damages = (*reader)->verify_all();
  return verified;
}

Result<std::vector<std::filesystem::path>> paths_to_verify(ckpt::FileSystem& files,
                                                           const std::filesystem::path& named) {
  if (is_checkpoint(files, named)) return std::vector{named};
  TRAINYARD_ASSIGN(const std::filesystem::path path, checkpoints_at(named));
  TRAINYARD_TRY(files.list(path));
  TRAINYARD_ASSIGN(const auto found, ckpt::find_checkpoints(files, path));
  std::vector<std::filesystem::path> paths;
  for (const ckpt::FoundDirectory& directory : found) {
    // One without a manifest is being written or was given up; no reader takes it for a checkpoint.
    if (directory.committed) paths.push_back(path / ckpt::directory_name(directory.id));
  }
  if (paths.empty()) return Error{ErrorCode::kNotFound, path.string() + ": no checkpoint here"};
  return paths;
}

std::string verified_as_json(const std::vector<Verified>& results) {
  text::JsonWriter json(kIndent);
  json.begin_array();
  for (const Verified& verified : results) {
    json.begin_object();
    json.key("path");
    json.string(verified.path);
    json.key("good");
    json.boolean(verified.damages.empty());
    json.key("bytes");
    json.integer(verified.bytes);
    json.key("damages");
    json.begin_array();
    for (const ckpt::Damage& damage : verified.damages) {
      json.begin_object();
      json.key("file");
      json.string(damage.file);
      if (damage.chunk >= 0) {
        json.key("chunk");
        json.integer(damage.chunk);
      }
      json.key("message");
      json.string(damage.message);
      json.end_object();
    }
    json.end_array();
    json.end_object();
  }
  json.end_array();
  return json.take();
}

Status run_verify(const CkptOptions& options, CommandContext& context) {
  ckpt::PosixFileSystem files;
  TRAINYARD_ASSIGN(const auto paths, paths_to_verify(files, options.path));
  std::vector<Verified> results;
  for (const std::filesystem::path& path : paths) {
    Verified verified = verify_one(files, path);
    const bool named = path == options.path;
    if (!verified.damages.empty() && !named && removed_meanwhile(files, path)) continue;
    results.push_back(std::move(verified));
  }
  if (results.empty()) {
    return Error{ErrorCode::kNotFound,
                 options.path + ": its checkpoints were removed during the check"};
  }
  for (const Verified& verified : results) {
    if (!verified.damages.empty()) context.exit_code = contract::kExitBadData;
    if (options.output == "json") continue;
    if (verified.damages.empty()) {
      context.out << printable(verified.path) << ": good, " << verified.bytes << " bytes\n";
    }
    for (const ckpt::Damage& damage : verified.damages) {
      context.out << printable(verified.path + ": " + damage.message) << '\n';
    }
  }
  if (options.output == "json") context.out << verified_as_json(results) << '\n';
  return {};
}

void add_command(const Command& parent, CommandContext& context, const char* name, const char* what,
                 const char* path_help, bool with_output, Run run) {
  const Command command = parent.command(name, what);
  auto options = std::make_shared<CkptOptions>();
  command.option("PATH", options->path, path_help).required();
  if (with_output) {
    command.output(options->output);
  }
  if (run == run_ls) {
    command.flag("--verify", options->verify, "Read every byte, to find flipped bits as well");
  }
  if (run == run_show) {
    command.flag("--hash", options->hash, "Also compute the state hash (reads every byte)");
  }
  command.runs(
      [options, run, &context] { finish(run(*options, context), "trainyard ckpt", context); });
}

}  // namespace

void register_ckpt(const Command& app, CommandContext& context) {
  const Command command =
      app.command("ckpt", "Lists, shows, verifies, compares and removes checkpoints.");
  command.require_command();
  command.footer(kFooter);
  constexpr char kJobPath[] = "A job's checkpoint or run directory";
  constexpr char kEitherPath[] =
      "A checkpoint, or a job's checkpoint or run directory (its newest good checkpoint)";
  constexpr char kAllPath[] =
      "A checkpoint, or a job's checkpoint or run directory (all its checkpoints)";
  add_command(command, context, "ls", "Lists checkpoints.", kJobPath, true, run_ls);
  add_command(command, context, "show", "Shows the contents of a checkpoint.", kEitherPath, true,
              run_show);
  add_command(command, context, "hash", "Prints a checkpoint's state hash.", kEitherPath, true,
              run_hash);
  add_command(command, context, "verify", "Reads every byte and reports damage.", kAllPath, true,
              run_verify);
  register_ckpt_diff(command, context);
  register_ckpt_prune(command, context);
}

}  // namespace trainyard::cli
