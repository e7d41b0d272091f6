#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "common/base/error.h"
#include "common/base/unique_fd.h"

/// Processes named so that a reused pid is never mistaken for the one that was meant.
namespace trainyard::control::local {

/// One process of one boot: a pid alone may come again.
struct ProcessId {
  pid_t pid = 0;
  uint64_t start_ticks = 0;  ///< field 22 of /proc/<pid>/stat, clock ticks since boot
  std::string boot_id;       ///< /proc/sys/kernel/random/boot_id

  bool operator==(const ProcessId&) const = default;
};

/// This boot's id. Errors: kIo.
Result<std::string> boot_id();

/// The identity of a process that exists. Errors: kNotFound when it is gone or a zombie.
Result<ProcessId> identify(pid_t pid);

/// A descriptor that is readable once the process has ended, a zombie's at once. Errors: kNotFound
/// when exactly this process does not exist any more; kIo.
Result<UniqueFd> open_process(const ProcessId& process);

/// Whether exactly this process exists and is stopped (SIGSTOP, or a debugger has it).
bool is_stopped(const ProcessId& process);

/// Refuses what cannot be started: no absolute path, nothing there, no regular file, not
/// executable, neither a binary of this system's kind nor a script. `what` names it in the message.
/// Errors: kInvalidConfig.
Status check_program(const std::filesystem::path& path, const std::string& what);

/// What to start.
struct LaunchSpec {
  std::vector<std::string> command;                ///< the first an absolute path
  std::map<std::string, std::string> environment;  ///< the whole of it
  std::filesystem::path log;                       ///< standard output and error are appended here
  std::filesystem::path working_directory;         ///< empty: the caller's
  std::filesystem::path started = "/dev/null";     ///< a file, made as the command begins
};

/// Starts a process in a session of its own, that waits before it executes `command` until
/// `on_identified` (called with its identity, on this thread) has returned success; otherwise, or
/// if this process dies meanwhile, it ends without executing it. No code of ours runs between fork
/// and exec (posix_spawn of /bin/sh, which reads one line and executes, through /usr/bin/env where
/// variables have names that no shell hands on), so threads and locks of this process do not
/// matter. Errors: on_identified's; kIo.
Result<ProcessId> launch(const LaunchSpec& spec,
                         const std::function<Status(const ProcessId&)>& on_identified);

/// How a child ended, without reaping it. nullopt: it is no child of this process, or still runs.
struct ChildExit {
  int exit_code = 0;  ///< 128 + signal for one that a signal ended
  std::optional<int> signal;
};
std::optional<ChildExit> child_exit(int pidfd);

/// Sends a signal to exactly that process; nothing when it has ended.
void send_signal(int pidfd, int signal);

/// Reaps an ended child; nothing for anybody else's.
void reap(int pidfd);

/// SIGKILL to exactly that process; nothing when it has ended, whoever has its pid now.
void kill_process(const ProcessId& process);

/// Kills every process of the session that `leader` leads or led, again until none is left
/// (children made meanwhile) or `kMaxRounds` are over. Ends nothing else: neither when the leader's
/// pid has come to another process, nor when a member ends and its pid comes to somebody between
/// the look and the kill.
void kill_session(const ProcessId& leader);

/// How often kill_session looks for processes made meanwhile.
inline constexpr int kMaxRounds = 20;

/// The processes in the session of `leader_pid`, zombies left out; none where this boot has no id.
std::vector<ProcessId> session_members(pid_t leader_pid);

}  // namespace trainyard::control::local
