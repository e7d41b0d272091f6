#include "tests/support/plane_faults.h"

#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <sys/types.h>
#include <system_error>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/control_plane.h"
#include "tests/support/http_client.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::testing_support {
namespace {

constexpr std::chrono::seconds kPatience{60};

/// Whether a thread of the process has not ended yet, and keeps what the process has open: the
/// first may be a zombie before the others.
bool runs(pid_t pid) {
  std::error_code gone;
  std::filesystem::directory_iterator thread("/proc/" + std::to_string(pid) + "/task", gone);
  for (; !gone && thread != std::filesystem::directory_iterator(); thread.increment(gone)) {
    std::ifstream file(thread->path() / "stat");
    const std::string stat(std::istreambuf_iterator<char>(file), {});
    // The name in brackets may hold anything: what follows it starts with the state.
    const size_t end = stat.rfind(')');
    if (end == std::string::npos || end + 2 >= stat.size()) continue;
    if (stat[end + 2] != 'Z' && stat[end + 2] != 'X') return true;
  }
  return false;
}

}  // namespace

uint16_t plane_port(const std::filesystem::path& folder, const std::string& part) {
  const std::string key = part + "_port=";
  std::ifstream addresses(folder / "addresses");
  for (std::string line; std::getline(addresses, line);) {
    if (line.starts_with(key)) return static_cast<uint16_t>(std::stoi(line.substr(key.size())));
  }
  ADD_FAILURE() << folder / "addresses"
                << " tells no " << key;
  return 0;
}

void kill_part(const std::filesystem::path& folder, const std::string& part) {
  pid_t pid = 0;
  std::ifstream(folder / "pid" / part) >> pid;
  ASSERT_GT(pid, 1) << part;
  ASSERT_EQ(::kill(pid, SIGKILL), 0) << part;
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (runs(pid)) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << part << " does not die";
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void revive(const std::filesystem::path& folder) {
  const TemporaryDirectory scratch;
  const CommandResult result =
      run_command({.argv = {source_path("tests/apiserver/plane"), "revive", folder},
                   .output = scratch.path() / "out",
                   .errors = scratch.path() / "err"},
                  std::chrono::minutes(3));
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
}

void compact_history(const std::filesystem::path& folder, const std::string& revision) {
  const HttpAnswer answer = http_request("127.0.0.1:" + std::to_string(plane_port(folder, "etcd")),
                                         "POST", "/v3/kv/compaction", kPatience,
                                         "{\"revision\":\"" + revision + "\",\"physical\":true}");
  ASSERT_EQ(answer.status, 200) << answer.body;
}

}  // namespace trainyard::testing_support
