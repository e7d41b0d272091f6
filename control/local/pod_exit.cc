#include "control/local/pod_exit.h"

#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "control/exit_json.h"
#include "control/local/json_fault.h"

namespace trainyard::control::local {
namespace {

using nlohmann::json;

constexpr char kFile[] = "exit.json";
constexpr int64_t kMaxBytes = 1 << 16;

}  // namespace

Status write_pod_exit(const std::filesystem::path& pod_dir, const std::string& pod_uid,
                      const ContainerExit& exit) {
  const json record = {{"podUID", pod_uid}, {"exit", to_json(exit)}};
  // Lines of a foreign program may hold any bytes; what is no UTF-8 is replaced.
  return write_file_atomic(pod_dir / kFile,
                           record.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

Result<ContainerExit> read_pod_exit(const std::filesystem::path& pod_dir,
                                    const std::string& pod_uid) {
  const std::filesystem::path path = pod_dir / kFile;
  TRAINYARD_ASSIGN(const std::string text, read_file(path, kMaxBytes));
  try {
    const json record = json::parse(text);
    if (record.at("podUID").get<std::string>() != pod_uid) {
      return Error{ErrorCode::kNotFound, path.string() + ": is of another pod than " + pod_uid};
    }
    return exit_from_json(record.at("exit"));
  } catch (const json::exception& error) {
    return Error{ErrorCode::kInvalidData, path.string() + ": no exit record: " + fault_of(error)};
  }
}

}  // namespace trainyard::control::local
