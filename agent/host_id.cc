#include "agent/host_id.h"

#include <filesystem>
#include <unistd.h>

#include "common/io/file.h"

namespace trainyard::agent {

std::string host_id() {
  constexpr int64_t kMaxBytes = 256;
  const auto boot_id = read_file("/proc/sys/kernel/random/boot_id", kMaxBytes);
  std::error_code error;
  const auto mounts = std::filesystem::read_symlink("/proc/self/ns/mnt", error);
  if (!boot_id || error) return "process:" + std::to_string(::getpid());
  return boot_id->substr(0, boot_id->find('\n')) + "/" + mounts.string();
}

}  // namespace trainyard::agent
