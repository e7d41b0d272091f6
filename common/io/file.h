#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "common/base/error.h"
#include "common/base/unique_fd.h"

namespace trainyard {

/// Reads a whole file of at most `limit_bytes`. Errors: kNotFound, kIo, kInvalidData (too large).
Result<std::string> read_file(const std::filesystem::path& path, int64_t limit_bytes);

/// Writes all of `data` at the descriptor's position, going on after short writes and EINTR.
Status write_all(int fd, std::span<const std::byte> data, std::string_view what);

/// Durable atomic replacement: writes `path`.tmp.<pid>, fsyncs, renames over `path`, fsyncs the
/// directory. After an error the old content of `path` is untouched and the temporary is removed.
Status write_file_atomic(const std::filesystem::path& path, std::string_view data);

/// fsyncs a directory, so that renames and creations in it survive a power loss.
Status sync_directory(const std::filesystem::path& directory);

/// Creates the directory and its parents; success when it is there already.
Status make_directories(const std::filesystem::path& directory);

/// A read-only memory map of a whole regular file; pages are shared between processes.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  /// Valid while this object lives; empty for an empty file.
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// An exclusive advisory lock (flock) on a file, held until destruction or process end.
class FileLock {
 public:
  /// Errors: kConflict when another process holds it (message names its pid if recorded); kIo.
  static Result<FileLock> acquire(const std::filesystem::path& path);

  /// Whether `path` still names the locked file: false once it was removed, renamed or replaced.
  bool is_at(const std::filesystem::path& path) const;

 private:
  explicit FileLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

/// An exclusive advisory lock on a directory, held until destruction or process end: on the
/// directory itself, which nobody can remove from under it unnoticed, and on the file `lock` in it,
/// which names the holder and is all there is where a file system (NFS) locks no directories.
class DirectoryLock {
 public:
  /// Errors: kNotFound when there is no such directory; kConflict when another process holds it
  /// (message names its pid if recorded); kIo.
  static Result<DirectoryLock> acquire(const std::filesystem::path& directory);

  /// Whether `directory` still names the one that is locked, and the lock keeps others out.
  bool is_at(const std::filesystem::path& directory) const;

  static constexpr char kFile[] = "lock";

 private:
  DirectoryLock(UniqueFd directory, FileLock file, bool keeps_alone)
      : directory_(std::move(directory)), file_(std::move(file)), keeps_alone_(keeps_alone) {}
  UniqueFd directory_;
  FileLock file_;
  bool keeps_alone_;  ///< the directory's own lock is held: the file is not needed
};

}  // namespace trainyard
