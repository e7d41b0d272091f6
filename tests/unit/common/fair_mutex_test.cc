#include "common/base/fair_mutex.h"

#include <atomic>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <sys/types.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

namespace trainyard {
namespace {

/// Whether the kernel has put a thread of this process to sleep.
bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  // The state follows the name, which is in brackets.
  const size_t end = text.rfind(')');
  return end != std::string::npos && text.compare(end, 3, ") S") == 0;
}

TEST(FairMutexTest, AWaiterComesBeforeWhoGaveItBack) {
  FairMutex mutex;
  std::atomic<pid_t> waiting = 0;
  bool was_in = false;
  mutex.lock();
  const std::jthread waiter([&] {
    waiting = ::gettid();
    const std::lock_guard lock(mutex);
    was_in = true;
  });
  // It sleeps nowhere but in lock().
  while (waiting == 0 || !sleeps(waiting))
    std::this_thread::yield();
  mutex.unlock();
  const std::lock_guard lock(mutex);
  EXPECT_TRUE(was_in);
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
