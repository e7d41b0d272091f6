#include "control/local/pod_record.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "common/io/input.h"
#include "control/exit_json.h"
#include "control/local/json_fault.h"

namespace trainyard::control::local {
namespace {

using nlohmann::json;

constexpr char kFile[] = "pod.json";
constexpr int64_t kMaxBytes = 1 << 16;

// Linux numbers processes below this (PID_MAX_LIMIT of include/linux/threads.h).
constexpr int64_t kPidLimit = int64_t{1} << 22;

Error bad(const std::string& what) { return {ErrorCode::kInvalidData, what}; }

/// An integer member within [low, high].
Result<int64_t> integer_in(const json& object, const char* name, int64_t low, int64_t high) {
  const json& value = object.at(name);
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{INT64_MAX}
                                               : value.is_number_integer();
  if (!fits || value.get<int64_t>() < low || value.get<int64_t>() > high) {
    return bad(std::string(name) + ": found " + value.dump().substr(0, 40) + ", wanted " +
               std::to_string(low) + ".." + std::to_string(high));
  }
  return value.get<int64_t>();
}

Result<PodRecord> record_from(const json& object) {
  PodRecord record;
  record.name = object.at("name").get<std::string>();
  record.uid = object.at("uid").get<std::string>();
  record.job_uid = object.at("jobUID").get<std::string>();
  record.member = object.at("member").get<bool>();
  record.process.boot_id = object.at("bootID").get<std::string>();
  if (object.contains("spare")) {
    TRAINYARD_ASSIGN(record.spare, integer_in(object, "spare", 1, INT64_MAX));
  }
  TRAINYARD_ASSIGN(const int64_t node_index,
                   integer_in(object, "nodeIndex", record.spare ? -1 : 0, INT32_MAX));
  record.node_index = static_cast<int>(node_index);
  TRAINYARD_ASSIGN(record.created_generation,
                   integer_in(object, "createdGeneration", 0, INT64_MAX));
  TRAINYARD_ASSIGN(const int64_t created, integer_in(object, "createdAtNanos", 0, INT64_MAX));
  record.created_at = Time(Duration(created));
  // Ids 0 and below name groups, 1 is init: never a pod.
  TRAINYARD_ASSIGN(const int64_t pid, integer_in(object, "pid", 2, kPidLimit));
  record.process.pid = static_cast<pid_t>(pid);
  TRAINYARD_ASSIGN(const int64_t ticks, integer_in(object, "startTicks", 0, INT64_MAX));
  record.process.start_ticks = static_cast<uint64_t>(ticks);
  if (object.contains("killAtNanos")) {
    TRAINYARD_ASSIGN(const int64_t kill_at, integer_in(object, "killAtNanos", 0, INT64_MAX));
    record.kill_at = Time(Duration(kill_at));
  }
  if (object.contains("exit")) record.exit = exit_from_json(object["exit"]);
  return record;
}

}  // namespace

std::string encode_pod_record(const PodRecord& record) {
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
  if (record.spare) object["spare"] = *record.spare;
  if (record.kill_at) object["killAtNanos"] = record.kill_at->time_since_epoch().count();
  if (record.exit) object["exit"] = to_json(*record.exit);
  return object.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<PodRecord> decode_pod_record(std::string_view text) {
  try {
    return record_from(parse_record(text));
  } catch (const json::exception& error) {
    return bad(fault_of(error));
  }
}

Status write_pod_record(const std::filesystem::path& pod_dir, const PodRecord& record) {
  return write_file_atomic(pod_dir / kFile, encode_pod_record(record));
}

Result<PodRecord> read_pod_record(const std::filesystem::path& pod_dir) {
  const std::filesystem::path path = pod_dir / kFile;
  TRAINYARD_ASSIGN(const std::string text, read_file(path, kMaxBytes));
  Result<PodRecord> record = decode_pod_record(text);
  if (record) return record;
  return bad(path.string() + ": no pod record: " + record.error().message +
             "; stop the pod's processes by hand and remove the folder");
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
  const Result<UniqueFd> fd = open_regular(path);
  struct stat info {};
  if (!fd || ::fstat(fd->get(), &info) != 0) return {};
  const int64_t size = std::min<int64_t>(info.st_size, limit_bytes);
  std::string text(static_cast<size_t>(size), '\0');
  const ssize_t n = ::pread(fd->get(), text.data(), text.size(), info.st_size - size);
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
