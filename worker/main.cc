#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include "common/log/log.h"
#include "worker/rank.h"

namespace {

/// A rank has connections to every other, up to four each, and the soft limit is often 1024 for the
/// sake of programs that use select(2).
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int main() {
  // SIGTERM is received by the link's thread alone, as a request to stop at the next step boundary;
  // SIGINT of a terminal goes to the whole foreground group, and the agent decides what it means.
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigaddset(&blocked, SIGINT);
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  // A limit on the size of files is a full disk to us: an error of the write, not a reason to die.
  signal(SIGXFSZ, SIG_IGN);
  raise_descriptor_limit();
  const auto log = trainyard::Logger::to_stderr(trainyard::LogLevel::kInfo);
  return trainyard::engine::run_rank(*log);
}
