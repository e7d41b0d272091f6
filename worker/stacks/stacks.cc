#include "worker/stacks/stacks.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <signal.h>
#include <string>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace trainyard::engine {
namespace {

constexpr int kSignal = SIGUSR2;
constexpr int kFramesMax = 48;
constexpr size_t kThreadsMax = 64;
constexpr std::chrono::milliseconds kThreadTimeout{200};
constexpr std::chrono::milliseconds kPoll{1};
/// backtrace's own frame, the handler's and the kernel's trampoline say nothing.
constexpr int kHandlerFrames = 2;

enum SlotState : int { kFree, kAsked, kAnswered };

/// Where one thread's handler leaves its stack. A thread that answers too late still owns its slot,
/// which is then not used again.
struct Slot {
  std::atomic<int> state{kFree};
  std::atomic<pid_t> thread{0};
  int count = 0;
  std::array<void*, kFramesMax> frames{};
};

/// A signal handler has no argument to reach them through; nothing else is shared by the process.
std::array<Slot, kThreadsMax> slots;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
std::mutex dump_mutex;                // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

pid_t own_thread() { return static_cast<pid_t>(::syscall(SYS_gettid)); }

/// Async-signal-safe: backtrace() has loaded its unwinder when dumps were enabled, and finds frames
/// without locks since glibc 2.35 (_dl_find_object).
void on_signal(int) {
  const int saved_errno = errno;
  const pid_t self = own_thread();
  for (Slot& slot : slots) {
    if (slot.state.load(std::memory_order_acquire) != kAsked) continue;
    if (slot.thread.load(std::memory_order_relaxed) != self) continue;
    slot.count = ::backtrace(slot.frames.data(), kFramesMax);
    slot.state.store(kAnswered, std::memory_order_release);
    break;
  }
  errno = saved_errno;
}

std::vector<pid_t> threads() {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error))
    found.push_back(std::atoi(entry.path().filename().c_str()));
  std::sort(found.begin(), found.end());
  if (found.size() > kThreadsMax) found.resize(kThreadsMax);
  return found;
}

std::string name_of(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/comm");
  std::string name;
  std::getline(file, name);
  return name;
}

std::string readable(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(symbol, nullptr, nullptr, &status), &std::free);
  return status == 0 && plain ? plain.get() : symbol;
}

/// "Interpreter::gather(int) +0x12 (trainyard-worker +0x4f3a1)": the offsets are what addr2line
/// wants.
std::string describe(void* address) {
  char digits[32];
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
    std::snprintf(digits, sizeof digits, "%p", address);
    return digits;
  }
  const auto offset = [&](const void* base) {
    std::snprintf(digits, sizeof digits, " +0x%tx",
                  static_cast<const char*>(address) - static_cast<const char*>(base));
    return std::string(digits);
  };
  std::string text;
  if (info.dli_sname != nullptr) text = readable(info.dli_sname) + offset(info.dli_saddr) + " ";
  const std::string file = std::filesystem::path(info.dli_fname).filename().string();
  return text + "(" + file + offset(info.dli_fbase) + ")";
}

void print(const std::string& line) {
  const std::string whole = line + "\n";
  // One line, one write: the agent keeps lines apart. What cannot be printed is lost.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, whole.data(), whole.size());
}

void print_stack(pid_t thread, void* const* frames, int count, int skip) {
  print("thread " + std::to_string(thread) + " (" + name_of(thread) + ")");
  for (int i = skip; i < count; ++i)
    print("  #" + std::to_string(i - skip) + " " + describe(frames[i]));
}

void ask(pid_t thread) {
  const auto slot = std::find_if(slots.begin(), slots.end(), [](const Slot& other) {
    return other.state.load(std::memory_order_acquire) == kFree;
  });
  if (slot == slots.end()) return;
  slot->thread.store(thread, std::memory_order_relaxed);
  slot->state.store(kAsked, std::memory_order_release);
  const auto deadline = std::chrono::steady_clock::now() + kThreadTimeout;
  if (::syscall(SYS_tgkill, ::getpid(), thread, kSignal) != 0) {
    slot->state.store(kFree, std::memory_order_release);
    return;  // ended meanwhile
  }
  while (slot->state.load(std::memory_order_acquire) != kAnswered) {
    if (std::chrono::steady_clock::now() >= deadline) {
      print("thread " + std::to_string(thread) + " (" + name_of(thread) + ") does not answer");
      return;
    }
    std::this_thread::sleep_for(kPoll);
  }
  print_stack(thread, slot->frames.data(), slot->count, kHandlerFrames);
  slot->state.store(kFree, std::memory_order_release);
}

}  // namespace

Status enable_stack_dumps() {
  void* frames[1];
  ::backtrace(frames, 1);  // loads the unwinder now, not in the handler
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  if (::sigaction(kSignal, &action, nullptr) != 0) return io_error("sigaction of SIGUSR2", errno);
  return {};
}

void dump_stacks() {
  const std::unique_lock lock(dump_mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;
  const std::vector<pid_t> all = threads();
  print("stacks of " + std::to_string(all.size()) + " threads of process " +
        std::to_string(::getpid()));
  const pid_t self = own_thread();
  for (const pid_t thread : all) {
    if (thread != self) ask(thread);
  }
  print("end of stacks");
}

}  // namespace trainyard::engine
