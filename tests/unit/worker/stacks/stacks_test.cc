#include "worker/stacks/stacks.h"

#include <atomic>
#include <pthread.h>
#include <signal.h>
#include <string>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// What dump_stacks prints.
std::string dumped() {
  ::testing::internal::CaptureStderr();
  dump_stacks();
  return ::testing::internal::GetCapturedStderr();
}

}  // namespace

/// Has external linkage so that the dynamic linker knows its name.
[[gnu::noinline]] void spin_in_a_function_to_find(const std::atomic<bool>& stop,
                                                  std::atomic<bool>& running) {
  running = true;
  while (!stop.load(std::memory_order_relaxed)) {
  }
}

namespace {

TEST(StacksTest, EveryOtherThreadIsPrintedWithTheFunctionItIsIn) {
  ASSERT_TRUE(enable_stack_dumps());
  std::atomic<bool> stop{false};
  std::atomic<bool> running{false};
  std::thread spinner([&] { spin_in_a_function_to_find(stop, running); });
  while (!running)
    std::this_thread::yield();
  // On a busy machine it may not come to answer within the time that a thread has for it.
  const auto dumped_with_it = [] {
    std::string text = dumped();
    for (int i = 0; i < 10 && text.find("spin_in_a_function") == std::string::npos; ++i)
      text = dumped();
    return text;
  };
  const std::string text = dumped_with_it();
  const std::string again = dumped_with_it();
  stop = true;
  spinner.join();
  EXPECT_THAT(text, HasSubstr("stacks of "));  // a sanitizer may have a thread of its own
  EXPECT_THAT(text, HasSubstr("spin_in_a_function_to_find"));
  EXPECT_THAT(text, HasSubstr("end of stacks"));
  EXPECT_THAT(again, HasSubstr("spin_in_a_function_to_find")) << "its slot is free again";
}

TEST(StacksTest, AThreadThatCannotAnswerIsNamedAndHoldsNobodyUp) {
  ASSERT_TRUE(enable_stack_dumps());
  std::atomic<bool> stop{false};
  std::atomic<bool> running{false};
  std::thread deaf([&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    pthread_setname_np(pthread_self(), "deaf");
    running = true;
    while (!stop)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  while (!running)
    std::this_thread::yield();
  const auto begin = std::chrono::steady_clock::now();
  const std::string text = dumped();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
  stop = true;
  deaf.join();
  EXPECT_THAT(text, HasSubstr("(deaf) does not answer"));
  EXPECT_THAT(text, HasSubstr("end of stacks"));
}

}  // namespace
}  // namespace trainyard::engine
