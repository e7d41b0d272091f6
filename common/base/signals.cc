#include "common/base/signals.h"

#include <signal.h>

namespace trainyard {

bool ignores_signal(int signal_number) {
  struct sigaction action {};
  return ::sigaction(signal_number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

bool takes_signal(int signal_number) {
  return !ignores_signal(signal_number) || (signal_number == SIGINT && ignores_signal(SIGQUIT));
}

bool takes_signal_of(int signal_number, int code) {
  const bool of_terminal = signal_number == SIGINT && code == SI_KERNEL;
  return takes_signal(signal_number) && !(of_terminal && ignores_signal(SIGINT));
}

}  // namespace trainyard
