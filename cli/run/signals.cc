#include "cli/run/signals.h"

#include <cerrno>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/signals.h"

namespace trainyard::cli {
namespace {

sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    if (takes_signal(signal_number)) sigaddset(&signals, signal_number);
  }
  return signals;
}

}  // namespace

Result<StopSignals> StopSignals::take() {
  const sigset_t signals = stop_signals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  UniqueFd fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return io_error("signalfd", errno);
  return StopSignals(std::move(fd), signals);
}

StopSignals::StopSignals(UniqueFd fd, const sigset_t& signals)
    : fd_(std::move(fd)), signals_(signals), sigpipe_(::signal(SIGPIPE, SIG_IGN)) {}

StopSignals::~StopSignals() {
  if (!fd_.valid()) return;
  ::signal(SIGPIPE, sigpipe_);
  ::pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
}

int StopSignals::wait(std::chrono::milliseconds timeout) {
  pollfd fd{fd_.get(), POLLIN, 0};
  if (::poll(&fd, 1, static_cast<int>(timeout.count())) <= 0) return 0;
  int count = 0;
  signalfd_siginfo info{};
  while (::read(fd_.get(), &info, sizeof info) == sizeof info) {
    if (takes_signal_of(static_cast<int>(info.ssi_signo), info.ssi_code)) ++count;
  }
  return count;
}

}  // namespace trainyard::cli
