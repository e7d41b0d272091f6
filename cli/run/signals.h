#pragma once

#include <chrono>
#include <signal.h>

#include "common/base/error.h"
#include "common/base/unique_fd.h"

namespace trainyard::cli {

/// Ctrl-C and its relatives (SIGINT, SIGTERM, SIGHUP) taken from a descriptor instead of by
/// handlers, as far as the parent has left them to this process (takes_signal). SIGPIPE is ignored
/// meanwhile: a write to a reader that has left is an error like others. Made before any thread is,
/// which inherit the mask; all is put back at the end.
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
  StopSignals(UniqueFd fd, const sigset_t& signals);
  UniqueFd fd_;
  sigset_t signals_;
  void (*sigpipe_)(int);
};

}  // namespace trainyard::cli
