// Fibers, the threads of a block, and barriers.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <sys/mman.h>

#include "kernels/simt/emulator/state.h"

namespace trainyard::simt {
namespace detail {

Observer* observer = nullptr;
Builtins builtins;
Device device;
EmulationCounters counters;
thread_local cudaError_t last_error = cudaSuccess;
/// Other threads of the host may run host code meanwhile.
thread_local bool runs_grid = false;

namespace {

namespace context = boost::context::detail;

constexpr size_t kStackBytes = size_t{64} * 1024;
constexpr size_t kGuardBytes = 4096;

EmulationOptions the_options;

std::string text_of(const uint3& i) {
  return "(" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) + ")";
}
std::string text_of(Site site) { return std::string(site.file) + ":" + std::to_string(site.line); }
bool is_same(Site a, Site b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

void switch_to(Fiber& to, bool is_last) {
  Fiber& from = *device.current;
  device.current = &to;
  builtins.thread = to.thread;
#if SIMT_ASAN
  if (is_last) {  // frames that are never left would stay poisoned for the stack's next user
    const auto* const here = static_cast<const std::byte*>(__builtin_frame_address(0)) - 1024;
    const auto* const end = static_cast<const std::byte*>(from.stack) + from.stack_bytes;
    __asan_unpoison_memory_region(here, static_cast<size_t>(end - here));
  }
  __sanitizer_start_switch_fiber(is_last ? nullptr : &from.fake_stack, to.stack, to.stack_bytes);
#else
  (void)is_last;
#endif
  const context::transfer_t back = context::jump_fcontext(to.context, &from);
  static_cast<Fiber*>(back.data)->context = back.fctx;
#if SIMT_ASAN
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

Fiber* next_ready() {
  std::vector<Fiber*>& ready = device.ready;
  const size_t count = ready.size() - device.ready_first;
  if (is_random()) {
    std::swap(ready[device.ready_first], ready[device.ready_first + draw(count)]);
  }
  Fiber* const fiber = ready[device.ready_first++];
  if (device.ready_first > kThreadsMax) {  // the front part has run
    ready.erase(ready.begin(), ready.begin() + static_cast<ptrdiff_t>(device.ready_first));
    device.ready_first = 0;
  }
  return fiber;
}

/// Who waits for what, when nobody can go on.
std::string stuck_text() {
  struct Group {
    const Fiber* first;
    uint32_t count;
  };
  std::vector<Group> groups;
  for (uint32_t i = 0; i < device.threads; ++i) {
    const Fiber& fiber = *device.fibers[i];
    if (fiber.waits_for == nullptr) continue;
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& g) {
      return std::strcmp(g.first->waits_for, fiber.waits_for) == 0 &&
             is_same(g.first->site, fiber.site);
    });
    if (same == groups.end()) {
      groups.push_back({&fiber, 1});
    } else {
      ++same->count;
    }
  }
  std::string text = "deadlock in block " + text_of(builtins.block) + ":";
  for (const Group& g : groups) {
    text += " " + std::to_string(g.count) + " threads (first " + text_of(g.first->thread) +
            ") wait at " + g.first->waits_for + " " + text_of(g.first->site) + ";";
  }
  return text + " " + std::to_string(device.threads - device.alive) + " of " +
         std::to_string(device.threads) + " have returned";
}

void run_others(bool is_last) {
  if (device.ready_first == device.ready.size()) {
    note_failure(stuck_text());
    switch_to(device.main, is_last);
  }
  Fiber* const next = next_ready();
  if (next != device.current) switch_to(*next, is_last);
}

void release_barrier() {
  if (observer != nullptr) observer->threads_synced();
  for (Fiber* const fiber : device.at_barrier) {
    if (fiber != device.current) wake(*fiber);
  }
  device.at_barrier.clear();
}

/// The fiber never runs again, unless a new block starts on its stack.
void thread_returns() {
  Fiber& self = *device.current;
  if (!self.copies.empty()) {
    note_failure(where() + ": returns with a cp.async that it has not waited for");
    switch_to(device.main, true);
  }
  --device.alive;
  device.warps[self.id / 32].alive &= ~(1U << (self.id % 32));
  if (!device.at_barrier.empty()) {
    note_failure(where() + ": returns while " + std::to_string(device.at_barrier.size()) +
                 " threads wait at __syncthreads " + text_of(device.barrier));
    switch_to(device.main, true);
  }
  complete_meetings_without(self.id / 32);
  if (device.alive == 0) switch_to(device.main, true);
  run_others(true);
}

void fiber_main(context::transfer_t back) {
  static_cast<Fiber*>(back.data)->context = back.fctx;
#if SIMT_ASAN
  const void* stack = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  if (back.data == &device.main) {
    device.main.stack = stack;
    device.main.stack_bytes = bytes;
  }
#endif
  (*device.body)();
  thread_returns();
}

void provide_fibers() {
  if (device.stacks != nullptr) return;
  const size_t each = kStackBytes + kGuardBytes;
  void* const memory = mmap(nullptr, kThreadsMax * each, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  device.stacks = static_cast<std::byte*>(memory);
  for (uint32_t i = 0; i < kThreadsMax; ++i) {
    std::byte* const base = device.stacks + i * each;
    mprotect(base, kGuardBytes, PROT_NONE);
    auto fiber = std::make_unique<Fiber>();
    fiber->id = i;
    fiber->stack = base + kGuardBytes;
    fiber->stack_bytes = kStackBytes;
    device.fibers.push_back(std::move(fiber));
  }
}

void run_block() {
  Device& d = device;
  const dim3 size = builtins.block_size;
  d.threads = d.alive = size.x * size.y * size.z;
  d.ready.clear();
  d.ready_first = 0;
  d.at_barrier.clear();
  d.warps.assign((d.threads + 31) / 32, {});
  d.free_meetings.clear();
  for (const auto& meeting : d.meetings)
    d.free_meetings.push_back(meeting.get());
  std::memset(d.shared, kPoison, d.shared_bytes);
  for (uint32_t i = 0; i < d.threads; ++i) {
    Fiber& fiber = *d.fibers[i];
    fiber.thread = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    fiber.waits_for = nullptr;
    fiber.is_inside = false;
    fiber.copies.clear();
    fiber.copy_group = 0;
    auto* const top = static_cast<std::byte*>(const_cast<void*>(fiber.stack)) + fiber.stack_bytes;
    fiber.context = context::make_fcontext(top, fiber.stack_bytes, fiber_main);
    d.warps[i / 32].alive |= 1U << (i % 32);
    d.ready.push_back(&fiber);
  }
  if (observer != nullptr) observer->block_begins(d.shared, d.shared_bytes, d.threads);
  d.current = &d.main;
  switch_to(*next_ready(), false);
  d.current = nullptr;
  ++counters.blocks;
  counters.threads += d.threads;
#if SIMT_ASAN
  if (d.has_failed) {  // frames that were left in the middle
    __asan_unpoison_memory_region(d.stacks, kThreadsMax * (kStackBytes + kGuardBytes));
  }
#endif
}

}  // namespace

bool is_random() { return the_options.seed != 0; }
size_t draw(size_t count) {
  if (device.seeded_with != the_options.seed) {
    device.seeded_with = the_options.seed;
    device.random.seed(the_options.seed);
  }
  return device.random() % count;
}

cudaError_t refuse(cudaError_t error, const std::string& text, bool is_sticky) {
  last_error = error;
  if (is_sticky && device.sticky == cudaSuccess) device.sticky = error;
  if (device.error_text.empty()) device.error_text = text;
  if (the_options.print_errors) std::fprintf(stderr, "simt: %s\n", text.c_str());
  return error;
}

void note_failure(const std::string& text) {
  device.has_failed = true;
  refuse(cudaErrorLaunchFailure, text + " [kernel " + line_of(device.kernel) + "]", true);
}
void abandon_block() {
  switch_to(device.main, false);
  std::abort();  // the block's fibers are never resumed
}
void fail_at(Site site, const char* operation, const char* problem, int value) {
  const Outside outside;
  note_failure(where() + ": " + operation + " " + problem +
               (value < 0 ? "" : " " + std::to_string(value)) + ", " + text_of(site));
  abandon_block();
}

void wake(Fiber& fiber) {
  fiber.waits_for = nullptr;
  device.ready.push_back(&fiber);
}
void wait_here(const char* what, Site site) {
  device.current->waits_for = what;
  device.current->site = site;
  run_others(false);
}
void give_way() {
  if (!is_random()) return;
  device.ready.push_back(device.current);
  run_others(false);
}

void sync_threads(Site site) {
  const Outside outside;
  Device& d = device;
  if (d.alive != d.threads) {
    fail_at(site, "__syncthreads",
            "after threads have returned:", static_cast<int>(d.threads - d.alive));
  }
  if (!d.at_barrier.empty() && !is_same(d.barrier, site)) {
    fail_at(site, "__syncthreads", "while other threads wait at another __syncthreads, in line",
            d.barrier.line);
  }
  d.barrier = site;
  d.at_barrier.push_back(d.current);
  if (d.at_barrier.size() < d.alive) {
    wait_here("__syncthreads", site);
  } else {
    release_barrier();
    give_way();
  }
}

void run_grid(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes,
              const std::function<void()>& body) {
  provide_fibers();
  // Exactly as large as launched: AddressSanitizer sees one byte beyond it.
  void* shared = nullptr;
  if (posix_memalign(&shared, 128, std::max(shared_bytes, size_t{1})) != 0) std::abort();
  device.shared = static_cast<std::byte*>(shared);
  device.shared_bytes = shared_bytes;
  device.kernel = kernel;
  device.body = &body;
  builtins.grid_size = grid;
  builtins.block_size = block;
  std::vector<uint64_t> order(uint64_t{grid.x} * grid.y * grid.z);
  for (uint64_t i = 0; i < order.size(); ++i)
    order[i] = i;
  for (uint64_t i = order.size(); is_random() && i > 1; --i)
    std::swap(order[i - 1], order[draw(i)]);
  ++counters.launches;
  runs_grid = true;
  for (uint64_t i = 0; i < order.size() && !device.has_failed; ++i) {
    builtins.block = {static_cast<unsigned>(order[i] % grid.x),
                      static_cast<unsigned>(order[i] / grid.x % grid.y),
                      static_cast<unsigned>(order[i] / grid.x / grid.y)};
    run_block();
  }
  runs_grid = false;
  std::free(shared);
  device.shared = nullptr;
}

unsigned lane() { return device.current->id % 32; }
void enter_kernel(bool is_inside) { device.current->is_inside = is_inside; }
bool is_in_kernel() {
  return runs_grid && device.current != nullptr && device.current != &device.main;
}
void* dynamic_shared_bytes() { return device.shared; }

void touch(const void* address, size_t bytes, Access access, const void* pc) {
  const Outside outside;
  if (observer != nullptr) observer->access(address, bytes, access, pc);
}

std::string where() {
  if (!is_in_kernel()) return "on the host";
  return "block " + text_of(builtins.block) + ", thread " + text_of(device.current->thread);
}

std::string line_of(const void* pc) {
  Dl_info info{};
  if (dladdr(pc, &info) == 0 || info.dli_fname == nullptr) return "?";
  char command[512];
  std::snprintf(command, sizeof command, "addr2line -Cfpsie '%s' 0x%lx 2>/dev/null", info.dli_fname,
                reinterpret_cast<uintptr_t>(pc) - reinterpret_cast<uintptr_t>(info.dli_fbase));
  std::string text;
  if (FILE* const pipe = popen(command, "r")) {
    char buffer[256];
    while (std::fgets(buffer, sizeof buffer, pipe) != nullptr)
      text += buffer;
    pclose(pipe);
  }
  while (!text.empty() && text.back() == '\n')
    text.pop_back();
  // The outermost of the functions that are inlined into each other is the kernel.
  const size_t outermost = text.rfind("(inlined by) ");
  return outermost == std::string::npos ? text : text.substr(outermost + 13);
}

}  // namespace detail

EmulationOptions& emulation_options() { return detail::the_options; }
const EmulationCounters& emulation_counters() { return detail::counters; }
bool has_race_checker() { return detail::observer != nullptr; }
const std::string& emulation_error() { return detail::device.error_text; }

}  // namespace trainyard::simt

#if SIMT_ASAN
/// AddressSanitizer's report begins with where in the grid it was.
extern "C" void __asan_on_error() {
  using namespace trainyard::simt::detail;
  if (is_in_kernel()) std::fprintf(stderr, "simt: %s\n", where().c_str());
}
#endif
