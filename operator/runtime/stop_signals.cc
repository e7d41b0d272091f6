#include "operator/runtime/stop_signals.h"

#include <csignal>
#include <ctime>
#include <signal.h>

#include "common/base/signals.h"
#include "common/text/readable.h"

namespace trainyard::operator_runtime {
namespace {

sigset_t watched() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal_number : {SIGTERM, SIGINT}) {
    if (takes_signal(signal_number)) sigaddset(&signals, signal_number);
  }
  return signals;
}

/// How often the thread that waits looks whether it is over.
constexpr timespec kLook{0, 100'000'000};

}  // namespace

StopSignals::StopSignals() {
  const sigset_t signals = watched();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

void StopSignals::watch(const std::stop_token& over, Logger& logger) {
  const sigset_t signals = watched();
  while (!over.stop_requested()) {
    siginfo_t info{};
    const int signal_number = ::sigtimedwait(&signals, &info, &kLook);
    if (signal_number <= 0 || !takes_signal_of(signal_number, info.si_code)) continue;
    logger.info("received a signal to stop", {{"signal", signal_text(signal_number)}});
    stop_.request_stop();
  }
}

}  // namespace trainyard::operator_runtime
