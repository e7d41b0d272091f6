#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace trainyard::testing_support {

/// How a child ended.
struct ChildEnd {
  int exit_code = -1;  ///< meaningful when signal is 0
  int signal = 0;
};

/// A program run beside the test, its output in files. Killed and reaped on destruction. The child
/// leads a session of its own, so that a test's terminal plays no part.
class ChildProcess {
 public:
  struct Spec {
    std::vector<std::string> argv;
    std::map<std::string, std::string> environment;  ///< over the test's own
    std::filesystem::path working_directory;         ///< empty: the test's
    std::filesystem::path output;                    ///< standard output
    std::filesystem::path errors;                    ///< standard error
  };

  explicit ChildProcess(const Spec& spec);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Waits for its end; nullopt when `timeout` was not enough.
  std::optional<ChildEnd> wait(std::chrono::milliseconds timeout);

 private:
  pid_t pid_ = -1;
  std::optional<ChildEnd> end_;
};

/// Pids of processes that have `entry` ("NAME=value") in their environment, zombies left out.
std::vector<pid_t> processes_with(const std::string& entry);

}  // namespace trainyard::testing_support
