#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/unique_fd.h"
#include "common/io/file.h"
#include "worker/checkpoint/file_system.h"

namespace trainyard::checkpoint {
namespace {

// Alignment that every Linux block device and file system accepts for O_DIRECT (the largest logical
// block size in use is 4 KiB; statx(STATX_DIOALIGN) tells more exactly, but only from Linux 6.1).
constexpr size_t kAlignment = 4096;
// One write call: large enough to keep an NVMe queue busy, small enough to stay in the L2 cache
// between hashing and writing.
constexpr size_t kBufferBytes = 1 << 20;

Error path_error(std::string_view call, const std::filesystem::path& path, int error_number) {
  Error error = io_error(std::string(call) + " " + path.string(), error_number);
  if (error_number == ENOENT) error.code = ErrorCode::kNotFound;
  // A file where a directory is wanted: no other attempt will find one.
  if (error_number == ENOTDIR) error.code = ErrorCode::kInvalidData;
  if (error_number == EEXIST || error_number == ENOTEMPTY) error.code = ErrorCode::kAlreadyExists;
  return error;
}

/// The error of a call that makes a link; kUnavailable where the file system has none of the kind,
/// cannot make another of this file, or not from one directory to the other.
Error link_error(std::string_view call, const std::filesystem::path& path, int error_number) {
  Error error = path_error(call, path, error_number);
  for (const int refused : {EPERM, EOPNOTSUPP, ENOSYS, EMLINK, EXDEV}) {
    if (error_number == refused) error.code = ErrorCode::kUnavailable;
  }
  return error;
}

using Buffer = std::unique_ptr<std::byte, decltype(&std::free)>;

/// Writes whole blocks past the page cache, from where they are if that is aligned, otherwise by
/// way of one aligned buffer; the tail, and everything where the file system refuses O_DIRECT, goes
/// through the cache.
class PosixOutputFile final : public OutputFile {
 public:
  /// `buffer`: kBufferBytes at a multiple of kAlignment.
  PosixOutputFile(UniqueFd fd, bool direct, std::filesystem::path path, Buffer buffer)
      : fd_(std::move(fd)), direct_(direct), path_(std::move(path)), buffer_(std::move(buffer)) {}

  Status write(std::span<const std::byte> data) override {
    while (!data.empty()) {
      const size_t in_place = used_ == 0 ? writable_in_place(data) : 0;
      if (in_place > 0) {
        TRAINYARD_TRY(write_out(data.first(in_place)));
        data = data.subspan(in_place);
        continue;
      }
      const size_t count = std::min(data.size(), kBufferBytes - used_);
      std::memcpy(buffer_.get() + used_, data.data(), count);
      used_ += count;
      data = data.subspan(count);
      if (used_ == kBufferBytes) TRAINYARD_TRY(flush());
    }
    return {};
  }

  Status sync() override {
    TRAINYARD_TRY(flush());
    if (::fsync(fd_.get()) != 0) return path_error("fsync", path_, errno);
    // Cheap against a file system that loses part of a write and says nothing.
    struct stat info {};
    if (::fstat(fd_.get(), &info) != 0) return path_error("stat", path_, errno);
    if (info.st_size != total_) {
      return Error{ErrorCode::kIo, "write " + path_.string() + ": has " +
                                       std::to_string(info.st_size) + " bytes after " +
                                       std::to_string(total_) + " were written"};
    }
    return {};
  }

 private:
  /// How much of `data` needs no copy: whole blocks, and enough of them.
  size_t writable_in_place(std::span<const std::byte> data) const {
    const bool aligned = reinterpret_cast<uintptr_t>(data.data()) % kAlignment == 0 &&
                         total_ % static_cast<int64_t>(kAlignment) == 0;
    if (!direct_ || !aligned || data.size() < kBufferBytes) return 0;
    return data.size() / kAlignment * kAlignment;
  }

  Status flush() {
    TRAINYARD_TRY(write_out({buffer_.get(), used_}));
    used_ = 0;
    return {};
  }

  Status write_out(std::span<const std::byte> data) {
    while (!data.empty()) {
      if (direct_ && data.size() % kAlignment != 0) TRAINYARD_TRY(leave_direct());
      TRAINYARD_ASSIGN(const size_t written, write_some(data));
      data = data.subspan(written);
    }
    return direct_ ? Status() : start_writeback();
  }

  /// How many bytes were written; 0: it is to be tried again.
  Result<size_t> write_some(std::span<const std::byte> data) {
    const ssize_t n = ::write(fd_.get(), data.data(), data.size());
    if (n < 0 && errno == EINTR) return size_t{0};
    if (n < 0 && errno == EINVAL && direct_) {  // accepted at open, refused at write
      TRAINYARD_TRY(leave_direct());
      return size_t{0};
    }
    if (n < 0) return path_error("write", path_, errno);
    if (n == 0) return Error{ErrorCode::kIo, "write " + path_.string() + ": took nothing"};
    total_ += n;
    return static_cast<size_t>(n);
  }

  /// Through the page cache: starts writing what is new and waits for what was started before, so
  /// that neither the cache nor the last fsync ever has more than a few MiB to do.
  Status start_writeback() {
    constexpr int64_t kWindowBytes = 8 << 20;
    if (total_ - started_ < kWindowBytes) return {};
    if (started_ > awaited_) {
      TRAINYARD_TRY(sync_range(
          awaited_, started_,
          SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER));
    }
    TRAINYARD_TRY(sync_range(started_, total_, SYNC_FILE_RANGE_WRITE));
    awaited_ = started_;
    started_ = total_;
    return {};
  }

