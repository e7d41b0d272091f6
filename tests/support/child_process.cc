#include "tests/support/child_process.h"

#include <cerrno>
#include <charconv>
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

extern char** environ;

namespace trainyard::testing_support {
namespace {

std::vector<std::string> merged(const std::map<std::string, std::string>& over) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : over)
    variables[name] = value;
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables)
    entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts)
    result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

ChildProcess::ChildProcess(const Spec& spec) {
  std::vector<std::string> arguments = spec.argv;
  std::vector<std::string> variables = merged(spec.environment);
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> environment = pointers(variables);
  const int flags = O_WRONLY | O_CREAT;
  // Before anybody reads them: what is there may be another child's.
  for (const std::filesystem::path& file : {spec.output, spec.errors})
    ::close(::open(file.c_str(), flags | O_TRUNC | O_CLOEXEC, 0644));
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::setsid();
  // A test that ignores it must not do so for a program that perhaps should.
  ::signal(SIGPIPE, SIG_DFL);
  const int output = ::open(spec.output.c_str(), flags, 0644);
  const int errors = ::open(spec.errors.c_str(), flags, 0644);
  const int input = ::open("/dev/null", O_RDONLY);
  const bool moved = spec.working_directory.empty() || ::chdir(spec.working_directory.c_str()) == 0;
  if (!moved || ::dup2(input, 0) < 0 || ::dup2(output, 1) < 0 || ::dup2(errors, 2) < 0)
    ::_exit(126);
  ::execve(argv[0], argv.data(), environment.data());
  ::_exit(127);
}

ChildProcess::~ChildProcess() {
  if (end_ || pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void ChildProcess::signal(int number) const {
  if (!end_) ::kill(pid_, number);
}

std::optional<ChildEnd> ChildProcess::wait(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!end_) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      end_ = ChildEnd{};
      if (WIFSIGNALED(status)) end_->signal = WTERMSIG(status);
      if (WIFEXITED(status)) end_->exit_code = WEXITSTATUS(status);
      break;
    }
    if (std::chrono::steady_clock::now() >= deadline) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return end_;
}

std::vector<pid_t> processes_with(const std::string& entry) {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& folder : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = folder.path().filename();
    pid_t pid = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (parsed.ec != std::errc() || pid == ::getpid()) continue;
    std::ifstream file(folder.path() / "environ", std::ios::binary);
    std::string environment((std::istreambuf_iterator<char>(file)), {});
    environment.insert(environment.begin(), '\0');
    const std::string wanted = std::string(1, '\0') + entry + std::string(1, '\0');
    if (environment.find(wanted) != std::string::npos) found.push_back(pid);
  }
  return found;
}

}  // namespace trainyard::testing_support
