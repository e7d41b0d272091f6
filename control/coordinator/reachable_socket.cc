#include "control/coordinator/reachable_socket.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <utility>

namespace trainyard::control {

Result<ReachableSocket> ReachableSocket::at(const std::string& path) {
  if (static_cast<int64_t>(path.size()) <= kMaxSocketPathBytes) {
    return ReachableSocket(path, UniqueFd());
  }
  const std::filesystem::path whole(path);
  UniqueFd folder(::open(whole.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return io_error("open " + whole.parent_path().string(), errno);
  std::string reachable =
      "/proc/self/fd/" + std::to_string(folder.get()) + "/" + whole.filename().string();
  if (static_cast<int64_t>(reachable.size()) > kMaxSocketPathBytes) {
    return Error{ErrorCode::kInvalidConfig, "control socket " + path +
                                                ": file name too long, wanted a path of at most " +
                                                std::to_string(kMaxSocketPathBytes) + " bytes"};
  }
  return ReachableSocket(std::move(reachable), std::move(folder));
}

}  // namespace trainyard::control
