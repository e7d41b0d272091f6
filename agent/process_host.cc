#include "agent/process_host.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <signal.h>
#include <sstream>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "agent/line_buffer.h"
#include "agent/progress_page.h"
#include "agent/rank_environment.h"
#include "agent/rank_log.h"
#include "agent/spawn.h"
#include "common/io/file.h"
#include "common/log/text.h"
#include "common/proto/coordination.pb.h"
#include "common/worker_contract.h"

namespace trainyard::agent {
namespace {

/// Longest line of output kept whole.
constexpr size_t kMaxOutputLineBytes = 16 << 10;
/// Size at which a rank's log is put aside; two files a rank at most.
constexpr int64_t kMaxLogBytes = 16 << 20;
/// Read from one descriptor before others have their turn.
constexpr int64_t kTurnBytes = 256 << 10;
/// Lines that wait for a rank which does not read; more are dropped with the rank's life.
constexpr size_t kMaxUnsentBytes = 8 << 20;
/// What is read of a rank that has ended: more than a pipe holds, but a bound, as what it has
/// started may go on writing for ever.
constexpr int64_t kLastBytes = 2 << 20;
/// Processes that an error names.
constexpr size_t kMaxNamed = 5;
/// Between two looks at processes that are to end.
constexpr std::chrono::milliseconds kLookInterval{5};

Result<std::pair<UniqueFd, UniqueFd>> make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return io_error("pipe for a rank's output", errno);
  std::pair<UniqueFd, UniqueFd> ends{UniqueFd(fds[0]), UniqueFd(fds[1])};
  // Ours only: the rank's own end must block, as programs expect of their output.
  if (::fcntl(fds[0], F_SETFL, O_NONBLOCK) != 0) return io_error("fcntl of a pipe", errno);
  return ends;
}

Result<std::pair<UniqueFd, UniqueFd>> make_socket_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    return io_error("socketpair for a rank", errno);
  }
  std::pair<UniqueFd, UniqueFd> ends{UniqueFd(fds[0]), UniqueFd(fds[1])};
  if (::fcntl(fds[0], F_SETFL, O_NONBLOCK) != 0) return io_error("fcntl of a socket", errno);
  return ends;
}

/// Whether somebody has stopped the process: proc(5), the state behind the name in parentheses.
bool is_stopped(pid_t pid) {
  constexpr int64_t kMaxStatBytes = 4096;
  const auto stat = read_file("/proc/" + std::to_string(pid) + "/stat", kMaxStatBytes);
  if (!stat) return false;
  const size_t name_end = stat->rfind(") ");
  if (name_end == std::string::npos || name_end + 2 >= stat->size()) return false;
  const char state = (*stat)[name_end + 2];
  return state == 'T' || state == 't';
}

/// Reads `fd` into `on_bytes`; closes it at its end.
template <class OnBytes>
void drain(UniqueFd& fd, int64_t limit_bytes, OnBytes on_bytes) {
  char buffer[1 << 14];
  for (int64_t total = 0; fd.valid() && total < limit_bytes;) {
    const ssize_t count = ::read(fd.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) return fd.reset();
    on_bytes(std::string_view(buffer, static_cast<size_t>(count)));
    total += count;
  }
}

/// Memory that a process occupies; 0 when it is gone.
int64_t resident_bytes(pid_t pid) {
  const auto statm = read_file("/proc/" + std::to_string(pid) + "/statm", 256);
  if (!statm) return 0;
  std::istringstream words(*statm);
  int64_t size_pages = 0;
  int64_t resident_pages = 0;
  words >> size_pages >> resident_pages;  // proc(5): in pages
  return words ? resident_pages * ::sysconf(_SC_PAGESIZE) : 0;
}

/// "1234 (python3)".
std::string name_of_process(pid_t pid) {
  const std::string number = std::to_string(pid);
  const auto name = read_file("/proc/" + number + "/comm", 256);
  return number + " (" + (name ? printable_text(name->substr(0, name->find('\n')), 64) : "?") + ")";
}

/// Children of this process, adopted ones among them.
std::vector<pid_t> children() {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    const auto of_thread = read_file(task.path() / "children", 1 << 20);
    if (!of_thread) continue;
    std::istringstream pids(*of_thread);
    for (pid_t pid = 0; pids >> pid;)
      found.push_back(pid);
  }
  return found;
}

std::string names_of(const std::vector<pid_t>& processes) {
  std::string names;
  for (size_t i = 0; i < std::min(processes.size(), kMaxNamed); ++i)
    names += (i == 0 ? "" : ", ") + name_of_process(processes[i]);
  if (processes.size() > kMaxNamed) {
    names += " and " + std::to_string(processes.size() - kMaxNamed) + " more";
  }
  return names;
}

