#include "control/local/event_log.h"

#include <cerrno>
#include <fcntl.h>
#include <span>

#include <nlohmann/json.hpp>

#include "common/base/unique_fd.h"
#include "common/io/file.h"
#include "common/text/rfc3339.h"

namespace trainyard::control::local {

Status EventLog::append(const std::filesystem::path& path, const Event& event, Time now) {
  if (event == last_) return {};
  std::error_code code;
  const auto size = std::filesystem::file_size(path, code);
  if (!code && static_cast<int64_t>(size) > kMaxEventLogBytes) {
    std::filesystem::rename(path, path.string() + ".1", code);
  }
  const nlohmann::json object = {{"time", text::format_time(now)},
                                 {"type", event.type == EventType::kNormal ? "Normal" : "Warning"},
                                 {"reason", event.reason},
                                 {"message", event.message}};
  const std::string line =
      object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd.valid()) return io_error("open " + path.string(), errno);
  TRAINYARD_TRY(write_all(fd.get(), std::as_bytes(std::span(line)), path.string()));
  last_ = event;
  return {};
}

}  // namespace trainyard::control::local
