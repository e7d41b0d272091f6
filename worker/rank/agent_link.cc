#include "worker/rank/agent_link.h"

#include <array>
#include <cerrno>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace trainyard::engine {
namespace {

/// How often the reader looks at its stop token; nothing else waits for this.
constexpr int kPollMilliseconds = 100;

}  // namespace

Result<std::unique_ptr<AgentLink>> AgentLink::open(int fd, std::function<void()> on_dump_stacks) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  UniqueFd signals(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.valid()) return io_error("signalfd for SIGTERM", errno);
  return std::unique_ptr<AgentLink>(
      new AgentLink(UniqueFd(fd), std::move(signals), std::move(on_dump_stacks)));
}

AgentLink::AgentLink(UniqueFd socket, UniqueFd signals, std::function<void()> on_dump_stacks)
    : socket_(std::move(socket)),
      signals_(std::move(signals)),
      on_dump_stacks_(std::move(on_dump_stacks)),
      reader_([this](const std::stop_token& token) { read_loop(token); }) {}

AgentLink::~AgentLink() = default;

Status AgentLink::send(const std::string& line) {
  if (!socket_.valid()) return {};
  const std::string framed = line.ends_with('\n') ? line : line + "\n";
  const std::lock_guard lock(sending_);
  size_t sent = 0;
  while (sent < framed.size()) {
    const ssize_t n =
        ::send(socket_.get(), framed.data() + sent, framed.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error("send to the agent", errno);
    sent += static_cast<size_t>(n);
  }
  return {};
}

Result<contract::Start> AgentLink::wait_start(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] {
    return start_.has_value() || !failure_.empty() || stop_.load(std::memory_order_acquire);
  });
  if (start_) return *start_;
  if (!failure_.empty()) return Error{ErrorCode::kAborted, failure_};
  if (stop_requested()) return Error{ErrorCode::kAborted, "asked to stop before the start message"};
  return Error{ErrorCode::kDeadline, "no start message from the agent within " +
                                         std::to_string(timeout.count()) +
                                         " ms: another rank may not have started"};
}

void AgentLink::handle(const std::string& line) {
  const Result<std::string> type = contract::message_type(line);
  if (type && *type == "stop") {
    const std::lock_guard lock(mutex_);  // or wait_start() looks before and sleeps after
    stop_.store(true, std::memory_order_release);
  } else if (type && *type == "dumpStacks") {
    if (on_dump_stacks_) on_dump_stacks_();
  } else if (type && *type == "start") {
    Result<contract::Start> start = contract::decode_start(line);
    const std::lock_guard lock(mutex_);
    if (start) {
      start_ = *std::move(start);
    } else {
      failure_ = start.error().message;
    }
  } else {
    const std::lock_guard lock(mutex_);
    failure_ = type ? "unknown message type " + *type + " from the agent" : type.error().message;
  }
  changed_.notify_all();
}

void AgentLink::read_loop(const std::stop_token& token) {
  std::string pending;
  std::array<char, 4096> buffer{};
  bool open = socket_.valid();
  while (!token.stop_requested()) {
    std::array<pollfd, 2> watched = {pollfd{signals_.get(), POLLIN, 0},
                                     pollfd{open ? socket_.get() : -1, POLLIN, 0}};
    if (::poll(watched.data(), watched.size(), kPollMilliseconds) <= 0) continue;
    if ((watched[0].revents & POLLIN) != 0) {
      signalfd_siginfo info{};
      bool from_outside = false;
      while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info))
        from_outside |= static_cast<pid_t>(info.ssi_pid) != ::getppid();
      // Before peers hear of it, and end as this rank does.
      if (from_outside) (void)send(contract::encode(contract::AskedToEnd{}));
      {
        const std::lock_guard lock(mutex_);
        stop_.store(true, std::memory_order_release);
      }
      changed_.notify_all();
    }
    if (!open || (watched[1].revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
    const ssize_t n = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n > 0) pending.append(buffer.data(), static_cast<size_t>(n));
    const bool oversized = static_cast<int64_t>(pending.size()) > contract::kMaxMessageBytes;
    if (n <= 0 || oversized) {
      open = false;
      const std::lock_guard lock(mutex_);
      failure_ = oversized ? "a message from the agent is too long" : "the agent is gone";
      stop_.store(true, std::memory_order_release);
      changed_.notify_all();
      continue;
    }
    for (size_t end; (end = pending.find('\n')) != std::string::npos;) {
      handle(pending.substr(0, end));
      pending.erase(0, end + 1);
    }
  }
}

}  // namespace trainyard::engine
