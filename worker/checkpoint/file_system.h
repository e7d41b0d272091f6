#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"

namespace trainyard::checkpoint {

/// A file being written from its beginning to its end. Destroying it closes it; what was not synced
/// may be lost by a crash of the machine.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  /// Appends all of `data`. May keep some of it in a buffer of bounded size until sync().
  virtual Status write(std::span<const std::byte> data) = 0;
  /// Everything written so far is on the medium when this succeeds. After an error the content is
  /// undefined: throw the file away (a failed fsync must never be repeated on the same file).
  virtual Status sync() = 0;
};

/// A file being read at any position.
class InputFile {
 public:
  virtual ~InputFile() = default;
  virtual int64_t size() const = 0;
  /// Fills all of `out` from `offset`. Errors: kIo; kInvalidData when the file ends before.
  virtual Status read_at(int64_t offset, std::span<std::byte> out) = 0;
};

/// The one seam between checkpoints and the disk, at about the height of the system calls, so that
/// a test can fail or stop at each of them. Errors: kNotFound (ENOENT), kAlreadyExists (EEXIST,
/// ENOTEMPTY), kIo otherwise, always with the path. Implementations are thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// A new file; kAlreadyExists when the name is taken. Past the page cache where that works.
  virtual Result<std::unique_ptr<OutputFile>> create(const std::filesystem::path& path) = 0;
  virtual Result<std::unique_ptr<InputFile>> open(const std::filesystem::path& path) = 0;
  /// Success when the directory is there already. The parent must exist.
  virtual Status make_directory(const std::filesystem::path& path) = 0;
  virtual Status rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// A second name for a file; kAlreadyExists when `to` is taken; kUnavailable where the file
  /// system has no hard links.
  virtual Status link(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// A symbolic link; kAlreadyExists when the name is taken; kUnavailable where the file system has
  /// none.
  virtual Status symlink(const std::filesystem::path& target,
                         const std::filesystem::path& path) = 0;
  /// Where a symbolic link points.
  virtual Result<std::string> read_link(const std::filesystem::path& path) = 0;
  /// Whether `path` itself is a directory; a link to one is none. False where there is nothing.
  virtual Result<bool> is_directory(const std::filesystem::path& path) = 0;
  /// Success when there is no such file.
  virtual Status remove_file(const std::filesystem::path& path) = 0;
  /// Success when there is no such directory; kAlreadyExists when it is not empty.
  virtual Status remove_directory(const std::filesystem::path& path) = 0;
  /// Creations, renames and removals in the directory survive a crash of the machine.
  virtual Status sync_directory(const std::filesystem::path& path) = 0;
  /// Names in a directory without "." and "..", sorted. kNotFound when there is no such directory.
  virtual Result<std::vector<std::string>> list(const std::filesystem::path& path) = 0;
};

/// Whether files are written past the page cache (O_DIRECT).
enum class DirectIo : uint8_t {
  kAuto,  ///< where the file system accepts it
  kOff,
};

/// The operating system's files.
class PosixFileSystem final : public FileSystem {
 public:
  explicit PosixFileSystem(DirectIo direct = DirectIo::kAuto) : direct_(direct) {}
  Result<std::unique_ptr<OutputFile>> create(const std::filesystem::path& path) override;
  Result<std::unique_ptr<InputFile>> open(const std::filesystem::path& path) override;
  Status make_directory(const std::filesystem::path& path) override;
  Status rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  Status link(const std::filesystem::path& from, const std::filesystem::path& to) override;
  Status symlink(const std::filesystem::path& target, const std::filesystem::path& path) override;
  Result<std::string> read_link(const std::filesystem::path& path) override;
  Result<bool> is_directory(const std::filesystem::path& path) override;
  Status remove_file(const std::filesystem::path& path) override;
  Status remove_directory(const std::filesystem::path& path) override;
  Status sync_directory(const std::filesystem::path& path) override;
  Result<std::vector<std::string>> list(const std::filesystem::path& path) override;

 private:
  DirectIo direct_;
};

/// Reads a whole file of at most `limit_bytes`. Errors: kInvalidData when it is larger.
Result<std::string> read_text(FileSystem& files, const std::filesystem::path& path,
                              int64_t limit_bytes);

/// Creates `path` with its parents, durably.
Status make_directories(FileSystem& files, const std::filesystem::path& path);

/// Writes a new file and syncs it (not its directory). kAlreadyExists when the name is taken.
Status write_new_file(FileSystem& files, const std::filesystem::path& path, std::string_view text);

/// Writes `path` durably and atomically, replacing what is there: a new temporary, sync, rename,
/// sync of the directory. `temporary_suffix` keeps concurrent writers apart.
Status replace_file(FileSystem& files, const std::filesystem::path& path, std::string_view text,
                    std::string_view temporary_suffix);

}  // namespace trainyard::checkpoint
