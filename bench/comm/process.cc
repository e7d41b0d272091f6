#include "bench/comm/process.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

extern char** environ;

namespace trainyard::bench {

Result<Process> Process::start(const std::vector<std::string>& arguments) {
  // A socket to write to, since writing to a pipe of a child that died would raise SIGPIPE.
  int to_child[2];
  int from_child[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, to_child) != 0) {
    return io_error("make a socket pair", errno);
  }
  UniqueFd input(to_child[1]);
  const UniqueFd child_input(to_child[0]);
  if (::pipe2(from_child, O_CLOEXEC) != 0) return io_error("make a pipe", errno);
  UniqueFd output(from_child[0]);
  const UniqueFd child_output(from_child[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, child_input.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, child_output.get(), STDOUT_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : arguments)
    argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return io_error("start " + arguments[0], error);
  return Process(pid, std::move(input), std::move(output), arguments[0]);
}

Process::Process(pid_t pid, UniqueFd input, UniqueFd output, std::string name)
    : pid_(pid), input_(std::move(input)), output_(std::move(output)), name_(std::move(name)) {}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      input_(std::move(other.input_)),
      output_(std::move(other.output_)),
      name_(std::move(other.name_)),
      buffered_(std::move(other.buffered_)) {}

Process::~Process() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

Status Process::write_line(const std::string& line) {
  const std::string text = line + "\n";
  size_t at = 0;
  while (at < text.size()) {
    const ssize_t put = ::send(input_.get(), text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return Error{ErrorCode::kPeerLost, name_ + " does not read any more"};
    at += static_cast<size_t>(put);
  }
  return {};
}

Result<std::string> Process::read_line(std::chrono::milliseconds patience) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + patience;
  while (true) {
    if (const size_t end = buffered_.find('\n'); end != std::string::npos) {
      std::string line = buffered_.substr(0, end);
      buffered_.erase(0, end + 1);
      return line;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd entry{output_.get(), POLLIN, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      return Error{ErrorCode::kDeadline,
                   name_ + " did not answer within " + std::to_string(patience.count()) + " ms"};
    }
    char chunk[4096];
    const ssize_t got = ::read(output_.get(), chunk, sizeof(chunk));
    if (got <= 0) return Error{ErrorCode::kPeerLost, name_ + " ended without an answer"};
    buffered_.append(chunk, static_cast<size_t>(got));
  }
}

}  // namespace trainyard::bench
