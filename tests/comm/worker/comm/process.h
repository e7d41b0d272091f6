#pragma once

#include <chrono>
#include <string>
#include <sys/types.h>
#include <vector>

#include "common/base/unique_fd.h"

namespace trainyard::comm::testing {

/// A child process with pipes to its standard input and output. Killed and reaped on destruction,
/// so that a failed test leaves nothing behind.
class Process {
 public:
  explicit Process(const std::vector<std::string>& arguments);
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  ~Process();

  pid_t pid() const { return pid_; }
  void write_line(const std::string& line);
  /// The next line of its output; "" at its end or when `patience` is over.
  std::string read_line(std::chrono::milliseconds patience = std::chrono::seconds(60));
  void signal(int number);
  /// Waits for its end; the exit code, or -1 for a signal.
  int wait();

 private:
  pid_t pid_ = -1;
  UniqueFd input_;
  UniqueFd output_;
  std::string buffered_;
};

}  // namespace trainyard::comm::testing
