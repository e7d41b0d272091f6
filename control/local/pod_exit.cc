#include "control/local/pod_exit.h"

#include <cerrno>
#include <fcntl.h>
#include <span>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/base/unique_fd.h"
#include "common/io/file.h"
#include "control/exit_json.h"
#include "control/local/json_fault.h"

namespace trainyard::control::local {
namespace {

using nlohmann::json;

constexpr char kFile[] = "exit.json";
constexpr char kReserve[] = "exit.json.reserve";
constexpr int64_t kMaxBytes = 1 << 16;

/// As write_file_atomic, but takes no room.
Status write_into_reserve(const std::filesystem::path& pod_dir, const std::string& text) {
  const std::filesystem::path reserve = pod_dir / kReserve;
  const UniqueFd fd(::open(reserve.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid()) return io_error("open " + reserve.string(), errno);
  TRAINYARD_TRY(write_all(fd.get(), std::as_bytes(std::span(text)), reserve.string()));
  const auto size = static_cast<off_t>(text.size());
  if (::ftruncate(fd.get(), size) != 0 || ::fsync(fd.get()) != 0) {
    return io_error("end " + reserve.string(), errno);
  }
  if (::rename(reserve.c_str(), (pod_dir / kFile).c_str()) != 0) {
    return io_error("rename " + reserve.string(), errno);
  }
  return sync_directory(pod_dir);
}

}  // namespace

Status reserve_pod_exit(const std::filesystem::path& pod_dir) {
  const std::filesystem::path reserve = pod_dir / kReserve;
  const UniqueFd fd(
      ::open(reserve.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd.valid()) return io_error("create " + reserve.string(), errno);
  const int error = ::posix_fallocate(fd.get(), 0, kMaxBytes);
  if (error != 0) return io_error("reserve space for " + reserve.string(), error);
  return {};
}

Status write_pod_exit(const std::filesystem::path& pod_dir, const std::string& pod_uid,
                      const ContainerExit& exit) {
  const json record = {{"podUID", pod_uid}, {"exit", to_json(exit)}};
  // Lines of a foreign program may hold any bytes; what is no UTF-8 is replaced.
  const std::string text = record.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  Status written = write_file_atomic(pod_dir / kFile, text);
  if (!written && write_into_reserve(pod_dir, text)) return {};
  if (written) ::unlink((pod_dir / kReserve).c_str());
  return written;
}

Result<ContainerExit> read_pod_exit(const std::filesystem::path& pod_dir,
                                    const std::string& pod_uid) {
  const std::filesystem::path path = pod_dir / kFile;
  TRAINYARD_ASSIGN(const std::string text, read_file(path, kMaxBytes));
  try {
    const json record = parse_record(text);
    if (record.at("podUID").get<std::string>() != pod_uid) {
      return Error{ErrorCode::kNotFound,
                   path.string() + ": belongs to another pod than " + pod_uid};
    }
    return exit_from_json(record.at("exit"));
  } catch (const json::exception& error) {
    return Error{ErrorCode::kInvalidData, path.string() + ": no exit record: " + fault_of(error)};
  }
}

}  // namespace trainyard::control::local
