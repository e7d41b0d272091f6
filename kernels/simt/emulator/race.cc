// The race checker. In race mode kernels are compiled with -fsanitize=thread but not linked with
// its runtime: the calls that the compiler puts at every access are defined here. For every 2 bytes
// of shared and device memory the checker knows who wrote and read them last, and when.
//
// It reports two accesses that nothing orders, one of them a write: by threads of a block without a
// barrier between them, by blocks of a launch, by operations of two streams without an event. It
// also reports reads of memory that nobody wrote, accesses outside allocations, and the use of a
// cp.async target that nobody has waited for.

#include <algorithm>
#include <link.h>
#include <memory>
#include <unordered_map>

#include "kernels/simt/emulator/state.h"

namespace trainyard::simt::detail {
namespace {

constexpr size_t kGranule = 2;  // two neighbouring bytes count as one
constexpr size_t kPageBytes = 4096;
constexpr uint16_t kNobody = 0xffff;

/// An access; time 0: none yet.
struct Mark {
  uint32_t time = 0;
  uint16_t thread = 0;
  bool is_atomic = false;
  const void* pc = nullptr;
};
struct Cell {
  Mark write;
  Mark reads[2];  ///< the last reader, and the last one of another warp
  bool is_pending = false;
};
/// Most pages are cleared or copied whole, and nothing else: one cell says it of all.
struct Page {
  Cell whole;  ///< where there are no cells
  std::unique_ptr<Cell[]> cells;
};
struct Range {
  uintptr_t begin, end;
  bool has(uintptr_t a) const { return a >= begin && a < end; }
};
struct StreamOperation {
  uint32_t first_time, stream, sequence;
  Clock clock;
  const char* what;
};
/// For each lane: up to which time the accesses of each other lane are ordered before its own.
struct WarpOrder {
  uint32_t known[32][32] = {};
};

class RaceChecker final : public Observer {
 public:
  RaceChecker() {
    observer = this;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* self) {
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& header = info->dlpi_phdr[i];
            if (header.p_type != PT_LOAD) continue;
            const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
            auto* const checker = static_cast<RaceChecker*>(self);
            auto& to = (header.p_flags & PF_W) != 0 ? checker->writable_ : checker->constant_;
            to.push_back({begin, begin + header.p_memsz});
          }
          return 0;
        },
        this);
  }

  void operation_begins(const char* what, uint32_t stream, const Clock& clock) override {
    operations_.push_back({++now_, stream, clock[stream], clock, what});
  }
  void block_begins(const void* shared, size_t bytes, uint32_t threads) override {
    block_begin_ = all_synced_ = ++now_;
    const auto begin = reinterpret_cast<uintptr_t>(shared);
    shared_ = {begin, begin + bytes};
    warps_.assign((threads + 31) / 32, {});
  }
  void threads_synced() override { all_synced_ = ++now_; }
  void warp_synced(uint32_t warp, uint32_t lanes) override {
    WarpOrder& order = warps_[warp];
    uint32_t known[32] = {};
    for (uint32_t j = 0; j < 32; ++j) {
      for (uint32_t i = 0; i < 32; ++i) {
        if ((lanes >> i & 1U) != 0) known[j] = std::max(known[j], order.known[i][j]);
      }
      if ((lanes >> j & 1U) != 0) known[j] = now_;
    }
    for (uint32_t i = 0; i < 32; ++i) {
      if ((lanes >> i & 1U) != 0) std::copy(known, known + 32, order.known[i]);
    }
    ++now_;
  }

  void access(const void* address, size_t bytes, Access access, const void* pc) override {
    const auto first = reinterpret_cast<uintptr_t>(address);
    if (is_in_kernel() && !is_tracked(first, bytes, access, pc)) return;
    const bool is_shared = is_in_kernel() && is_shared_memory(first);
    for (uintptr_t a = first & ~(kGranule - 1); a < first + bytes;) {
      Page* const page = whole_page(a, first + bytes);
      const bool is_uniform = page != nullptr && page->cells == nullptr;
      check(is_uniform ? page->whole : cell(a), a, access, is_shared, pc);
      a += is_uniform ? kPageBytes : kGranule;
    }
  }
  void copy_is_pending(const void* shared, size_t bytes, bool is_pending) override {
    const auto first = reinterpret_cast<uintptr_t>(shared);
    for (uintptr_t a = first; a < first + bytes; a += kGranule)
      cell(a).is_pending = is_pending;
  }
  void allocated(const void* address, size_t bytes) override {
    const Cell fresh{{now_, kNobody, false, nullptr}, {}, false};
    const auto first = reinterpret_cast<uintptr_t>(address);
    for (uintptr_t a = first; a < first + bytes;) {
      if (Page* const page = whole_page(a, first + bytes); page != nullptr) {
        *page = {fresh, nullptr};
        last_index_ = 0;
        a += kPageBytes;
      } else {
        cell(a) = fresh;
        a += kGranule;
      }
    }
  }
  void freed(const void* address, size_t bytes) override {
    last_allocation_ = {0, 0};
    access(address, bytes, Access::kWrite, nullptr);
  }
  void forgotten(const void* address, size_t bytes) override {
    const auto first = reinterpret_cast<uintptr_t>(address);
    for (uintptr_t a = first; a < first + bytes;) {
      if (whole_page(a, first + bytes) != nullptr) {
        pages_.erase(a / kPageBytes);
        last_index_ = 0;
        a += kPageBytes;
      } else {
        cell(a) = {};
        a += kGranule;
      }
    }
  }

 private:
  Cell& cell(uintptr_t address) {
    const uintptr_t index = address / kPageBytes;
    if (index != last_index_) {
      constexpr size_t kCells = kPageBytes / kGranule;
      Page& page = pages_[index];
      if (page.cells == nullptr) {
        page.cells = std::make_unique<Cell[]>(kCells);
        std::fill_n(page.cells.get(), kCells, page.whole);
      }
      last_index_ = index;
      last_cells_ = page.cells.get();
    }
    return last_cells_[address % kPageBytes / kGranule];
  }
  /// The page that begins at the address, where it ends before `end`; null elsewhere.
  Page* whole_page(uintptr_t address, uintptr_t end) {
    if (address % kPageBytes != 0 || end - address < kPageBytes) return nullptr;
    return &pages_[address / kPageBytes];
  }
  bool is_shared_memory(uintptr_t address) const {
    return shared_.has(address) || std::any_of(writable_.begin(), writable_.end(),
                                               [&](const Range& r) { return r.has(address); });
  }
  /// The allocation that holds the address, {0, 0} if none does.
  std::pair<uintptr_t, size_t> allocation_of(uintptr_t address) const {
    if (address - last_allocation_.first < last_allocation_.second) return last_allocation_;
    auto above = device.allocations.upper_bound(address);
    if (above == device.allocations.begin()) return {0, 0};
    --above;
    if (address >= above->first + above->second) return {0, 0};
    return last_allocation_ = {above->first, above->second};
  }

  /// False where nothing is to be remembered of this access, or it has been reported.
  bool is_tracked(uintptr_t address, size_t bytes, Access access, const void* pc) {
    const auto stack = reinterpret_cast<uintptr_t>(device.current->stack);
    if (address >= stack && address < stack + device.current->stack_bytes) return false;
    const auto own = reinterpret_cast<uintptr_t>(&builtins);
    if (address >= own && address < own + sizeof builtins) return false;
    if (shared_.has(address)) {
      if (address + bytes <= shared_.end) return true;
      report("goes beyond the launch's shared memory", address, access, pc, nullptr);
      return false;
    }
    const auto [begin, size] = allocation_of(address);
    if (address + bytes <= begin + size) return true;
    for (const Range& range : writable_) {
      if (range.has(address)) return true;  // a static __shared__ variable
    }
    for (const Range& range : constant_) {
      if (range.has(address) && access == Access::kRead) return false;
    }
    report("is neither shared nor allocated device memory", address, access, pc, nullptr);
    return false;
  }

  bool is_ordered(const Mark& before) const {
    const StreamOperation& now = operations_.back();
    if (before.time < now.first_time) {
      const StreamOperation& then = operation_at(before.time);
      return then.stream < now.clock.size() && now.clock[then.stream] >= then.sequence;
    }
    if (!is_in_kernel()) return true;
    if (before.time < block_begin_) return false;
    const auto thread = static_cast<uint16_t>(device.current->id);
    if (before.thread == thread || before.time < all_synced_) return true;
    return before.thread / 32 == thread / 32 &&
           warps_[thread / 32].known[thread % 32][before.thread % 32] >= before.time;
  }
  const StreamOperation& operation_at(uint32_t time) const {
    const auto is_in = [&](size_t operation) {
      return operations_[operation].first_time <= time &&
             (operation + 1 == operations_.size() || time < operations_[operation + 1].first_time);
    };
    if (!is_in(last_operation_)) {
      const auto above =
          std::upper_bound(operations_.begin(), operations_.end(), time,
                           [](uint32_t t, const StreamOperation& o) { return t < o.first_time; });
      last_operation_ = static_cast<size_t>(above - operations_.begin()) - 1;
    }
    return operations_[last_operation_];
  }

  void check(Cell& c, uintptr_t address, Access access, bool is_shared, const void* pc) {
    if (is_shared && c.write.time < block_begin_ && c.reads[0].time < block_begin_) c = {};
    const bool is_written = c.write.time != 0 && c.write.thread != kNobody;
    if (access != Access::kWrite && !is_written && is_in_kernel()) {
      report("was written by nobody", address, access, pc, nullptr);
    }
    if (c.is_pending) report("is the target of a pending cp.async", address, access, pc, nullptr);
    const bool is_atomic = access == Access::kAtomic;
    if (c.write.time != 0 && !(is_atomic && c.write.is_atomic) && !is_ordered(c.write)) {
      report("is not ordered behind a write", address, access, pc, &c.write);
    }
    const auto thread = static_cast<uint16_t>(is_in_kernel() ? device.current->id : 0);
    if (access != Access::kRead) {
      for (const Mark& read : c.reads) {
        if (read.time != 0 && !(is_atomic && read.is_atomic) && !is_ordered(read)) {
          report("is not ordered behind a read", address, access, pc, &read);
        }
      }
      c.write = {now_, thread, is_atomic, pc};
      c.reads[0] = c.reads[1] = {};
      return;
    }
    if (c.reads[0].time != 0 && c.reads[0].thread != thread &&
        (c.reads[1].time == 0 || c.reads[0].thread / 32 != thread / 32)) {
      c.reads[1] = c.reads[0];
    }
    c.reads[0] = {now_, thread, false, pc};
  }

  void report(const char* problem, uintptr_t address, Access access, const void* pc,
              const Mark* other) {
    if (!is_in_kernel()) {
      refuse(cudaErrorLaunchFailure, text_of(problem, address, access, pc, other), true);
      return;
    }
    note_failure(where() + ": " + text_of(problem, address, access, pc, other));
    abandon_block();
  }
  std::string text_of(const char* problem, uintptr_t address, Access access, const void* pc,
                      const Mark* other) const {
    static constexpr const char* kNames[] = {"a read of ", "a write to ", "an atomic on "};
    std::string text = std::string(kNames[static_cast<int>(access)]) + name_of(address);
    text += std::string(" ") + problem;
    if (other != nullptr && other->thread != kNobody) {
      const StreamOperation& then = operation_at(other->time);
      text += " by thread " + std::to_string(other->thread);
      if (&then != &operations_.back()) {
        text += std::string(" of a ") + then.what + " on stream " + std::to_string(then.stream);
      } else if (other->time < block_begin_) {
        text += " of another block";
      }
      if (other->pc != nullptr) text += " at " + line_of(before(other->pc));
    }
    if (pc != nullptr) text += "; here: " + line_of(before(pc));
    return text;
  }
  /// Of the call that returns to `pc`.
  static const void* before(const void* pc) { return static_cast<const char*>(pc) - 1; }
  std::string name_of(uintptr_t address) const {
    if (shared_.has(address)) {
      return "shared memory byte " + std::to_string(address - shared_.begin);
    }
    const auto [begin, size] = allocation_of(address);
    if (size != 0) {
      return "device memory byte " + std::to_string(address - begin) + " of " +
             std::to_string(size);
    }
    return is_shared_memory(address) ? "static shared memory" : "memory";
  }

  uint32_t now_ = 1, block_begin_ = 0, all_synced_ = 0;
  Range shared_{0, 0};
  std::vector<Range> writable_, constant_;
  std::vector<WarpOrder> warps_;
  std::vector<StreamOperation> operations_{{0, 0, 0, {}, "start"}};
  std::unordered_map<uintptr_t, Page> pages_;
  uintptr_t last_index_ = 0;
  Cell* last_cells_ = nullptr;  ///< of that page
  // What was looked for last: most accesses are near each other.
  mutable std::pair<uintptr_t, size_t> last_allocation_{0, 0};
  mutable size_t last_operation_ = 0;
};

