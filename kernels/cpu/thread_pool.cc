#include "kernels/cpu/thread_pool.h"

#include <xmmintrin.h>

#include "common/base/check.h"

namespace trainyard::kernels {
namespace {

constexpr unsigned kDefaultMode = 0x1F80;  // all exceptions masked, round to nearest even
constexpr unsigned kFlushToZero = 0x8000;
constexpr unsigned kDenormalsAreZero = 0x0040;
// About 20 us on a 4 GHz processor: longer than the gap between two operations of a step, shorter
// than a time slice that another rank on the same core could use.
constexpr int kSpins = 1500;

constexpr uint32_t kClosed = 0xFFFFFFFFU;  // above any index

constexpr uint64_t claim_word(uint32_t epoch, uint32_t index) {
  return (uint64_t{epoch} << 32U) | index;
}

}  // namespace

CanonicalFloatMode::CanonicalFloatMode() : saved_(_mm_getcsr()) {
  _mm_setcsr(kDefaultMode | kFlushToZero | kDenormalsAreZero);
}

CanonicalFloatMode::~CanonicalFloatMode() { _mm_setcsr(saved_); }

ThreadPool::ThreadPool(int threads) {
  TRAINYARD_CHECK(threads >= 1);
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
}

void ThreadPool::run(int64_t count, Task task, const void* context) {
  TRAINYARD_CHECK(count >= 0 && count < (int64_t{1} << 31));
  if (count == 0) return;
  if (workers_.empty() || count == 1) {
    for (int64_t i = 0; i < count; ++i)
      task(context, i, 0);
    return;
  }
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  // Close the old set before its fields change: a worker that still holds the old claim word and
  // reads a new, larger count would otherwise claim a task that the old set never had.
  claim_.store(claim_word(epoch, kClosed), std::memory_order_relaxed);
  task_.store(task, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  count_.store(count, std::memory_order_release);
  done_.store(0, std::memory_order_relaxed);
  claim_.store(claim_word(epoch, 0), std::memory_order_release);
  // Sequentially consistent: libstdc++'s notify skips the system call when it sees no waiter, and
  // must not look before the new epoch is visible.
  epoch_.store(epoch, std::memory_order_seq_cst);
  epoch_.notify_all();

  drain(epoch, 0);
  // What is left is running on a worker; tasks are finite, so is this wait.
  const auto all = static_cast<uint32_t>(count);
  for (int spin = 0;; ++spin) {
    const uint32_t done = done_.load(std::memory_order_acquire);
    if (done == all) return;
    if (spin < kSpins) {
      _mm_pause();
    } else {
      done_.wait(done, std::memory_order_acquire);
    }
  }
}

void ThreadPool::drain(uint32_t epoch, int thread) {
  uint64_t word = claim_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(word >> 32U) == epoch) {
    const auto index = static_cast<uint32_t>(word);
    const int64_t count = count_.load(std::memory_order_acquire);
    if (index >= count) return;
    const Task task = task_.load(std::memory_order_acquire);
    const void* context = context_.load(std::memory_order_acquire);
    // A field of a later set is written after this set's claim word was closed, and reading it
    // acquires that: success therefore proves that all three fields are this set's own.
    if (!claim_.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      continue;
    }
    task(context, index, thread);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(count)) {
      done_.notify_one();
    }
    word = claim_.load(std::memory_order_acquire);
  }
}

void ThreadPool::work(int thread) {
  const CanonicalFloatMode mode;
  uint32_t seen = 0;
  while (true) {
    uint32_t epoch = epoch_.load(std::memory_order_acquire);
    for (int spin = 0; epoch == seen && spin < kSpins; ++spin) {
      _mm_pause();
      epoch = epoch_.load(std::memory_order_acquire);
    }
    if (epoch == seen) {
      epoch_.wait(seen, std::memory_order_acquire);
      continue;
    }
    seen = epoch;
    if (stop_.load(std::memory_order_acquire)) return;
    drain(epoch, thread);
  }
}

}  // namespace trainyard::kernels
