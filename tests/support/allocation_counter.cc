#include "tests/support/allocation_counter.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> count = 0;
std::atomic<int64_t> largest = 0;

void note(size_t size) {
  count.fetch_add(1, std::memory_order_relaxed);
  const auto bytes = static_cast<int64_t>(size);
  int64_t before = largest.load(std::memory_order_relaxed);
  while (before < bytes &&
         !largest.compare_exchange_weak(before, bytes, std::memory_order_relaxed)) {
  }
}

}  // namespace

// In a file of its own, so that the compiler does not see through new and delete at once and take
// free() for a mismatch.
void* operator new(size_t size) {
  note(size);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  note(size);
  return std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

namespace trainyard::test {

int64_t allocations() { return count.load(std::memory_order_relaxed); }

int64_t take_largest_allocation() { return largest.exchange(0, std::memory_order_relaxed); }

}  // namespace trainyard::test
