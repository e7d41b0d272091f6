#include "bench/comm/process.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

extern char** environ;

namespace trainyard::bench {
namespace {

constexpr std::chrono::seconds kEndPatience{5};

}  // namespace

Result<Process> Process::start(const std::vector<std::string>& arguments, const std::string& name) {
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
  if (error != 0) return io_error("start " + name, error);
  return Process(pid, std::move(input), std::move(output), name);
}

Process::Process(pid_t pid, UniqueFd input, UniqueFd output, std::string name)
    : pid_(pid), input_(std::move(input)), output_(std::move(output)), name_(std::move(name)) {}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      input_(std::move(other.input_)),
      output_(std::move(other.output_)),
      name_(std::move(other.name_)),
      buffered_(std::move(other.buffered_)),
      end_(std::move(other.end_)) {}

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
    if (put < 0) return gone();
    at += static_cast<size_t>(put);
  }
  return {};
}

Error Process::gone() {
  using Clock = std::chrono::steady_clock;
  // Its files are closed a moment before it can be waited for.
  for (const auto until = Clock::now() + kEndPatience; pid_ >= 0 && Clock::now() < until;) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) != pid_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    pid_ = -1;
    const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    end_ = signal != 0
               ? "was ended by signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")"
               : "ended with exit code " + std::to_string(WEXITSTATUS(status));
  }
  return {ErrorCode::kInternal,
          name_ + " " + (end_.empty() ? "closed its output" : end_) + " and gave no answer"};
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
    if (got <= 0) return gone();
    buffered_.append(chunk, static_cast<size_t>(got));
  }
}

}  // namespace trainyard::bench
