#pragma once

#include <chrono>

#include "common/base/error.h"
#include "common/base/unique_fd.h"

namespace trainyard::cli {

/// Ctrl-C and its relatives (SIGINT, SIGTERM, SIGHUP) taken from a descriptor instead of by
/// handlers. Made before any thread is, which inherit the mask; the mask is put back at the end.
class StopSignals {
 public:
  /// Errors: kIo.
  static Result<StopSignals> take();
  StopSignals(StopSignals&&) noexcept = default;
  StopSignals& operator=(StopSignals&&) = delete;
  ~StopSignals();

  /// How many have arrived since the last call; waits up to `timeout` for the first.
  int wait(std::chrono::milliseconds timeout);
  /// Polls readable while one is there.
  int fd() const { return fd_.get(); }

 private:
  explicit StopSignals(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace trainyard::cli
