#include "worker/checkpoint/reader.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <set>

#include "common/base/check.h"
#include "common/hash/hash.h"
#include "worker/checkpoint/store.h"

namespace trainyard::checkpoint {

/// The shard files that are open: those used last, and no more than kOpenFilesMax of them, because
/// there may be more shards than files that a process may open.
class CheckpointReader::OpenFiles {
 public:
  OpenFiles(FileSystem& files, const std::filesystem::path& directory, const Manifest& manifest)
      : files_(files), directory_(directory), manifest_(manifest) {}

  /// The file of one shard, valid until the next call. Each time that it is opened it must have its
  /// recorded size; that its bytes are still the same ones the chunks' hashes tell.
  Result<InputFile*> of(int64_t shard) {
    const auto found = std::find_if(open_.begin(), open_.end(),
                                    [&](const Open& open) { return open.shard == shard; });
    if (found != open_.end()) {
      open_.splice(open_.begin(), open_, found);
      return open_.front().file.get();
    }
    const ShardRecord& record = manifest_.shards[static_cast<size_t>(shard)];
    const std::string name = shard_file_name(shard, static_cast<int64_t>(manifest_.shards.size()));
    if (open_.size() >= kOpenFilesMax) open_.pop_back();
    TRAINYARD_ASSIGN(std::unique_ptr<InputFile> file, files_.open(directory_ / name));
    if (file->size() != record.bytes) {
      return Error{ErrorCode::kInvalidData, name + ": has " + std::to_string(file->size()) +
                                                " bytes, the manifest says " +
                                                std::to_string(record.bytes)};
    }
    open_.push_front({shard, std::move(file)});
    return open_.front().file.get();
  }

  void close(int64_t shard) {
    open_.remove_if([&](const Open& open) { return open.shard == shard; });
  }

 private:
  // Ranks that read beside each other, and two checkpoints that are compared, stay far below the
  // usual limit of 1,024 open files.
  static constexpr size_t kOpenFilesMax = 64;

  struct Open {
    int64_t shard;
    std::unique_ptr<InputFile> file;
  };

  FileSystem& files_;
  const std::filesystem::path& directory_;
  const Manifest& manifest_;
  std::list<Open> open_;  // used last first
};

/// One shard: hands out bytes whose chunks have been verified.
class CheckpointReader::Shard {
 public:
  Shard(OpenFiles& files, int64_t index, const ShardRecord& record, std::string name,
        int64_t chunk_bytes)
      : files_(files),
        index_(index),
        record_(record),
        name_(std::move(name)),
        chunk_bytes_(chunk_bytes) {}

  int64_t chunk_count() const { return static_cast<int64_t>(record_.chunks.size()); }
  int64_t chunk_size(int64_t chunk) const {
    return std::min(chunk_bytes_, record_.bytes - chunk * chunk_bytes_);
  }

  /// Fills `out` from byte `offset`.
  Status read(int64_t offset, std::span<std::byte> out) {
    while (!out.empty()) {
      const int64_t chunk = offset / chunk_bytes_;
      const int64_t in_chunk = offset % chunk_bytes_;
      const auto count = std::min(out.size(), static_cast<size_t>(chunk_size(chunk) - in_chunk));
      if (count == static_cast<size_t>(chunk_size(chunk))) {
        TRAINYARD_TRY(read_chunk(chunk, out.first(count)));  // whole: straight to its place
      } else {
        TRAINYARD_TRY(load(chunk));
        std::memcpy(out.data(), buffer_.data() + in_chunk, count);
      }
      out = out.subspan(count);
      offset += static_cast<int64_t>(count);
    }
    return {};
  }

  /// Reads and verifies one chunk; `out` has its size.
  Status read_chunk(int64_t chunk, std::span<std::byte> out) {
    TRAINYARD_ASSIGN(InputFile * file, files_.of(index_));
    TRAINYARD_TRY(file->read_at(chunk * chunk_bytes_, out));
    const Hash128& wanted = record_.chunks[static_cast<size_t>(chunk)];
    const Hash128 found = xxh3_128(out);
    if (found == wanted) return {};
    return Error{ErrorCode::kInvalidData,
                 name_ + ": chunk " + std::to_string(chunk) + " (bytes " +
                     std::to_string(chunk * chunk_bytes_) + " to " +
                     std::to_string(chunk * chunk_bytes_ + chunk_size(chunk) - 1) + ") hashes to " +
                     to_hex(found) + ", the manifest says " + to_hex(wanted) +
                     "; the file is damaged"};
  }

 private:
  Status load(int64_t chunk) {
    if (chunk == loaded_) return {};
    loaded_ = -1;
    buffer_.resize(static_cast<size_t>(chunk_size(chunk)));
    TRAINYARD_TRY(read_chunk(chunk, buffer_));
    loaded_ = chunk;
    return {};
  }

