#include "control/local/process.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sstream>
#include <string_view>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/io/file.h"

namespace trainyard::control::local {
namespace {

constexpr int64_t kMaxStatBytes = 4096;
/// Descriptors handed to a child start here, clear of 0..3 which they are moved to.
constexpr int kFirstSpareFd = 10;
constexpr int kGateFd = 3;
/// Waits at the gate, leaves word that it has passed it ($0), then becomes the command; ends when
/// the gate closes without a word.
constexpr char kLauncher[] =
    "IFS= read -r word <&3 && [ \"$word\" = go ] && exec 3<&- && : > \"$0\" && exec \"$@\"; exit "
    "125";

/// The fields of /proc/<pid>/stat that we need.
struct Stat {
  char state = '?';
  pid_t session = 0;
  uint64_t start_ticks = 0;
};

std::optional<Stat> read_stat(pid_t pid) {
  const auto text = read_file("/proc/" + std::to_string(pid) + "/stat", kMaxStatBytes);
  if (!text) return std::nullopt;
  // The name (field 2) is in parentheses and may hold anything; fields after the last ')' are
  // plain.
  const size_t end_of_name = text->rfind(')');
  if (end_of_name == std::string::npos) return std::nullopt;
  std::istringstream fields(text->substr(end_of_name + 1));
  Stat stat;
  std::string skipped;
  int64_t ppid = 0;
  int64_t group = 0;
  fields >> stat.state >> ppid >> group >> stat.session;
  for (int field = 7; field < 22; ++field)
    fields >> skipped;
  fields >> stat.start_ticks;
  if (!fields) return std::nullopt;
  return stat;
}

bool is_running(const Stat& stat) { return stat.state != 'Z' && stat.state != 'X'; }

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts)
    pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// posix_spawn's two option objects, destroyed with this.
class SpawnOptions {
 public:
  SpawnOptions() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
  }
  ~SpawnOptions() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnOptions(const SpawnOptions&) = delete;
  SpawnOptions& operator=(const SpawnOptions&) = delete;

  /// Own session, no blocked or ignored signals, only descriptors 0 to 3. Returns an errno or 0.
  int set_up(int log_fd, int gate_fd, const std::filesystem::path& directory) {
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    int error = posix_spawnattr_setsigmask(&attributes_, &none);
    if (error == 0) error = posix_spawnattr_setsigdefault(&attributes_, &all);
    if (error == 0) {
      error = posix_spawnattr_setflags(
          &attributes_,
          static_cast<short>(POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
    }
    if (error == 0) {
      error = posix_spawn_file_actions_addopen(&actions_, 0, "/dev/null", O_RDONLY, 0);
    }
    for (const int fd : {1, 2}) {
      if (error == 0) error = posix_spawn_file_actions_adddup2(&actions_, log_fd, fd);
    }
    if (error == 0) error = posix_spawn_file_actions_adddup2(&actions_, gate_fd, kGateFd);
    if (error == 0) error = posix_spawn_file_actions_addclosefrom_np(&actions_, kGateFd + 1);
    if (error == 0 && !directory.empty()) {
      error = posix_spawn_file_actions_addchdir_np(&actions_, directory.c_str());
    }
    return error;
  }

  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

/// Whether a shell hands a variable of this name on: others, which Kubernetes and the kernel allow,
/// it drops.
bool passes_shells(std::string_view name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !name.empty() && is_letter(name.front()) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || is_digit(c); });
}

/// What the shell is started with, and what it starts once the gate is open.
struct Start {
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
};

/// Variables that the shell would drop are set behind it, by env. Only those: for a moment others
/// on the machine may read what is an argument.
Start start_of(const LaunchSpec& spec) {
  Start start{{"/bin/sh", "-c", kLauncher, spec.started.string()}, {}};
  std::vector<std::string> behind;
  for (const auto& [name, value] : spec.environment)
    (passes_shells(name) ? start.environment : behind).push_back(name + "=" + value);
  const auto add = [&](const std::vector<std::string>& more) {
    start.arguments.insert(start.arguments.end(), more.begin(), more.end());
  };
  if (!behind.empty()) {
    add({"/usr/bin/env", "--"});
    add(behind);
    // To env a path with '=' is one more variable.
    if (spec.command.front().find('=') != std::string::npos) add({"/usr/bin/nice", "-n", "0"});
  }
  add(spec.command);
  return start;
}

Result<pid_t> spawn(const LaunchSpec& spec, int log_fd, int gate_fd) {
  auto [arguments, environment] = start_of(spec);
  std::vector<char*> argv = pointers_to(arguments);
  std::vector<char*> envp = pointers_to(environment);
  SpawnOptions options;
  int error = options.set_up(log_fd, gate_fd, spec.working_directory);
  pid_t pid = 0;
  if (error == 0) {
    error = ::posix_spawn(&pid, argv[0], options.actions(), options.attributes(), argv.data(),
                          envp.data());
  }
  if (error != 0) return io_error("start " + spec.command.front(), error);
  return pid;
}

Result<UniqueFd> moved_up(UniqueFd fd, std::string_view what) {
  UniqueFd moved(::fcntl(fd.get(), F_DUPFD_CLOEXEC, kFirstSpareFd));
  if (!moved.valid()) return io_error(what, errno);
  return moved;
}

/// Lets the launcher go on. MSG_NOSIGNAL: it may have been killed meanwhile, which its pidfd tells.
Status open_gate(int gate_fd) {
  constexpr std::string_view kWord = "go\n";
  if (::send(gate_fd, kWord.data(), kWord.size(), MSG_NOSIGNAL) < 0 && errno != EPIPE) {
    return io_error("release a started process", errno);
  }
  return {};
}

}  // namespace

