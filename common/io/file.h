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

}  // namespace trainyard
