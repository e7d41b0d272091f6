#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/lineage.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/state_store.h"

namespace trainyard::checkpoint {

/// How much is checked when a checkpoint is opened. What read() returns is always verified.
enum class Verify : uint8_t {
  kManifest,  ///< the manifest, and that every shard is there with its recorded size
  kAll,       ///< every chunk of every shard and every shard's SHA-256 as well
};

/// One thing wrong with a checkpoint.
struct Damage {
  std::string file;    ///< within the checkpoint's directory
  int64_t chunk = -1;  ///< index of the chunk; -1: the file as a whole
  std::string message;
};

/// Reads one checkpoint, whatever layout wrote it. Used by one thread at a time.
/// Memory: one chunk a shard that is read piece by piece. Holds at most 64 files open, however many
/// shards there are.
class CheckpointReader final : public StateStore {
 public:
  /// `directory` is the checkpoint's own (".../g3-step-0000000100"). `files` must outlive the
  /// reader. Errors: kNotFound (no manifest), kInvalidData naming file, chunk and what was wrong,
  /// kIo.
  static Result<std::unique_ptr<CheckpointReader>> open(FileSystem& files,
                                                        const std::filesystem::path& directory,
                                                        Verify verify);
  ~CheckpointReader() override;

  std::string name() const override { return directory_.filename().string(); }
  std::string place() const override { return directory_.string(); }
  const Manifest& manifest() const override { return manifest_; }
  /// The manifest's own checksum.
  const std::string& checksum() const { return checksum_; }
  const std::filesystem::path& directory() const { return directory_; }

  /// Puts the rectangle `where` of a tensor into `out` (row-major, the stored dtype), assembled
  /// from any slices; every chunk that is read is verified. Errors: kNotFound (no such tensor),
  /// kInvalidData (outside the tensor, `out` of another size, or damage: names file and chunk),
  /// kIo.
  Status read(std::string_view name, TensorKind kind, const Rectangle& where,
              std::span<std::byte> out);
  /// The same of a float32 tensor, or (second form) the whole of one. Errors: as read();
  /// kInvalidData for another dtype or size.
  Status read(std::string_view name, TensorKind kind, const Rectangle& where,
              std::span<float> out) override;
  Status read_all(std::string_view name, TensorKind kind, std::span<float> out);

  /// A float32 tensor front to back, in pieces of at most 16 MiB. Errors: as read(); those of
  /// `use`.
  Status read_pieces(std::string_view name, TensorKind kind,
                     const std::function<Status(std::span<const float> piece)>& use);

  /// Why read() could not have bytes of a shard, the first time that this was so: damage or I/O,
  /// in contrast to a wrong question. nullopt: it never was.
  const std::optional<Error>& shard_error() const { return shard_error_; }

  /// Reads one chunk of one shard, both by index, and compares its hash. Errors: kInvalidData for
  /// damage, or when there is no such chunk; kIo.
  Status verify_chunk(int64_t shard_index, int64_t chunk);
  /// Reads every byte. Returns everything found wrong; empty: the checkpoint is good.
  std::vector<Damage> verify_all();

 private:
  class OpenFiles;
  class Shard;
  CheckpointReader(FileSystem& files, std::filesystem::path directory, Manifest manifest,
                   std::string checksum);
  Shard& shard(int64_t index);

  std::filesystem::path directory_;
  Manifest manifest_;
  std::string checksum_;
  std::unique_ptr<OpenFiles> open_files_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::optional<Error> shard_error_;
};

/// Opens checkpoint `id` of a job's directory, whose lineage `records` are. What its manifest says
/// of its job and of its history must be what they say. Errors: as CheckpointReader::open;
/// kConflict where it is another job's or another history's: names both and what to do.
Result<std::unique_ptr<CheckpointReader>> open_own(FileSystem& files,
                                                   const std::filesystem::path& root,
                                                   const CheckpointId& id,
                                                   const LineageRecords& records, Verify verify);

/// Whether a checkpoint is of the job and the history that the directory's `records` are of.
/// Errors: kConflict, see open_own.
Status check_own(const Manifest& manifest, const LineageRecords& records);

/// What a look at the newest checkpoints of a history found.
struct NewestChecked {
  int64_t good_steps = 0;             ///< steps found good; the same step under two names is one
  std::vector<CheckpointId> damaged;  ///< on the way there; also those of another job
  std::vector<std::string> notes;     ///< one line for each of them
  std::optional<Error> unread;        ///< why the first that counts as good could not be read
};

/// Opens `newest_first` one after another until `wanted` steps are found good. One that cannot be
/// read for another reason than damage counts as good: nobody may conclude from a disk's bad moment
/// that a checkpoint is worth nothing.
NewestChecked check_newest(FileSystem& files, const std::filesystem::path& root,
                           const LineageRecords& records,
                           std::span<const CheckpointId> newest_first, int64_t wanted,
                           Verify verify);

/// The newest good checkpoint of `generation`'s history below `root`: candidates are tried newest
/// first, each one rejected adds a line to `notes` (may be null) that names file and fault. With
/// `generation` nullopt the newest recorded generation is taken. For tools and for sampling; a
/// training run goes through start_generation (generation.h).
/// Errors: kNotFound when there is no candidate at all, kInvalidData when none of them is good.
Result<std::unique_ptr<CheckpointReader>> open_newest_good(FileSystem& files,
                                                           const std::filesystem::path& root,
                                                           std::optional<int64_t> generation,
                                                           Verify verify,
                                                           std::vector<std::string>* notes);

/// The same of the newest recorded generation, but what is good is found by using it, so that no
/// byte is read twice: `use` reads what it wants, and where a shard fails it (shard_error) the
/// checkpoint before is tried with another call. Errors: besides, those of `use` that are not the
/// shards' fault.
Result<std::unique_ptr<CheckpointReader>> read_newest_good(
    FileSystem& files, const std::filesystem::path& root,
    const std::function<Status(CheckpointReader&)>& use, std::vector<std::string>* notes);

}  // namespace trainyard::checkpoint
