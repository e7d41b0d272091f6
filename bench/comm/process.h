#pragma once

#include <chrono>
#include <string>
#include <sys/types.h>
#include <vector>

#include "common/base/error.h"
#include "common/base/unique_fd.h"

namespace trainyard::bench {

/// A child with pipes to its standard input and output. Killed and reaped on destruction.
class Process {
 public:
  /// `arguments[0]` is the program's path, or a name to be found in PATH; `name` is what errors
  /// call it. Errors: kIo.
  static Result<Process> start(const std::vector<std::string>& arguments, const std::string& name);
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  ~Process();

  const std::string& name() const { return name_; }

  /// Errors: kInternal when it is gone, with how it ended.
  Status write_line(const std::string& line);
  /// The next line of its output. Errors: kDeadline after `patience`; as write_line at its end.
  Result<std::string> read_line(std::chrono::milliseconds patience);

 private:
  Process(pid_t pid, UniqueFd input, UniqueFd output, std::string name);
  Error gone();

  pid_t pid_ = -1;
  UniqueFd input_;
  UniqueFd output_;
  std::string name_;
  std::string buffered_;
  std::string end_;  ///< how it ended, once that is known
};

}  // namespace trainyard::bench
