#include "worker/checkpoint/adopt.h"

#include <algorithm>
#include <utility>

#include "worker/checkpoint/store.h"

namespace trainyard::checkpoint {
namespace {

constexpr int64_t kCopyBytes = 1 << 20;

Status copy_file(FileSystem& files, const std::filesystem::path& from,
                 const std::filesystem::path& to) {
  TRAINYARD_ASSIGN(const std::unique_ptr<InputFile> input, files.open(from));
  TRAINYARD_ASSIGN(const std::unique_ptr<OutputFile> output, files.create(to));
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(kCopyBytes, input->size())));
  for (int64_t offset = 0; offset < input->size();) {
    const auto count = std::min(static_cast<int64_t>(buffer.size()), input->size() - offset);
    const auto piece = std::span(buffer).first(static_cast<size_t>(count));
    TRAINYARD_TRY(input->read_at(offset, piece));
    TRAINYARD_TRY(output->write(piece));
    offset += count;
  }
  return output->sync();
}

/// The shards of `manifest` under the names that they have in both directories. Returns whether one
/// had to be copied.
Result<bool> link_or_copy(FileSystem& files, const std::filesystem::path& from,
                          const std::filesystem::path& to, const Manifest& manifest) {
  bool copied = false;
  const auto count = static_cast<int64_t>(manifest.shards.size());
  for (int64_t i = 0; i < count; ++i) {
    const std::string name = shard_file_name(i, count);
    Status made = files.link(from / name, to / name);
    if (!made && made.error().code == ErrorCode::kUnavailable) {
      if (!std::exchange(copied, true)) {
        remove_unrecorded(files, to.parent_path(), manifest.generation);
      }
      made = copy_file(files, from / name, to / name);
      if (!made) return made.error().with_context("copy, for want of hard links");
    }
    TRAINYARD_TRY(made);
  }
  return copied;
}

/// A missing shard beside a manifest that is still there is damage, not a clean-up in progress:
/// clean-up takes the manifest first.
Error missing_or_vanished(FileSystem& files, const std::filesystem::path& directory, Error error) {
  const auto names = files.list(directory);
  const bool committed =
      names && std::binary_search(names->begin(), names->end(), std::string(kManifestFile));
  if (error.code == ErrorCode::kNotFound && committed) error.code = ErrorCode::kInvalidData;
  return error;
}

Result<Adopted> take_over(FileSystem& files, const std::filesystem::path& root,
                          const CheckpointReader& source, const LineageRecord& record) {
  Manifest manifest = source.manifest();
  manifest.adopted_from = ManifestRef{manifest.id(), source.checksum()};
  manifest.generation = record.generation;
  manifest.parent_generation = record.parent_generation;
  manifest.fork_step = record.fork_step;
  manifest.branch_id = record.branch_id;
  TRAINYARD_ASSIGN(const std::string text, encode(manifest));

  const std::filesystem::path directory = root / directory_name(manifest.id());
  TRAINYARD_TRY(files.make_directory(directory));
  TRAINYARD_ASSIGN(const bool copied, link_or_copy(files, source.directory(), directory, manifest));
  TRAINYARD_TRY(files.sync_directory(directory));
  TRAINYARD_TRY(replace_file(files, directory / kManifestFile, text, ".tmp"));
  TRAINYARD_TRY(files.sync_directory(root));
  TRAINYARD_ASSIGN(std::string checksum, manifest_checksum(text));
  return Adopted{{manifest.id(), std::move(checksum)}, copied};
}

}  // namespace

Result<std::unique_ptr<CheckpointReader>> open_source(FileSystem& files,
                                                      const std::filesystem::path& root,
                                                      const CheckpointId& id,
                                                      const LineageRecords& records) {
  auto reader = open_own(files, root, id, records, Verify::kManifest);
  if (!reader) return missing_or_vanished(files, root / directory_name(id), reader.error());
  return reader;
}

Result<Adopted> adopt(FileSystem& files, const std::filesystem::path& root,
                      const CheckpointReader& source, const LineageRecord& record) {
  const CheckpointId own{record.generation, source.manifest().step};
  TRAINYARD_TRY(remove_checkpoint(files, root, own));
  Result<Adopted> taken = take_over(files, root, source, record);
  if (!taken) {
    (void)remove_checkpoint(files, root, own);
    return missing_or_vanished(files, source.directory(), taken.error());
  }
  return taken;
}

}  // namespace trainyard::checkpoint