/// Reaps what has ended and kills the rest. Errors: kUnavailable, naming the rest.
Status kill_children() {
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
  const std::vector<pid_t> left = children();
  for (const pid_t pid : left)
    ::kill(pid, SIGKILL);
  if (left.empty()) return {};
  return Error{
      ErrorCode::kUnavailable,
      "processes that ranks have started are killed but have not ended: " + names_of(left)};
}

}  // namespace

struct ProcessHost::Process {
  Process(SharedProgressPage shared, RankLog output_log)
      : page(std::move(shared)), log(std::move(output_log)) {}

  pid_t pid = -1;
  bool ended = false;
  SharedProgressPage page;
  coordination::RankProgress progress;  ///< the newest reading
  int64_t resident_bytes = 0;           ///< the newest that was not zero
  UniqueFd socket;
  UniqueFd output[2];
  LineBuffer messages{static_cast<size_t>(contract::kMaxMessageBytes)};
  LineBuffer lines[2] = {LineBuffer{kMaxOutputLineBytes, LineBuffer::Ends::kNewlineOrReturn},
                         LineBuffer{kMaxOutputLineBytes, LineBuffer::Ends::kNewlineOrReturn}};
  std::string unsent;
  RankLog log;
  size_t gpu_errors_before = 0;
};

ProcessHost::ProcessHost(const AgentOptions& options, std::vector<std::string> environment,
                         const GpuWatch* gpus)
    : options_(options), environment_(std::move(environment)), gpus_(gpus) {}

ProcessHost::~ProcessHost() {
  for (const auto& process : processes_) {
    if (!process->ended) ::kill(process->pid, SIGKILL);
  }
  const auto deadline = std::chrono::steady_clock::now() + kEndTimeout;
  for (const auto& process : processes_) {
    while (!process->ended && std::chrono::steady_clock::now() < deadline) {
      process->ended = ::waitpid(process->pid, nullptr, WNOHANG) != 0;
      if (!process->ended) std::this_thread::sleep_for(kLookInterval);
    }
  }
}

Status ProcessHost::start(const RankLaunch& launch) {
  TRAINYARD_ASSIGN(SharedProgressPage page, SharedProgressPage::create());
  TRAINYARD_ASSIGN(auto socket, make_socket_pair());
  TRAINYARD_ASSIGN(auto standard_output, make_pipe());
  TRAINYARD_ASSIGN(auto standard_error, make_pipe());
  SpawnRequest request;
  request.argv = options_.command;
  if (options_.is_engine()) request.argv = {options_.worker.string()};
  const bool keeps_states = options_.keeps_states && options_.is_engine();
  request.environment =
      rank_environment(options_, launch, environment_, kFirstInheritedFd, kFirstInheritedFd + 1,
                       keeps_states ? kFirstInheritedFd + 2 : -1);
  request.stdout_fd = standard_output.second.get();
  request.stderr_fd = standard_error.second.get();
  request.inherited_fds = {page.fd(), socket.second.get()};
  if (keeps_states) {
    TRAINYARD_ASSIGN(const int memory_fd, memory_file(processes_.size()));
    request.inherited_fds.push_back(memory_fd);
  }
  TRAINYARD_ASSIGN(const pid_t pid, spawn(request));
  auto process = std::make_unique<Process>(std::move(page), log_of(launch.rank));
  process->pid = pid;
  if (gpus_ != nullptr) process->gpu_errors_before = gpus_->errors();
  process->socket = std::move(socket.first);
  process->output[0] = std::move(standard_output.first);
  process->output[1] = std::move(standard_error.first);
  processes_.push_back(std::move(process));
  return {};
}

Result<int> ProcessHost::memory_file(size_t local_rank) {
  while (memory_files_.size() <= local_rank) {
    UniqueFd fd(::memfd_create("trainyard-states", MFD_CLOEXEC));
    if (!fd.valid()) return io_error("memfd_create for the states of a rank", errno);
    memory_files_.push_back(std::move(fd));
  }
  return memory_files_[local_rank].get();
}

Status ProcessHost::clear() {
  TRAINYARD_TRY(kill_children());
  processes_.clear();
  return {};
}

std::string ProcessHost::left() const { return names_of(children()); }

/// In a pod what ranks print is the container's output.
RankLog ProcessHost::log_of(int rank) const {
  const std::string name = "rank-" + std::to_string(rank);
  if (options_.pod_dir.empty()) return RankLog::to_standard_output("[" + name + "] ");
  return {options_.pod_dir / (name + ".log"), kMaxLogBytes};
}

int64_t ProcessHost::pid(int local_rank) const {
  return processes_[static_cast<size_t>(local_rank)]->pid;
}

void ProcessHost::send(int local_rank, const std::string& line) {
  Process& process = *processes_[static_cast<size_t>(local_rank)];
  if (!process.socket.valid() || process.unsent.size() + line.size() > kMaxUnsentBytes) return;
  process.unsent += line;
  write_unsent(process);
}

