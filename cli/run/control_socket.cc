#include "cli/run/control_socket.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>

#include "common/base/unique_fd.h"
#include "common/io/file.h"
#include "control/coordinator/reachable_socket.h"

namespace trainyard::cli {
namespace {

constexpr char kFolder[] = "control";
constexpr char kRecord[] = "control-socket";
constexpr char kProbe[] = "probe.sock";
constexpr char kPrefix[] = "trainyard-";
constexpr int64_t kMaxRecordBytes = 4096;

bool is_own_folder(const std::filesystem::path& folder) {
  struct stat status {};
  return ::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::geteuid();
}

/// A folder of ours that nobody else can enter or has planted.
bool is_ours(const std::filesystem::path& folder) {
  struct stat status {};
  return is_own_folder(folder) && ::lstat(folder.c_str(), &status) == 0 &&
         (status.st_mode & 07777) == 0700;
}

bool is_safe_temporary(const std::filesystem::path& folder) {
  return folder.is_absolute() && folder.filename().string().starts_with(kPrefix) && is_ours(folder);
}

/// Whether the folder's file system knows sockets: some network and shared ones do not.
bool holds_sockets(const std::filesystem::path& folder) {
  const std::string path = folder / kProbe;
  const auto socket = control::ReachableSocket::at(path);
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket || !fd.valid()) return false;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket->path().c_str(), socket->path().size() + 1);
  ::unlink(path.c_str());
  const bool bound =
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  ::unlink(path.c_str());
  return bound;
}

std::filesystem::path temporary_folder() {
  const char* variable = std::getenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe): single-threaded
  const std::filesystem::path wanted = variable == nullptr ? "/tmp" : variable;
  return wanted.is_absolute() ? wanted : "/tmp";
}

}  // namespace

Result<ControlSocketFolder> ControlSocketFolder::prepare(const std::filesystem::path& run_dir) {
  const std::filesystem::path record = run_dir / kRecord;
  const Result<std::string> recorded = read_file(record, kMaxRecordBytes);
  if (recorded && is_safe_temporary(*recorded)) return ControlSocketFolder(*recorded, record);
  const std::filesystem::path folder = run_dir / kFolder;
  ::mkdir(folder.c_str(), 0700);  // there already, or of no use: both are looked at next
  if (is_own_folder(folder)) ::chmod(folder.c_str(), 0700);
  if (is_ours(folder) && holds_sockets(folder)) return ControlSocketFolder(folder, record);
  ::rmdir(folder.c_str());
  return below_temporary(record);
}

Result<ControlSocketFolder> ControlSocketFolder::below_temporary(
    const std::filesystem::path& record) {
  std::string pattern = temporary_folder() / (std::string(kPrefix) + "XXXXXX");
  if (::mkdtemp(pattern.data()) == nullptr) {
    Error error = io_error("neither the run directory nor " + pattern +
                               " can hold the control socket; set TMPDIR to a local folder",
                           errno);
    error.code = ErrorCode::kInvalidConfig;
    return error;
  }
  ControlSocketFolder folder(pattern, record);
  if (const Status written = write_file_atomic(record, pattern); !written) {
    folder.remove();
    return written.error();
  }
  return folder;
}

Status ControlSocketFolder::restore() const {
  if (::mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) {
    return io_error("create the folder of the control socket " + folder_.string(), errno);
  }
  if (is_ours(folder_)) return {};
  return Error{ErrorCode::kConflict, folder_.string() +
                                         ": found something other than this run's folder of mode "
                                         "0700 for its control socket; remove it"};
}

void ControlSocketFolder::clean(const std::filesystem::path& run_dir) {
  const std::filesystem::path record = run_dir / kRecord;
  const Result<std::string> recorded = read_file(record, kMaxRecordBytes);
  if (recorded && is_safe_temporary(*recorded)) ControlSocketFolder(*recorded, record).remove();
  ControlSocketFolder(run_dir / kFolder, record).remove();
}

void ControlSocketFolder::remove() {
  std::error_code ignored;  // what is left is an empty folder, reused by the next run
  std::filesystem::remove(socket_path(), ignored);
  std::filesystem::remove(folder_, ignored);
  std::filesystem::remove(record_, ignored);
}

}  // namespace trainyard::cli
