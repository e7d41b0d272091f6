// The first process of every pod: holds its namespaces and reaps what others leave behind.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void on_end(int number) {
  (void)number;
  _exit(0);
}

static void on_child(int number) {
  (void)number;
  while (waitpid(-1, NULL, WNOHANG) > 0) {
  }
}

int main(void) {
  signal(SIGTERM, on_end);
  signal(SIGINT, on_end);
  signal(SIGCHLD, on_child);
  for (;;) pause();
}
