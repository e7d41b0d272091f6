#include "cli/run/control_socket.h"

#include <cerrno>
#include <cstdlib>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "common/io/file.h"
#include "control/coordinator/grpc_transport.h"

namespace trainyard::cli {
namespace {

constexpr char kPrefix[] = "trainyard-";
constexpr int64_t kMaxRecordBytes = 4096;

/// A folder of ours that nobody else can enter or has planted.
bool is_safe(const std::filesystem::path& folder) {
  struct stat status {};
  return folder.is_absolute() && folder.filename().string().starts_with(kPrefix) &&
         ::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::geteuid() && (status.st_mode & 07777) == 0700;
}

/// TMPDIR, unless a socket's path below it would be too long.
std::filesystem::path temporary_folder() {
  const char* variable = std::getenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe): single-threaded
  const std::filesystem::path wanted = variable == nullptr ? "/tmp" : variable;
  const size_t longest = (wanted / "trainyard-XXXXXX" / "control.sock").string().size();
  const bool fits = longest <= static_cast<size_t>(control::kMaxSocketPathBytes);
  return wanted.is_absolute() && fits ? wanted : "/tmp";
}

}  // namespace

Result<ControlSocketFolder> ControlSocketFolder::prepare(const std::filesystem::path& run_dir) {
  const std::filesystem::path record = run_dir / "control-socket";
  const Result<std::string> recorded = read_file(record, kMaxRecordBytes);
  if (recorded && is_safe(*recorded)) return ControlSocketFolder(*recorded, record);
  std::string pattern = temporary_folder() / (std::string(kPrefix) + "XXXXXX");
  if (::mkdtemp(pattern.data()) == nullptr) return io_error("mkdtemp " + pattern, errno);
  ControlSocketFolder folder(pattern, record);
  if (const Status written = write_file_atomic(record, pattern); !written) {
    folder.remove();
    return written.error();
  }
  return folder;
}

void ControlSocketFolder::remove() {
  std::error_code ignored;  // what is left is an empty folder, reused by the next run
  std::filesystem::remove(socket_path(), ignored);
  std::filesystem::remove(folder_, ignored);
  std::filesystem::remove(record_, ignored);
}

}  // namespace trainyard::cli
