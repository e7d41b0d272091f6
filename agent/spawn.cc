#include "agent/spawn.h"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>

#include "common/base/signals.h"
#include "common/base/unique_fd.h"

namespace trainyard::agent {
namespace {

/// Descriptors are moved above this before they are put into place, so that none is overwritten.
constexpr int kStagingFd = 20;
constexpr int kMaxInheritedFds = 16;
static_assert(kStagingFd >= 3 + kMaxInheritedFds);

/// Everything the child needs, ready before fork: it may not allocate.
struct ChildPlan {
  const char* path = nullptr;
  char* const* argv = nullptr;
  char* const* environment = nullptr;
  int standard_fds[3] = {-1, -1, -1};
  int inherited_fds[kMaxInheritedFds] = {};
  int inherited_count = 0;
  int failure_fd = -1;
  pid_t parent = 0;
};

[[noreturn]] void fail(int failure_fd) {
  const int error_number = errno;
  const ssize_t written = ::write(failure_fd, &error_number, sizeof error_number);
  ::_exit(written == sizeof error_number ? 127 : 126);
}

/// The child, after fork. Async-signal-safe calls only.
[[noreturn]] void run_child(const ChildPlan& plan) {
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail(plan.failure_fd);
  if (::getppid() != plan.parent) ::_exit(126);  // the parent was faster: nobody wants this child
  // A hang-up that somebody wanted ignored (nohup) stays ignored; the rest is the agent's own, or
  // what it stops ranks by.
  for (int signal_number = 1; signal_number < NSIG; ++signal_number) {
    if (signal_number == SIGHUP && ignores_signal(SIGHUP)) continue;
    ::signal(signal_number, SIG_DFL);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int fd = 0; fd < 3; ++fd) {
    if (::dup2(plan.standard_fds[fd], fd) < 0) fail(plan.failure_fd);
  }
  for (int i = 0; i < plan.inherited_count; ++i) {
    if (::dup2(plan.inherited_fds[i], kFirstInheritedFd + i) < 0) fail(plan.failure_fd);
  }
  const int first_closed = kFirstInheritedFd + plan.inherited_count;
  if (::dup3(plan.failure_fd, first_closed, O_CLOEXEC) < 0) fail(plan.failure_fd);
  // All of ours are close-on-exec; this is for those that libraries opened without it.
  ::close_range(static_cast<unsigned>(first_closed) + 1, UINT_MAX, 0);
  ::execve(plan.path, plan.argv, plan.environment);
  fail(first_closed);
}

/// execvp's search, done before fork: where nothing can be executed, what is there and must not be,
/// whose refusal says more; else the name itself.
std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* variable = ::getenv("PATH");
  std::string path = variable == nullptr ? "/usr/local/bin:/usr/bin:/bin" : variable;
  path += ':';
  std::string denied;
  for (size_t begin = 0, end = 0; (end = path.find(':', begin)) != std::string::npos;
       begin = end + 1) {
    const std::string directory = end == begin ? "." : path.substr(begin, end - begin);
    const std::string candidate = directory + "/" + name;
    std::error_code error;
    if (!std::filesystem::exists(candidate, error) ||
        std::filesystem::is_directory(candidate, error)) {
      continue;
    }
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    if (denied.empty()) denied = candidate;
  }
  return denied.empty() ? name : denied;
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts)
    pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// A copy out of the way of the numbers that the child fills; closed on exec.
UniqueFd staged(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, kStagingFd)); }

}  // namespace

Result<pid_t> spawn(const SpawnRequest& request) {
  if (request.argv.empty() || request.inherited_fds.size() > kMaxInheritedFds) {
    return Error{ErrorCode::kInternal, "spawn: no program, or too many descriptors"};
  }
  const std::string path = find_program(request.argv.front());
  const std::vector<char*> argv = pointers_to(request.argv);
  const std::vector<char*> environment = pointers_to(request.environment);
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) return io_error("pipe", errno);
  UniqueFd failure_read(pipe_fds[0]);
  UniqueFd failure_write(pipe_fds[1]);
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::vector<UniqueFd> copies;
  for (const int fd : {null.get(), request.stdout_fd, request.stderr_fd, failure_write.get()})
    copies.push_back(staged(fd));
  for (const int fd : request.inherited_fds)
    copies.push_back(staged(fd));
  for (const UniqueFd& copy : copies) {
    if (!copy.valid()) return io_error("dup of a descriptor for " + path, errno);
  }
  failure_write.reset();

  ChildPlan plan;
  plan.path = path.c_str();
  plan.argv = argv.data();
  plan.environment = environment.data();
  for (size_t i = 0; i < 3; ++i)
    plan.standard_fds[i] = copies[i].get();
  plan.failure_fd = copies[3].get();
  plan.inherited_count = static_cast<int>(request.inherited_fds.size());
  for (size_t i = 0; i < request.inherited_fds.size(); ++i)
    plan.inherited_fds[i] = copies[4 + i].get();
  plan.parent = ::getpid();

  const pid_t pid = ::fork();
  if (pid < 0) return io_error("fork of " + path, errno);
  if (pid == 0) run_child(plan);
  copies.clear();
  int error_number = 0;
  ssize_t count = 0;
  do {
    count = ::read(failure_read.get(), &error_number, sizeof error_number);
  } while (count < 0 && errno == EINTR);
  if (count == 0) return pid;  // closed by exec
  ::waitpid(pid, nullptr, 0);
  Error error = io_error("execute " + path, count > 0 ? error_number : errno);
  // What is not there or no program does not become one by trying again.
  for (const int lasting : {ENOENT, ENOTDIR, EACCES, ENOEXEC, ELOOP, ENAMETOOLONG, EISDIR}) {
    if (error_number == lasting) error.code = ErrorCode::kInvalidConfig;
  }
  return error;
}

}  // namespace trainyard::agent