Result<std::string> boot_id() {
  TRAINYARD_ASSIGN(std::string id, read_file("/proc/sys/kernel/random/boot_id", kMaxStatBytes));
  while (!id.empty() && id.back() == '\n')
    id.pop_back();
  return id;
}

Result<ProcessId> identify(pid_t pid) {
  const std::optional<Stat> stat = read_stat(pid);
  if (!stat || !is_running(*stat)) {
    return Error{ErrorCode::kNotFound, "process " + std::to_string(pid) + " is not running"};
  }
  TRAINYARD_ASSIGN(std::string boot, boot_id());
  return ProcessId{pid, stat->start_ticks, std::move(boot)};
}

Result<UniqueFd> open_process(const ProcessId& process) {
  // By number: glibc 2.36 declares its wrapper without C linkage.
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!fd.valid() && errno != ESRCH) {
    return io_error("pidfd_open " + std::to_string(process.pid), errno);
  }
  // Looked at after the descriptor is open: it then means this process whatever comes later.
  const std::optional<Stat> stat = read_stat(process.pid);
  TRAINYARD_ASSIGN(const std::string boot, boot_id());
  const bool same = stat && stat->start_ticks == process.start_ticks && boot == process.boot_id;
  if (!fd.valid() || !same) {
    return Error{ErrorCode::kNotFound,
                 "process " + std::to_string(process.pid) + " does not exist any more"};
  }
  return fd;
}

bool is_stopped(const ProcessId& process) {
  const std::optional<Stat> stat = read_stat(process.pid);
  return stat && stat->start_ticks == process.start_ticks &&
         (stat->state == 'T' || stat->state == 't');
}

Status check_program(const std::filesystem::path& path, const std::string& what) {
  const auto refused = [&](const std::string& found) {
    return Error{ErrorCode::kInvalidConfig,
                 what + " " + (path.empty() ? "(none)" : path.string()) + ": found " + found +
                     ", wanted the absolute path of an executable program"};
  };
  std::error_code code;
  const auto status = std::filesystem::status(path, code);
  if (!path.is_absolute()) return refused("no absolute path");
  if (status.type() == std::filesystem::file_type::not_found) return refused("nothing");
  if (code) return refused(code.message());
  if (!std::filesystem::is_regular_file(status)) return refused("no regular file");
  if (::access(path.c_str(), X_OK) != 0) return refused("no permission to execute it");
  // Without the right to read it, only its start will tell.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return {};
  char head[4] = {};
  const ssize_t count = ::read(fd.get(), head, sizeof head);
  const std::string_view start(head, static_cast<size_t>(std::max<ssize_t>(count, 0)));
  if (start ==
          "\x7f"
          "ELF" ||
      start.starts_with("#!"))
    return {};
  return refused("neither a binary nor a script");
}

Result<ProcessId> launch(const LaunchSpec& spec,
                         const std::function<Status(const ProcessId&)>& on_identified) {
  UniqueFd log(
      ::open(spec.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!log.valid()) return io_error("open " + spec.log.string(), errno);
  TRAINYARD_ASSIGN(log, moved_up(std::move(log), "duplicate a descriptor"));
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return io_error("socketpair", errno);
  }
  UniqueFd ours(ends[0]);
  TRAINYARD_ASSIGN(UniqueFd theirs, moved_up(UniqueFd(ends[1]), "duplicate a descriptor"));
  TRAINYARD_ASSIGN(const pid_t pid, spawn(spec, log.get(), theirs.get()));
  theirs.reset();

  Result<ProcessId> process = identify(pid);
  Status recorded = process ? on_identified(*process) : Status(process.error());
  if (recorded) recorded = open_gate(ours.get());
  if (!recorded) {
    ours.reset();
    ::kill(pid, SIGKILL);  // our child, not reaped: the pid is still its own
    ::waitpid(pid, nullptr, 0);
    return recorded.error();
  }
  return process;
}

std::optional<ChildExit> child_exit(int pidfd) {
  siginfo_t info{};
  const auto id = static_cast<id_t>(pidfd);
  if (::waitid(P_PIDFD, id, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
    return std::nullopt;
  }
  if (info.si_code == CLD_EXITED) return ChildExit{info.si_status, std::nullopt};
  return ChildExit{128 + info.si_status, info.si_status};
}

void send_signal(int pidfd, int signal) {
  ::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0);
}

void reap(int pidfd) {
  siginfo_t info{};
  ::waitid(P_PIDFD, static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG);
}

void kill_process(const ProcessId& process) {
  const Result<UniqueFd> fd = open_process(process);
  if (fd) send_signal(fd->get(), SIGKILL);
}

std::vector<ProcessId> session_members(pid_t leader_pid) {
  std::vector<ProcessId> members;
  const Result<std::string> boot = boot_id();
  if (!boot) return members;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", code)) {
    const std::string name = entry.path().filename().string();
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc() || end != name.data() + name.size()) continue;
    const std::optional<Stat> stat = read_stat(pid);
    if (stat && stat->session == leader_pid && is_running(*stat)) {
      members.push_back({pid, stat->start_ticks, *boot});
    }
  }
  return members;
}

void kill_session(const ProcessId& leader) {
  if (const Result<std::string> boot = boot_id(); !boot || *boot != leader.boot_id) return;
  for (int round = 0; round < kMaxRounds; ++round) {
    // A session's id is not given to a new process while the session has members; so a process that
    // has the pid with another start time proves that the session is over.
    const std::optional<Stat> holder = read_stat(leader.pid);
    if (holder && holder->start_ticks != leader.start_ticks) return;
    const std::vector<ProcessId> members = session_members(leader.pid);
    if (members.empty()) return;
    for (const ProcessId& member : members)
      kill_process(member);
  }
}

}  // namespace trainyard::control::local
