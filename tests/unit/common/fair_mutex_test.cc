#include "common/base/fair_mutex.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace trainyard {
namespace {

/// Whether a thread that waits has the mutex before the one that gives it back takes it again.
bool waiter_is_next() {
  FairMutex mutex;
  std::atomic<bool> asks = false;
  bool was_in = false;
  mutex.lock();
  const std::jthread waiter([&] {
    asks = true;
    const std::lock_guard lock(mutex);
    was_in = true;
  });
  while (!asks)
    std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  mutex.unlock();
  const std::lock_guard lock(mutex);
  return was_in;
}

TEST(FairMutexTest, AWaiterComesBeforeWhoGaveItBack) {
  // A waiter that the machine does not let run for 20 ms has not begun to wait.
  int served = 0;
  for (int i = 0; i < 10; ++i)
    served += waiter_is_next() ? 1 : 0;
  EXPECT_GE(served, 5);
}

TEST(FairMutexTest, OneAtATime) {
  FairMutex mutex;
  int64_t count = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int j = 0; j < 1000; ++j) {
          const std::lock_guard lock(mutex);
          ++count;
        }
      });
    }
  }
  EXPECT_EQ(count, 4000);
}

}  // namespace
}  // namespace trainyard