void ProcessHost::signal(int local_rank, int signal_number) {
  const Process& process = *processes_[static_cast<size_t>(local_rank)];
  // Only we reap it, so until then the pid is its own.
  if (!process.ended) ::kill(process.pid, signal_number);
}

void ProcessHost::read_progress(int local_rank, coordination::RankProgress& progress) const {
  Process& process = *processes_[static_cast<size_t>(local_rank)];
  const int rank = progress.rank();
  agent::read_progress(process.page.page(), process.progress);
  process.progress.set_stopped(!process.ended && is_stopped(process.pid));
  progress = process.progress;
  progress.set_rank(rank);
}

contract::RankCountersReading ProcessHost::read_counters(int local_rank) const {
  Process& process = *processes_[static_cast<size_t>(local_rank)];
  contract::RankCountersReading reading;
  const contract::ProgressPage& page = process.page.page();
  if (page.magic.load(std::memory_order_acquire) == contract::kProgressMagic) {
    reading = contract::read_counters(page.counters);
  }
  // What ended occupies nothing; what it occupied last is worth knowing.
  const int64_t resident = process.ended ? 0 : resident_bytes(process.pid);
  if (resident > 0) process.resident_bytes = resident;
  reading.resident_bytes = process.resident_bytes;
  return reading;
}

std::vector<std::string> ProcessHost::last_lines(int local_rank) const {
  return processes_[static_cast<size_t>(local_rank)]->log.last_lines();
}

void ProcessHost::add_poll_fds(std::vector<pollfd>& fds) const {
  for (const auto& process : processes_) {
    if (process->socket.valid()) {
      const int events = POLLIN | (process->unsent.empty() ? 0 : POLLOUT);
      fds.push_back({process->socket.get(), static_cast<int16_t>(events), 0});
    }
    for (const UniqueFd& output : process->output) {
      if (output.valid()) fds.push_back({output.get(), POLLIN, 0});
    }
  }
}

void ProcessHost::serve(const pollfd& ready, const Listener& listener) {
  if (ready.revents == 0) return;
  for (const auto& process : processes_) {
    if (process->socket.get() == ready.fd) {
      if ((ready.revents & POLLOUT) != 0) write_unsent(*process);
      return read_messages(*process, kTurnBytes, listener);
    }
    for (size_t stream = 0; stream < 2; ++stream) {
      if (process->output[stream].get() == ready.fd) {
        return read_output(*process, stream, kTurnBytes);
      }
    }
  }
}

void ProcessHost::reap(const Listener& listener) {
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    for (size_t i = 0; i < processes_.size(); ++i) {
      Process& process = *processes_[i];
      if (process.pid != pid || process.ended) continue;
      process.ended = true;
      read_messages(process, kLastBytes, listener);
      for (size_t stream = 0; stream < 2; ++stream)
        read_output(process, stream, kLastBytes);
      for (LineBuffer& lines : process.lines)
        lines.finish([&](std::string_view line) { process.log.add_line(line); });
      process.socket.reset();
      RankEnd end;
      if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
      if (end.signal == SIGKILL) end.out_of_memory = oom_watch_.any_since();
      if (WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
      if (gpus_ != nullptr && options_.may_use_gpus() && status != 0) {
        // A program of one's own may use any of them.
        const int gpu = options_.is_engine() && gpus_->count() > 1 ? static_cast<int>(i) : -1;
        end.gpu = gpus_->failure(process.gpu_errors_before, gpu);
      }
      listener.on_end(static_cast<int>(i), end);
      break;  // whoever listens may have cleared the list
    }
  }
}

void ProcessHost::read_messages(Process& process, int64_t limit_bytes, const Listener& listener) {
  int local_rank = 0;
  while (processes_[static_cast<size_t>(local_rank)].get() != &process)
    ++local_rank;
  drain(process.socket, limit_bytes, [&](std::string_view bytes) {
    process.messages.add(bytes, [&](std::string_view line) {
      if (!line.empty()) listener.on_line(local_rank, std::string(line));
    });
  });
}

void ProcessHost::read_output(Process& process, size_t stream, int64_t limit_bytes) {
  drain(process.output[stream], limit_bytes, [&](std::string_view bytes) {
    process.lines[stream].add(bytes, [&](std::string_view line) { process.log.add_line(line); });
  });
}

void ProcessHost::write_unsent(Process& process) {
  while (!process.unsent.empty()) {
    const ssize_t count = ::send(process.socket.get(), process.unsent.data(), process.unsent.size(),
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;      // POLLOUT will come
    if (count < 0) return process.unsent.clear();  // the rank is gone; its end is on the way
    process.unsent.erase(0, static_cast<size_t>(count));
  }
}

Status end_adopted_children(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    Status ended = kill_children();
    if (ended || std::chrono::steady_clock::now() >= deadline) return ended;
    std::this_thread::sleep_for(kLookInterval);
  }
}

}  // namespace trainyard::agent
