#include "tests/comm/worker/comm/process.h"

#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "common/base/check.h"
#include "worker/comm/host/socket.h"

extern char** environ;

namespace trainyard::comm::testing {

Process::Process(const std::vector<std::string>& arguments) {
  int to_child[2];
  int from_child[2];
  TRAINYARD_CHECK(::pipe2(to_child, O_CLOEXEC) == 0 && ::pipe2(from_child, O_CLOEXEC) == 0);
  input_.reset(to_child[1]);
  output_.reset(from_child[0]);
  const UniqueFd child_input(to_child[0]);
  const UniqueFd child_output(from_child[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, child_input.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, child_output.get(), STDOUT_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : arguments)
    argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const int error = ::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  TRAINYARD_CHECK(error == 0);
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      input_(std::move(other.input_)),
      output_(std::move(other.output_)),
      buffered_(std::move(other.buffered_)) {}

Process::~Process() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  wait();
}

void Process::write_line(const std::string& line) {
  const std::string text = line + "\n";
  TRAINYARD_CHECK(::write(input_.get(), text.data(), text.size()) ==
                  static_cast<ssize_t>(text.size()));
}

std::string Process::read_line(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (true) {
    if (const size_t end = buffered_.find('\n'); end != std::string::npos) {
      std::string line = buffered_.substr(0, end);
      buffered_.erase(0, end + 1);
      return line;
    }
    pollfd entry{output_.get(), POLLIN, 0};
    if (::poll(&entry, 1, poll_timeout_ms(deadline, 60'000)) <= 0) return {};
    char chunk[4096];
    const ssize_t got = ::read(output_.get(), chunk, sizeof(chunk));
    if (got <= 0) return {};
    buffered_.append(chunk, static_cast<size_t>(got));
  }
}

void Process::signal(int number) { ::kill(pid_, number); }

int Process::wait() {
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace trainyard::comm::testing