  OpenFiles& files_;
  int64_t index_;
  const ShardRecord& record_;
  std::string name_;
  int64_t chunk_bytes_;
  int64_t loaded_ = -1;
  std::vector<std::byte> buffer_;
};

CheckpointReader::CheckpointReader(FileSystem& files, std::filesystem::path directory,
                                   Manifest manifest, std::string checksum)
    : directory_(std::move(directory)),
      manifest_(std::move(manifest)),
      checksum_(std::move(checksum)),
      open_files_(std::make_unique<OpenFiles>(files, directory_, manifest_)),
      shards_(manifest_.shards.size()) {}

CheckpointReader::~CheckpointReader() = default;

Result<std::unique_ptr<CheckpointReader>> CheckpointReader::open(
    FileSystem& files, const std::filesystem::path& directory, Verify verify) {
  TRAINYARD_ASSIGN(const std::string text,
                   read_text(files, directory / kManifestFile, kMaxManifestBytes));
  TRAINYARD_ASSIGN(Manifest manifest, decode_manifest(text));
  TRAINYARD_ASSIGN(std::string checksum, manifest_checksum(text));
  const auto named = parse_directory_name(directory.filename().string());
  if (named && *named != manifest.id()) {
    return Error{ErrorCode::kInvalidData, std::string(kManifestFile) + ": is the manifest of " +
                                              directory_name(manifest.id()) + ", not of " +
                                              directory_name(*named)};
  }
  std::unique_ptr<CheckpointReader> reader(
      new CheckpointReader(files, directory, std::move(manifest), std::move(checksum)));
  for (size_t i = 0; i < reader->shards_.size(); ++i) {
    TRAINYARD_TRY(reader->open_files_->of(static_cast<int64_t>(i)));
    reader->open_files_->close(static_cast<int64_t>(i));  // opened again when needed
  }
  if (verify == Verify::kAll) {
    const std::vector<Damage> damages = reader->verify_all();
    if (!damages.empty()) return Error{ErrorCode::kInvalidData, damages.front().message};
  }
  return reader;
}

CheckpointReader::Shard& CheckpointReader::shard(int64_t index) {
  std::unique_ptr<Shard>& shard = shards_[static_cast<size_t>(index)];
  if (shard == nullptr) {
    shard = std::make_unique<Shard>(
        *open_files_, index, manifest_.shards[static_cast<size_t>(index)],
        shard_file_name(index, static_cast<int64_t>(shards_.size())), manifest_.chunk_bytes);
  }
  return *shard;
}

Status CheckpointReader::read(std::string_view name, TensorKind kind, const Rectangle& where,
                              std::span<std::byte> out) {
  const std::string what = std::string(name) + " (" + std::string(name_of(kind)) + ")";
  const TensorRecord* tensor = find_tensor(manifest_, name, kind);
  if (tensor == nullptr) {
    return Error{ErrorCode::kNotFound, directory_.filename().string() + " has no tensor " + what};
  }
  const int64_t element_bytes = size_of(tensor->dtype);
  if (!contains(tensor->shape, where) ||
      out.size() != static_cast<size_t>(*checked_volume(where.shape) * element_bytes)) {
    return Error{ErrorCode::kInvalidData,
                 what + ": rectangle " + to_string(where) + " into " + std::to_string(out.size()) +
                     " bytes does not fit a tensor " + to_string(Rectangle{{}, tensor->shape})};
  }
  for (const SliceRecord& slice : tensor->slices) {
    if (!intersection(slice.where, where)) continue;
    Shard& source = shard(slice.shard);
    const Status copied = for_each_run(slice.where, where, [&](const Run& run) {
      return source.read(slice.byte_offset + run.source * element_bytes,
                         out.subspan(static_cast<size_t>(run.destination * element_bytes),
                                     static_cast<size_t>(run.count * element_bytes)));
    });
    if (!copied && !shard_error_) shard_error_ = copied.error();
    TRAINYARD_TRY(copied);
  }
  return {};
}

Status CheckpointReader::read(std::string_view name, TensorKind kind, const Rectangle& where,
                              std::span<float> out) {
  const TensorRecord* tensor = find_tensor(manifest_, name, kind);
  if (tensor != nullptr && tensor->dtype != DType::kFloat32) {
    return Error{ErrorCode::kInvalidData, std::string(name) + " (" + std::string(name_of(kind)) +
                                              ") is " + std::string(name_of(tensor->dtype)) +
                                              ", wanted F32"};
  }
  return read(name, kind, where, std::as_writable_bytes(out));
}

Status CheckpointReader::read_all(std::string_view name, TensorKind kind, std::span<float> out) {
  const TensorRecord* tensor = find_tensor(manifest_, name, kind);
  Rectangle whole;
  if (tensor != nullptr) whole = {std::vector<int64_t>(tensor->shape.size(), 0), tensor->shape};
  return read(name, kind, whole, out);
}

Status CheckpointReader::read_pieces(
    std::string_view name, TensorKind kind,
    const std::function<Status(std::span<const float> piece)>& use) {
  constexpr int64_t kPieceElements = int64_t{4} << 20;
  const TensorRecord* tensor = find_tensor(manifest_, name, kind);
  if (tensor == nullptr) return read(name, kind, {}, std::span<float>());
  const int64_t elements = *checked_volume(tensor->shape);
  std::vector<float> piece;
  for (int64_t begin = 0; begin < elements; begin += kPieceElements) {
    const int64_t end = std::min(begin + kPieceElements, elements);
    for (const layout::Rectangle& slice : layout::rectangles(tensor->shape, {begin, end})) {
      piece.resize(static_cast<size_t>(slice.elements()));
      TRAINYARD_TRY(read(name, kind, slice, piece));
      TRAINYARD_TRY(use(piece));
    }
  }
  return {};
}

Status CheckpointReader::verify_chunk(int64_t shard_index, int64_t chunk) {
  const bool there = shard_index >= 0 && shard_index < static_cast<int64_t>(shards_.size());
  if (!there || chunk < 0 ||
      chunk >=
          static_cast<int64_t>(manifest_.shards[static_cast<size_t>(shard_index)].chunks.size())) {
    return Error{ErrorCode::kInvalidData, "shard " + std::to_string(shard_index) + " chunk " +
                                              std::to_string(chunk) + ": there is none"};
  }
  Shard& source = shard(shard_index);
  std::vector<std::byte> buffer(static_cast<size_t>(source.chunk_size(chunk)));
  return source.read_chunk(chunk, buffer);
}

std::vector<Damage> CheckpointReader::verify_all() {
  std::vector<Damage> damages;
  std::vector<std::byte> buffer;
  for (size_t i = 0; i < shards_.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const std::string name = shard_file_name(index, static_cast<int64_t>(shards_.size()));
    const Result<InputFile*> opened = open_files_->of(index);
    if (!opened) {
      damages.push_back({name, -1, opened.error().message});
      continue;
    }
    Shard& source = shard(index);
    Sha256Stream whole;
    const size_t before = damages.size();
    for (int64_t chunk = 0; chunk < source.chunk_count(); ++chunk) {
      buffer.resize(static_cast<size_t>(source.chunk_size(chunk)));
      const Status status = source.read_chunk(chunk, buffer);
      if (!status) damages.push_back({name, chunk, status.error().message});
      whole.update(buffer);
    }
    const Hash256 found = whole.digest();
    if (damages.size() == before && found != manifest_.shards[i].sha256) {
      damages.push_back({name, -1,
                         name + ": SHA-256 is " + to_hex(found) + ", the manifest says " +
                             to_hex(manifest_.shards[i].sha256)});
    }
    open_files_->close(index);
  }
  return damages;
}

Status check_own(const Manifest& manifest, const LineageRecords& records) {
  if (records.empty()) return {};
  const auto of_generation = records.find(manifest.generation);
  const bool recorded = of_generation != records.end();
  const LineageRecord& record = recorded ? of_generation->second : records.begin()->second;
  constexpr char kWhatToDo[] =
      ": it never becomes this run's state; move it away (trainyard export and engine.model.import "
      "begin a job with its model)";
  if (manifest.job_uid != record.job_uid) {
    return Error{ErrorCode::kConflict, std::string(kManifestFile) +
                                           ": is of another job: found jobUid " + manifest.job_uid +
                                           ", wanted " + record.job_uid + " as in " +
                                           kLineageDirectory + kWhatToDo};
  }
  const auto history = [](const std::optional<int64_t>& parent, int64_t fork,
                          const std::string& branch) {
    return (parent ? "parent " + std::to_string(*parent) + ", fork step " + std::to_string(fork)
                   : std::string("no parent")) +
           (branch.empty() ? ", no branchId" : ", branchId " + branch);
  };
  if (!recorded ||
      (manifest.parent_generation == record.parent_generation &&
       manifest.fork_step == record.fork_step && manifest.branch_id == record.branch_id)) {
    return {};
  }
  return Error{
      ErrorCode::kConflict,
      std::string(kManifestFile) + ": is of another copy of job " + record.job_uid + ": found " +
          history(manifest.parent_generation, manifest.fork_step, manifest.branch_id) +
          ", wanted " + history(record.parent_generation, record.fork_step, record.branch_id) +
          " as in " + kLineageDirectory + "/" + std::to_string(record.generation) + ".json" +
          kWhatToDo};
}

Result<std::unique_ptr<CheckpointReader>> open_own(FileSystem& files,
                                                   const std::filesystem::path& root,
                                                   const CheckpointId& id,
                                                   const LineageRecords& records, Verify verify) {
  TRAINYARD_ASSIGN(auto reader,
                   CheckpointReader::open(files, root / directory_name(id), Verify::kManifest));
  TRAINYARD_TRY(check_own(reader->manifest(), records));
  if (verify == Verify::kAll) {
    const std::vector<Damage> damages = reader->verify_all();
    if (!damages.empty()) return Error{ErrorCode::kInvalidData, damages.front().message};
  }
  return reader;
}

NewestChecked check_newest(FileSystem& files, const std::filesystem::path& root,
                           const LineageRecords& records,
                           std::span<const CheckpointId> newest_first, int64_t wanted,
                           Verify verify) {
  NewestChecked checked;
  std::set<int64_t> good;
  for (const CheckpointId& id : newest_first) {
    if (static_cast<int64_t>(good.size()) >= wanted) break;
    if (good.contains(id.step)) continue;
    const auto reader = open_own(files, root, id, records, verify);
    const bool foreign = !reader && reader.error().code == ErrorCode::kConflict;
    const bool damaged = !reader && (reader.error().code == ErrorCode::kInvalidData ||
                                     reader.error().code == ErrorCode::kNotFound);
    if (damaged || foreign) {
      checked.damaged.push_back(id);
      checked.notes.push_back(directory_name(id) + (damaged ? ": damaged: " : ": ") +
                              reader.error().message);
    } else {
      good.insert(id.step);
      if (!reader && !checked.unread) {
        checked.unread = reader.error().with_context(directory_name(id));
      }
    }
  }
  checked.good_steps = static_cast<int64_t>(good.size());
  return checked;
}

namespace {

/// Candidates newest first, until one opens and `use` can read what it wants.
Result<std::unique_ptr<CheckpointReader>> newest_good(
    FileSystem& files, const std::filesystem::path& root, std::optional<int64_t> generation,
    Verify verify, const std::function<Status(CheckpointReader&)>& use,
    std::vector<std::string>* notes) {
  TRAINYARD_ASSIGN(const StoredLineage stored, load_lineage(files, root));
  const auto note = [&](const std::string& line) {
    if (notes != nullptr) notes->push_back(line);
  };
  for (const std::string& line : stored.notes)
    note(line);
  if (!generation && !stored.records.empty()) generation = stored.records.rbegin()->first;
  std::vector<CheckpointId> candidates;
  if (generation) {
    TRAINYARD_ASSIGN(const Lineage lineage, Lineage::of(*generation, stored.records));
    TRAINYARD_ASSIGN(const std::vector<FoundDirectory> found, find_checkpoints(files, root));
    candidates = newest_first(found, lineage);
  }
  if (candidates.empty()) {
    const auto found = find_checkpoints(files, root);
    const std::string unrecorded =
        !generation && found && !found->empty() ? directory_name(found->back().id) : "";
    return Error{ErrorCode::kNotFound,
                 root.string() +
                     (unrecorded.empty()
                          ? ": no checkpoint here"
                          : ": no record in lineage/ says which checkpoint is the newest; name one "
                            "itself, such as " +
                                (root / unrecorded).string())};
  }
  std::string last;
  bool unread = false;
  for (const CheckpointId& id : candidates) {
    auto reader = open_own(files, root, id, stored.records, verify);
    const Status used = reader ? use(**reader) : Status(reader.error());
    if (used) return reader;
    if (reader && !(*reader)->shard_error()) return used.error();
    const Error& cause = reader ? *(*reader)->shard_error() : used.error();
    unread |= cause.code == ErrorCode::kIo;
    last = directory_name(id) + ": " + cause.message;
    note(last);
  }
  // What a disk does not let us read may be good.
  return Error{unread ? ErrorCode::kIo : ErrorCode::kInvalidData,
               root.string() + ": none of " + std::to_string(candidates.size()) +
                   (unread ? " checkpoints can be read" : " checkpoints is good") +
                   "; the last one tried was " + last};
}

}  // namespace

Result<std::unique_ptr<CheckpointReader>> open_newest_good(FileSystem& files,
                                                           const std::filesystem::path& root,
                                                           std::optional<int64_t> generation,
                                                           Verify verify,
                                                           std::vector<std::string>* notes) {
  return newest_good(
      files, root, generation, verify, [](CheckpointReader&) { return Status(); }, notes);
}

Result<std::unique_ptr<CheckpointReader>> read_newest_good(
    FileSystem& files, const std::filesystem::path& root,
    const std::function<Status(CheckpointReader&)>& use, std::vector<std::string>* notes) {
  return newest_good(files, root, std::nullopt, Verify::kManifest, use, notes);
}

}  // namespace trainyard::checkpoint
