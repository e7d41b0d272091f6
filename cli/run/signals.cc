#include "cli/run/signals.h"

#include <cerrno>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace trainyard::cli {
namespace {

sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP})
    sigaddset(&signals, signal_number);
  return signals;
}

}  // namespace

Result<StopSignals> StopSignals::take() {
  const sigset_t signals = stop_signals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  UniqueFd fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return io_error("signalfd", errno);
  return StopSignals(std::move(fd));
}

StopSignals::StopSignals(UniqueFd fd) : fd_(std::move(fd)) { ::signal(SIGPIPE, SIG_IGN); }

StopSignals::~StopSignals() {
  if (!fd_.valid()) return;
  ::signal(SIGPIPE, SIG_DFL);
  const sigset_t signals = stop_signals();
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

int StopSignals::wait(std::chrono::milliseconds timeout) {
  pollfd fd{fd_.get(), POLLIN, 0};
  if (::poll(&fd, 1, static_cast<int>(timeout.count())) <= 0) return 0;
  int count = 0;
  signalfd_siginfo info{};
  while (::read(fd_.get(), &info, sizeof info) == sizeof info)
    ++count;
  return count;
}

}  // namespace trainyard::cli
