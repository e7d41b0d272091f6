#include "control/local/pod_record.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "control/local/exit_json.h"

namespace trainyard::control::local {
namespace {

using nlohmann::json;

constexpr char kFile[] = "pod.json";
constexpr int64_t kMaxBytes = 1 << 16;

PodRecord record_from(const json& object) {
  PodRecord record;
  record.name = object.at("name").get<std::string>();
  record.uid = object.at("uid").get<std::string>();
  record.job_uid = object.at("jobUID").get<std::string>();
  record.node_index = object.at("nodeIndex").get<int>();
  record.created_generation = object.at("createdGeneration").get<int64_t>();
  record.member = object.at("member").get<bool>();
  record.created_at = Time(Duration(object.at("createdAtNanos").get<int64_t>()));
  record.process.pid = object.at("pid").get<pid_t>();
  record.process.start_ticks = object.at("startTicks").get<uint64_t>();
  record.process.boot_id = object.at("bootID").get<std::string>();
  if (object.contains("killAtNanos")) {
    record.kill_at = Time(Duration(object["killAtNanos"].get<int64_t>()));
  }
  if (object.contains("exit")) record.exit = exit_from_json(object["exit"]);
  return record;
}

}  // namespace

Status write_pod_record(const std::filesystem::path& pod_dir, const PodRecord& record) {
  json object = {{"name", record.name},
                 {"uid", record.uid},
                 {"jobUID", record.job_uid},
                 {"nodeIndex", record.node_index},
                 {"createdGeneration", record.created_generation},
                 {"member", record.member},
                 {"createdAtNanos", record.created_at.time_since_epoch().count()},
                 {"pid", record.process.pid},
                 {"startTicks", record.process.start_ticks},
                 {"bootID", record.process.boot_id}};
  if (record.kill_at) object["killAtNanos"] = record.kill_at->time_since_epoch().count();
  if (record.exit) object["exit"] = to_json(*record.exit);
  return write_file_atomic(pod_dir / kFile,
                           object.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

Result<PodRecord> read_pod_record(const std::filesystem::path& pod_dir) {
  const std::filesystem::path path = pod_dir / kFile;
  TRAINYARD_ASSIGN(const std::string text, read_file(path, kMaxBytes));
  try {
    return record_from(json::parse(text));
  } catch (const json::exception& error) {
    return Error{ErrorCode::kInvalidData,
                 path.string() + ": no pod record: " + error.what() +
                     "; end the pod's processes by hand and remove the folder"};
  }
}

Status remove_pod_record(const std::filesystem::path& pod_dir) {
  if (::unlink((pod_dir / kFile).c_str()) != 0 && errno != ENOENT) {
    return io_error("remove " + (pod_dir / kFile).string(), errno);
  }
  return sync_directory(pod_dir);
}

Result<std::vector<PodRecord>> read_pod_records(const std::filesystem::path& pods_dir) {
  std::vector<PodRecord> records;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(pods_dir, code)) {
    Result<PodRecord> record = read_pod_record(entry.path());
    if (record) {
      records.push_back(*std::move(record));
    } else if (record.error().code != ErrorCode::kNotFound) {
      return std::move(record).error();
    }
  }
  if (code) return Error{ErrorCode::kIo, "list " + pods_dir.string() + ": " + code.message()};
  std::sort(records.begin(), records.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return records;
}

void prune_logs(const std::filesystem::path& pods_dir, size_t keep) {
  std::vector<std::pair<std::filesystem::file_time_type, std::filesystem::path>> gone;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(pods_dir, code)) {
    std::error_code ignored;
    if (std::filesystem::exists(entry.path() / kFile, ignored)) continue;
    gone.emplace_back(std::filesystem::last_write_time(entry.path(), ignored), entry.path());
  }
  std::sort(gone.begin(), gone.end());
  for (size_t i = 0; i + keep < gone.size(); ++i) {
    std::error_code ignored;  // a folder that stays is looked at again next time
    std::filesystem::remove_all(gone[i].second, ignored);
  }
}

std::string tail_of(const std::filesystem::path& path, int64_t limit_bytes) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) return {};
  const int64_t size = std::min<int64_t>(info.st_size, limit_bytes);
  std::string text(static_cast<size_t>(size), '\0');
  const ssize_t n = ::pread(fd.get(), text.data(), text.size(), info.st_size - size);
  text.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  if (size < info.st_size) {
    // The first line is cut: leave it out.
    const size_t newline = text.find('\n');
    if (newline != std::string::npos) text.erase(0, newline + 1);
  }
  while (!text.empty() && text.back() == '\n')
    text.pop_back();
  return text;
}

}  // namespace trainyard::control::local
