#include "common/io/file.h"

#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>

#include "common/io/input.h"

namespace trainyard {
namespace {

Error open_error(const std::filesystem::path& path, int error_number) {
  Error error = io_error("open " + path.string(), error_number);
  // ENOTDIR: below a file there is nothing.
  if (error_number == ENOENT || error_number == ENOTDIR) error.code = ErrorCode::kNotFound;
  return error;
}

Result<std::string> read_to_end(const UniqueFd& fd, const std::filesystem::path& path,
                                int64_t limit_bytes) {
  std::string content;
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error("read " + path.string(), errno);
    if (n == 0) return content;
    content.append(buffer, static_cast<size_t>(n));
    if (static_cast<int64_t>(content.size()) > limit_bytes) {
      return Error{ErrorCode::kInvalidData, path.string() + ": larger than the limit of " +
                                                std::to_string(limit_bytes) + " bytes"};
    }
  }
}

/// Opens whatever is there, and says in `info` what it is.
Result<UniqueFd> open_any(const std::filesystem::path& path, struct stat& info) {
  // A pipe that nobody writes to must not block.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return open_error(path, errno);
  if (::fstat(fd.get(), &info) != 0) return io_error("stat " + path.string(), errno);
  return fd;
}

Error not_regular(const std::filesystem::path& path) {
  return {ErrorCode::kInvalidData, path.string() + ": not a regular file"};
}

}  // namespace

Result<UniqueFd> open_regular(const std::filesystem::path& path) {
  struct stat info {};
  TRAINYARD_ASSIGN(UniqueFd fd, open_any(path, info));
  if (S_ISDIR(info.st_mode)) return io_error("read " + path.string(), EISDIR);
  if (!S_ISREG(info.st_mode)) return not_regular(path);
  return fd;
}

Result<std::string> read_file(const std::filesystem::path& path, int64_t limit_bytes) {
  TRAINYARD_ASSIGN(const UniqueFd fd, open_regular(path));
  return read_to_end(fd, path, limit_bytes);
}

Result<std::string> read_input(const std::filesystem::path& path, int64_t limit_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return open_error(path, errno);
  return read_to_end(fd, path, limit_bytes);
}

Status write_all(int fd, std::span<const std::byte> data, std::string_view what) {
  while (!data.empty()) {
    const ssize_t n = ::write(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error("write " + std::string(what), errno);
    data = data.subspan(static_cast<size_t>(n));
  }
  return {};
}

Status write_file_atomic(const std::filesystem::path& path, std::string_view data) {
  const std::filesystem::path temporary = path.string() + ".tmp." + std::to_string(::getpid());
  UniqueFd fd(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd.valid()) return io_error("create " + temporary.string(), errno);
  Status status =
      write_all(fd.get(), std::as_bytes(std::span(data.data(), data.size())), temporary.string());
  if (status && ::fsync(fd.get()) != 0) status = io_error("fsync " + temporary.string(), errno);
  if (status && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = io_error("rename to " + path.string(), errno);
  }
  if (!status) {
    ::unlink(temporary.c_str());
    return status;
  }
  const auto parent = path.parent_path();
  return sync_directory(parent.empty() ? "." : parent);
}

Status sync_directory(const std::filesystem::path& directory) {
  UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return open_error(directory, errno);
  if (::fsync(fd.get()) != 0) return io_error("fsync " + directory.string(), errno);
  return {};
}

Status make_directories(const std::filesystem::path& directory) {
  std::error_code code;
  std::filesystem::create_directories(directory, code);
  if (code) return Error{ErrorCode::kIo, "mkdir " + directory.string() + ": " + code.message()};
  return {};
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  struct stat info {};
  TRAINYARD_ASSIGN(const UniqueFd fd, open_any(path, info));
  if (!S_ISREG(info.st_mode)) return not_regular(path);
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return MappedFile(nullptr, 0);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return io_error("mmap " + path.string(), errno);
  return MappedFile(static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

namespace {

/// How long a process that has just been begun may take to run its program.
constexpr std::chrono::seconds kStartTime{2};

/// Whether a process of this number is written down and there is none. It may have left the lock to
/// a process that it had just begun, which lets go of it when it runs its program.
bool is_gone(const std::string& holder) {
  pid_t pid = 0;
  std::from_chars(holder.data(), holder.data() + holder.size(), pid);
  return pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH;
}

/// flock(LOCK_EX), which waits for nobody who runs; whether it is locked. errno says why not.
bool lock(int fd, const std::function<std::string()>& holder) {
  const auto give_up = std::chrono::steady_clock::now() + kStartTime;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return false;
    const bool waits = is_gone(holder()) && std::chrono::steady_clock::now() < give_up;
    errno = EWOULDBLOCK;
    if (!waits) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

Error held_by_another(const std::filesystem::path& path, const std::string& holder) {
  return {ErrorCode::kConflict, path.string() + ": locked by " +
                                    (holder.empty() ? "another process" : "process " + holder) +
                                    "; wait for it or stop it"};
}

bool is_same_file(int fd, const std::filesystem::path& path) {
  struct stat held {};
  struct stat named {};
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

}  // namespace

Result<FileLock> FileLock::acquire(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd.valid()) return open_error(path, errno);
  const auto holder = [&] {
    char pid[32] = {};
    return std::string(::pread(fd.get(), pid, sizeof pid - 1, 0) > 0 ? pid : "");
  };
  if (!lock(fd.get(), holder)) {
    if (errno != EWOULDBLOCK) return io_error("lock " + path.string(), errno);
    return held_by_another(path, holder());
  }
  const std::string pid = std::to_string(::getpid());
  if (::ftruncate(fd.get(), 0) != 0 ||
      ::pwrite(fd.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return io_error("write " + path.string(), errno);
  }
  return FileLock(std::move(fd));
}

bool FileLock::is_at(const std::filesystem::path& path) const {
  return is_same_file(fd_.get(), path);
}

Result<DirectoryLock> DirectoryLock::acquire(const std::filesystem::path& directory) {
  constexpr int64_t kMaxPidBytes = 32;
  UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return open_error(directory, errno);
  const auto holder = [&] { return read_file(directory / kFile, kMaxPidBytes).value_or(""); };
  const bool keeps_alone = lock(fd.get(), holder);
  if (!keeps_alone && errno == EWOULDBLOCK) return held_by_another(directory, holder());
  TRAINYARD_ASSIGN(FileLock file, FileLock::acquire(directory / kFile));
  return DirectoryLock(std::move(fd), std::move(file), keeps_alone);
}

bool DirectoryLock::is_at(const std::filesystem::path& directory) const {
  return is_same_file(directory_.get(), directory) &&
         (keeps_alone_ || file_.is_at(directory / kFile));
}

}  // namespace trainyard