  /// An advice where it is not known; what the medium refuses is an error like that of fsync.
  Status sync_range(int64_t begin, int64_t end, unsigned flags) {
    if (::sync_file_range(fd_.get(), begin, end - begin, flags) == 0) return {};
    const int error_number = errno;
    const bool refused = error_number == EIO || error_number == ENOSPC || error_number == EDQUOT;
    return refused ? Status(path_error("sync_file_range", path_, error_number)) : Status();
  }

  Status leave_direct() {
    direct_ = false;
    const int flags = ::fcntl(fd_.get(), F_GETFL);
    if (flags < 0 || ::fcntl(fd_.get(), F_SETFL, flags & ~O_DIRECT) != 0) {
      return path_error("fcntl", path_, errno);
    }
    return {};
  }

  UniqueFd fd_;
  bool direct_;
  std::filesystem::path path_;
  Buffer buffer_;
  size_t used_ = 0;
  int64_t total_ = 0;    // given to the kernel
  int64_t started_ = 0;  // of it, writing to the medium has been started
  int64_t awaited_ = 0;  // and has ended
};

class PosixInputFile final : public InputFile {
 public:
  PosixInputFile(UniqueFd fd, int64_t size, std::filesystem::path path)
      : fd_(std::move(fd)), size_(size), path_(std::move(path)) {}
  int64_t size() const override { return size_; }
  Status read_at(int64_t offset, std::span<std::byte> out) override {
    while (!out.empty()) {
      const ssize_t n = ::pread(fd_.get(), out.data(), out.size(), offset);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return path_error("read", path_, errno);
      if (n == 0) {
        return Error{ErrorCode::kInvalidData, path_.string() + ": ends at byte " +
                                                  std::to_string(offset) + ", " +
                                                  std::to_string(out.size()) + " more wanted"};
      }
      out = out.subspan(static_cast<size_t>(n));
      offset += n;
    }
    return {};
  }

 private:
  UniqueFd fd_;
  int64_t size_;
  std::filesystem::path path_;
};

}  // namespace

Result<std::unique_ptr<OutputFile>> PosixFileSystem::create(const std::filesystem::path& path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  bool direct = direct_ == DirectIo::kAuto;
  int fd = ::open(path.c_str(), kFlags | (direct ? O_DIRECT : 0), 0666);
  if (fd < 0 && errno == EINVAL && direct) {
    // Linux may have created the name before it refused the flag; nobody else had it.
    direct = false;
    ::unlink(path.c_str());
    fd = ::open(path.c_str(), kFlags, 0666);
  }
  if (fd < 0) return path_error("create", path, errno);
  UniqueFd file(fd);
  Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kBufferBytes)), &std::free);
  if (buffer == nullptr) {
    ::unlink(path.c_str());
    return Error{ErrorCode::kUnavailable, "create " + path.string() +
                                              ": no memory for a buffer of " +
                                              std::to_string(kBufferBytes) + " bytes"};
  }
  return std::unique_ptr<OutputFile>(
      std::make_unique<PosixOutputFile>(std::move(file), direct, path, std::move(buffer)));
}

Result<std::unique_ptr<InputFile>> PosixFileSystem::open(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a FIFO must not block
  if (!fd.valid()) return path_error("open", path, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return path_error("stat", path, errno);
  if (!S_ISREG(info.st_mode)) {
    return Error{ErrorCode::kInvalidData, path.string() + ": not a regular file"};
  }
  return std::unique_ptr<InputFile>(
      std::make_unique<PosixInputFile>(std::move(fd), info.st_size, path));
}

Status PosixFileSystem::make_directory(const std::filesystem::path& path) {
  if (::mkdir(path.c_str(), 0777) == 0) return {};
  const int error_number = errno;
  struct stat info {};
  if (error_number == EEXIST && ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return {};
  }
  return path_error("mkdir", path, error_number);
}

Status PosixFileSystem::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return path_error("rename", from, errno);
  return {};
}

Status PosixFileSystem::link(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::link(from.c_str(), to.c_str()) != 0) return link_error("link", from, errno);
  return {};
}

Status PosixFileSystem::symlink(const std::filesystem::path& target,
                                const std::filesystem::path& path) {
  if (::symlink(target.c_str(), path.c_str()) != 0) return link_error("symlink", path, errno);
  return {};
}

Result<std::string> PosixFileSystem::read_link(const std::filesystem::path& path) {
  std::string target(4096, '\0');  // PATH_MAX
  const ssize_t n = ::readlink(path.c_str(), target.data(), target.size());
  if (n < 0) return path_error("readlink", path, errno);
  target.resize(static_cast<size_t>(n));
  return target;
}

Result<bool> PosixFileSystem::is_directory(const std::filesystem::path& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) return S_ISDIR(info.st_mode);
  if (errno == ENOENT) return false;
  return path_error("lstat", path, errno);
}

Status PosixFileSystem::remove_file(const std::filesystem::path& path) {
  // Where a file stands in place of its folder there is nothing of that name either.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT && errno != ENOTDIR) {
    return path_error("unlink", path, errno);
  }
  return {};
}

Status PosixFileSystem::remove_directory(const std::filesystem::path& path) {
  // A file of that name is none of our folders: whoever wants to make one there is told.
  if (::rmdir(path.c_str()) != 0 && errno != ENOENT && errno != ENOTDIR) {
    return path_error("rmdir", path, errno);
  }
  return {};
}

Status PosixFileSystem::sync_directory(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return path_error("open", path, errno);
  if (::fsync(fd.get()) != 0) return path_error("fsync", path, errno);
  return {};
}

Result<std::vector<std::string>> PosixFileSystem::list(const std::filesystem::path& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), &::closedir);
  if (directory == nullptr) return path_error("opendir", path, errno);
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(directory.get());  // NOLINT(concurrency-mt-unsafe): own stream
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return path_error("readdir", path, errno);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace trainyard::checkpoint
