#include <pthread.h>
#include <signal.h>

#include "common/io/open_files.h"
#include "common/log/log.h"
#include "worker/rank.h"

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
  // It has connections to every other rank, up to four each.
  trainyard::raise_open_file_limit();
  const auto log = trainyard::Logger::to_stderr(trainyard::LogLevel::kInfo);
  return trainyard::engine::run_rank(*log);
}