RaceChecker& checker() {
  static RaceChecker instance;
  return instance;
}
[[maybe_unused]] const bool is_registered = (checker(), true);

void seen(const void* address, size_t bytes, Access access, const void* pc) {
  if (!is_in_kernel() || !device.current->is_inside) return;
  const Outside outside;
  checker().access(address, bytes, access, pc);
}

}  // namespace
}  // namespace trainyard::simt::detail

using trainyard::simt::detail::Access;
using trainyard::simt::detail::seen;

// What gcc and clang call under -fsanitize=thread.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming)
#define SIMT_HOOK(name, bytes, access)                                 \
  extern "C" void __tsan_##name(void* address) {                       \
    seen(address, bytes, Access::access, __builtin_return_address(0)); \
  }
#define SIMT_HOOKS(bytes)                          \
  SIMT_HOOK(read##bytes, bytes, kRead)             \
  SIMT_HOOK(write##bytes, bytes, kWrite)           \
  SIMT_HOOK(unaligned_read##bytes, bytes, kRead)   \
  SIMT_HOOK(unaligned_write##bytes, bytes, kWrite) \
  SIMT_HOOK(volatile_read##bytes, bytes, kRead)    \
  SIMT_HOOK(volatile_write##bytes, bytes, kWrite)
SIMT_HOOKS(1)
SIMT_HOOKS(2)
SIMT_HOOKS(4)
SIMT_HOOKS(8)
SIMT_HOOKS(16)
extern "C" void __tsan_read_range(void* address, size_t bytes) {
  seen(address, bytes, Access::kRead, __builtin_return_address(0));
}
extern "C" void __tsan_write_range(void* address, size_t bytes) {
  seen(address, bytes, Access::kWrite, __builtin_return_address(0));
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_vptr_update(void**, void*) {}
extern "C" void __tsan_vptr_read(void**) {}
// Of host code in such a file: kernels have atomics of their own.
extern "C" uint32_t __tsan_atomic32_load(const volatile uint32_t* address, int /*order*/) {
  return __atomic_load_n(address, __ATOMIC_SEQ_CST);
}
extern "C" uint32_t __tsan_atomic32_fetch_add(volatile uint32_t* address, uint32_t value,
                                              int /*order*/) {
  return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}
extern "C" uint32_t __tsan_atomic32_fetch_sub(volatile uint32_t* address, uint32_t value,
                                              int /*order*/) {
  return __atomic_fetch_sub(address, value, __ATOMIC_SEQ_CST);
}
extern "C" uint8_t __tsan_atomic8_load(const volatile uint8_t* address, int /*order*/) {
  return __atomic_load_n(address, __ATOMIC_SEQ_CST);
}
extern "C" void __tsan_atomic8_store(volatile uint8_t* address, uint8_t value, int /*order*/) {
  __atomic_store_n(address, value, __ATOMIC_SEQ_CST);
}
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)
