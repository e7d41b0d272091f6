#include "worker/checkpoint/store.h"

#include <algorithm>
#include <random>

#include "worker/checkpoint/reader.h"

namespace trainyard::checkpoint {
namespace {

constexpr int64_t kMaxLineageBytes = 64 << 10;
// How often a directory is read again because it changed meanwhile. A commit with its clean-up
// moves the newest checkpoint from one name to another: a single pass could miss both. Each further
// pass is needed only if yet another commit fell into it.
constexpr int kMaxScans = 16;
constexpr std::string_view kJsonSuffix = ".json";

std::filesystem::path lineage_path(const std::filesystem::path& root, int64_t generation) {
  return root / kLineageDirectory / (std::to_string(generation) + std::string(kJsonSuffix));
}

/// "17.json" -> 17; nullopt for temporaries and foreign files.
std::optional<int64_t> generation_of(std::string_view name) {
  if (!name.ends_with(kJsonSuffix)) return std::nullopt;
  name.remove_suffix(kJsonSuffix.size());
  // The generation's canonical spelling is the one that directory names use.
  const auto id = parse_directory_name("g" + std::string(name) + "-step-0000000000");
  if (!id) return std::nullopt;
  return id->generation;
}

Result<LineageRecord> read_record(FileSystem& files, const std::filesystem::path& root,
                                  int64_t generation) {
  TRAINYARD_ASSIGN(const std::string text,
                   read_text(files, lineage_path(root, generation), kMaxLineageBytes));
  TRAINYARD_ASSIGN(LineageRecord record, decode_lineage(text));
  if (record.generation != generation) {
    return Error{ErrorCode::kInvalidData,
                 "lineage record: says generation " + std::to_string(record.generation)};
  }
  return record;
}

/// A generation's record as any of its manifests repeats it.
std::optional<LineageRecord> record_from_manifests(FileSystem& files,
                                                   const std::filesystem::path& root,
                                                   int64_t generation) {
  const auto found = find_checkpoints(files, root);
  if (!found) return std::nullopt;
  for (const FoundDirectory& directory : *found) {
    if (directory.id.generation != generation || !directory.committed) continue;
    const auto text =
        read_text(files, root / directory_name(directory.id) / kManifestFile, kMaxManifestBytes);
    if (!text) continue;
    const auto manifest = decode_manifest(*text);
    if (!manifest || manifest->generation != generation) continue;
    return LineageRecord{generation, manifest->job_uid, manifest->parent_generation,
                         manifest->fork_step, manifest->branch_id};
  }
  return std::nullopt;
}

/// Follows the name of a record that is written where there are no hard links: whoever makes this
/// file alone may give the record its name.
constexpr std::string_view kClaimSuffix = ".claim";

/// Removes temporaries that older generations left behind when they crashed, and claims that have
/// served; never a younger one's, so that a zombie cannot take its successor's record away before
/// it has its name.
void sweep_lineage_leftovers(FileSystem& files, const std::filesystem::path& directory,
                             int64_t own) {
  const auto names = files.list(directory);
  if (!names) return;
  for (const std::string& name : *names) {
    const size_t suffix = name.find(kJsonSuffix);
    if (suffix == std::string::npos) continue;
    const std::string record = name.substr(0, suffix + kJsonSuffix.size());
    const std::string_view rest = std::string_view(name).substr(record.size());
    // Without the record a claim still keeps a second process of that generation off.
    const bool served =
        rest == kClaimSuffix && std::binary_search(names->begin(), names->end(), record);
    if (!served && !rest.starts_with(".tmp.")) continue;
    const auto generation = generation_of(record);
    if (generation && *generation < own) (void)files.remove_file(directory / name);
  }
}

/// Gives a complete file its name where there are no hard links: a rename alone would replace the
/// record of another process of the same generation. Errors: kAlreadyExists.
Status claim_and_rename(FileSystem& files, const std::filesystem::path& temporary,
                        const std::filesystem::path& path) {
  TRAINYARD_TRY(write_new_file(files, path.string() + std::string(kClaimSuffix), ""));
  TRAINYARD_ASSIGN(const auto names, files.list(path.parent_path()));
  if (std::binary_search(names.begin(), names.end(), path.filename().string())) {
    return Error{ErrorCode::kAlreadyExists, path.string() + " exists"};
  }
  return files.rename(temporary, path);
}

/// Of kLatestLink, before it is moved into place; the generation behind it.
constexpr std::string_view kLatestTemporary = "latest.tmp.g";

/// What older generations, which were killed while they moved `latest`, have left.
void sweep_latest_temporaries(FileSystem& files, const std::filesystem::path& root, int64_t own) {
  const auto names = files.list(root);
  if (!names) return;
  for (const std::string& name : *names) {
    if (!name.starts_with(kLatestTemporary)) continue;
    const auto generation =
        generation_of(name.substr(kLatestTemporary.size()) + std::string(kJsonSuffix));
    if (generation && *generation < own) (void)files.remove_file(root / name);
  }
}

/// The checkpoint directories' names, ascending.
Result<std::vector<CheckpointId>> checkpoint_names(FileSystem& files,
                                                   const std::filesystem::path& root) {
  std::vector<CheckpointId> ids;
  const auto names = files.list(root);
  if (!names) {
    if (names.error().code == ErrorCode::kNotFound) return ids;
    return names.error();
  }
  for (const std::string& name : *names) {
    if (const auto id = parse_directory_name(name)) ids.push_back(*id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

/// A checkpoint that cannot be used must not take the place of one that can among those kept. It is
/// left where it is: somebody may want to look.
void leave_damaged_out(FileSystem& files, const std::filesystem::path& root,
                       const LineageRecords& records, const Lineage& lineage, int64_t keep_last,
                       std::vector<FoundDirectory>& found) {
  const NewestChecked checked = check_newest(files, root, records, newest_first(found, lineage),
                                             keep_last, Verify::kManifest);
  std::erase_if(found, [&](const FoundDirectory& directory) {
    return std::find(checked.damaged.begin(), checked.damaged.end(), directory.id) !=
           checked.damaged.end();
  });
}

/// The files of a checkpoint's directory; nullopt: it does not exist. Errors: kConflict naming a
/// directory in it.
Result<std::optional<std::vector<std::string>>> files_in(FileSystem& files,
                                                         const std::filesystem::path& directory) {
  auto names = files.list(directory);
  if (!names && names.error().code == ErrorCode::kNotFound) return std::nullopt;
  if (!names) return names.error();
  for (const std::string& name : *names) {
    TRAINYARD_ASSIGN(const bool foreign, files.is_directory(directory / name));
    if (!foreign) continue;
    return Error{ErrorCode::kConflict, "stays: found the directory " + name +
                                           " in it, which is not part of a checkpoint; move it "
                                           "away, then the checkpoint can be removed"};
  }
  return *std::move(names);
}

/// Errors: kConflict when a checkpoint is of another job than `records`.
Status check_of_job(FileSystem& files, const std::filesystem::path& root, const CheckpointId& id,
                    const LineageRecords& records) {
  const auto text = read_text(files, root / directory_name(id) / kManifestFile, kMaxManifestBytes);
  // One whose manifest cannot be read says nothing.
  const auto manifest =
      text ? decode_manifest(*text) : Result<Manifest>(Error{ErrorCode::kNotFound, ""});
  return manifest ? check_own(*manifest, records) : Status();
}

/// A directory where the link belongs is moved here, when nothing has this name.
constexpr char kLatestAside[] = "latest-moved-aside";

/// `note`: set when something was moved aside.
Status move_latest(FileSystem& files, const std::filesystem::path& root, const CheckpointId& id,
                   std::string& note) {
  TRAINYARD_ASSIGN(const bool directory, files.is_directory(root / kLatestLink));
  if (directory) {
    TRAINYARD_TRY(files.rename(root / kLatestLink, root / kLatestAside));
    note = std::string(kLatestLink) +
           ": was a directory, not a link (a copy made with links followed?); moved to " +
           (root / kLatestAside).string() + ", which may be removed";
  }
  const std::filesystem::path temporary =
      root / (std::string(kLatestTemporary) + std::to_string(id.generation));
  TRAINYARD_TRY(files.remove_file(temporary));
  TRAINYARD_TRY(files.symlink(directory_name(id), temporary));
  TRAINYARD_TRY(files.rename(temporary, root / kLatestLink));
  return files.sync_directory(root);
}

std::string random_suffix() {
  std::random_device device;
  return ".tmp." + std::to_string((uint64_t{device()} << 32) | device());
}

}  // namespace

Result<StoredLineage> load_lineage(FileSystem& files, const std::filesystem::path& root) {
  StoredLineage stored;
  const auto names = files.list(root / kLineageDirectory);
  if (!names) {
    if (names.error().code == ErrorCode::kNotFound) return stored;
    return names.error();
  }
  for (const std::string& name : *names) {
    const std::optional<int64_t> generation = generation_of(name);
    if (!generation) continue;
    stored.recorded.insert(*generation);
    auto record = read_record(files, root, *generation);
    if (!record) {
      const auto told = record_from_manifests(files, root, *generation);
      stored.notes.push_back(std::string(kLineageDirectory) + "/" + name + ": " +
                             record.error().message +
                             (told ? "; taken from a manifest of that generation instead"
                                   : "; that generation's checkpoints cannot be used"));
      if (told) stored.records.emplace(*generation, *told);
      continue;
    }
    stored.records.emplace(*generation, *std::move(record));
  }
  return stored;
}

Status write_lineage(FileSystem& files, const std::filesystem::path& root,
                     const LineageRecord& record) {
  const std::filesystem::path directory = root / kLineageDirectory;
  TRAINYARD_TRY(make_directories(files, directory));
  sweep_lineage_leftovers(files, directory, record.generation);
  const std::filesystem::path path = lineage_path(root, record.generation);
  const std::filesystem::path temporary = path.string() + random_suffix();
  const std::string text = encode(record);
  TRAINYARD_TRY(write_new_file(files, temporary, text));
  // A link, not a rename: it refuses a name that is taken, and what it makes visible is complete.
  Status made = files.link(temporary, path);
  if (!made && made.error().code == ErrorCode::kUnavailable) {
    made = claim_and_rename(files, temporary, path);
  }
  (void)files.remove_file(temporary);
  if (!made && made.error().code == ErrorCode::kAlreadyExists) {
    return Error{ErrorCode::kConflict,
                 path.string() + ": generation " + std::to_string(record.generation) +
                     " has already started; a new generation is needed to continue"};
  }
  if (!made) return made;
  return files.sync_directory(directory);
}

Result<std::vector<FoundDirectory>> find_checkpoints(FileSystem& files,
                                                     const std::filesystem::path& root) {
  for (int attempt = 0; attempt < kMaxScans; ++attempt) {
    TRAINYARD_ASSIGN(const std::vector<CheckpointId> before, checkpoint_names(files, root));
    std::vector<FoundDirectory> found;
    for (const CheckpointId& id : before) {
      const auto content = files.list(root / directory_name(id));
      if (!content && content.error().code == ErrorCode::kNotFound) break;  // vanished: look again
      // One that cannot be read counts as committed: whoever opens it says why and goes on.
      found.push_back(
          {id, !content || std::binary_search(content->begin(), content->end(), kManifestFile)});
    }
    TRAINYARD_ASSIGN(const std::vector<CheckpointId> after, checkpoint_names(files, root));
    if (found.size() == before.size() && before == after) return found;
  }
  return Error{ErrorCode::kUnavailable, root.string() + ": changes faster than it can be read"};
}

Status check_removable(FileSystem& files, const std::filesystem::path& root, const CheckpointId& id,
                       const LineageRecords& records) {
  TRAINYARD_TRY(check_of_job(files, root, id, records));
  TRAINYARD_TRY(files_in(files, root / directory_name(id)));
  return {};
}

Status remove_checkpoint(FileSystem& files, const std::filesystem::path& root,
                         const CheckpointId& id) {
  const std::filesystem::path directory = root / directory_name(id);
  TRAINYARD_ASSIGN(const auto names, files_in(files, directory));
  if (!names) return {};
  TRAINYARD_TRY(files.remove_file(directory / kManifestFile));
  TRAINYARD_TRY(files.sync_directory(directory));
  for (const std::string& name : *names)
    TRAINYARD_TRY(files.remove_file(directory / name));
  TRAINYARD_TRY(files.remove_directory(directory));
  return files.sync_directory(root);
}

void remove_unrecorded(FileSystem& files, const std::filesystem::path& root, int64_t own) {
  const auto stored = load_lineage(files, root);
  const auto names = checkpoint_names(files, root);
  if (!stored || !names) return;
  std::vector<CheckpointId> unrecorded;
  for (const CheckpointId& id : *names) {
    if (id.generation < own && !stored->recorded.contains(id.generation)) unrecorded.push_back(id);
  }
  (void)remove_checkpoints(files, root, stored->records, unrecorded);
}

std::optional<CheckpointId> read_latest(FileSystem& files, const std::filesystem::path& root) {
  const auto target = files.read_link(root / kLatestLink);
  if (!target) return std::nullopt;
  return parse_directory_name(*target);
}

std::string point_latest(FileSystem& files, const std::filesystem::path& root,
                         const CheckpointId& id) {
  const std::optional<CheckpointId> now = read_latest(files, root);
  // A younger generation's stays, if it is one: a damaged link may name what never was.
  if (now && now->generation > id.generation && files.list(root / directory_name(*now))) return "";
  sweep_latest_temporaries(files, root, id.generation);
  std::string note;
  const Status moved = move_latest(files, root, id, note);
  if (moved) return note;
  // It must not outlive what it points to.
  const Status removed = files.remove_file(root / kLatestLink);
  // Where there are no symbolic links it would be said at every checkpoint.
  if (removed && moved.error().code == ErrorCode::kUnavailable) return note;
  return std::string(kLatestLink) + ": " +
         (removed
              ? "was removed, for it could not be moved to "
              : "could be neither moved nor removed, and what it names may be old or gone; not ") +
         directory_name(id) + ": " + moved.error().message;
}

CleanUp remove_checkpoints(FileSystem& files, const std::filesystem::path& root,
                           const LineageRecords& records, std::span<const CheckpointId> ids) {
  CleanUp result;
  for (const CheckpointId& id : ids) {
    Status removed = check_of_job(files, root, id, records);
    if (removed) removed = remove_checkpoint(files, root, id);
    if (removed) {
      result.removed.push_back(id);
      continue;
    }
    result.left.push_back(directory_name(id) + ": " + removed.error().message);
    const bool known = removed.error().code == ErrorCode::kConflict;
    if (!known && !result.unremoved) result.unremoved = removed.error();
  }
  return result;
}

Result<CleanUp> apply_retention(FileSystem& files, const std::filesystem::path& root, int64_t own,
                                int64_t committed_step, const RetentionPolicy& policy) {
  TRAINYARD_ASSIGN(const StoredLineage stored, load_lineage(files, root));
  TRAINYARD_ASSIGN(const Lineage lineage, Lineage::of(own, stored.records));
  TRAINYARD_ASSIGN(std::vector<FoundDirectory> found, find_checkpoints(files, root));
  leave_damaged_out(files, root, stored.records, lineage, policy.keep_last, found);
  return remove_checkpoints(
      files, root, stored.records,
      plan_retention(found, own, lineage, stored.recorded, committed_step, policy));
}

}  // namespace trainyard::checkpoint
