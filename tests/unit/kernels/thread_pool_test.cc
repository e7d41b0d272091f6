#include "kernels/cpu/thread_pool.h"

#include <atomic>
#include <numeric>
#include <vector>
#include <xmmintrin.h>

#include <gtest/gtest.h>

namespace trainyard::kernels {
namespace {

struct Job {
  std::vector<std::atomic<int>> runs;
  std::vector<std::atomic<int>> busy;
  std::atomic<bool> shared_thread{false};
  std::atomic<bool> wrong_mode{false};
  Job(size_t tasks, size_t threads) : runs(tasks), busy(threads) {}
};

void count(const void* context, int64_t index, int thread) {
  auto& job = *static_cast<Job*>(const_cast<void*>(context));
  if (job.busy[static_cast<size_t>(thread)].exchange(1) != 0) job.shared_thread = true;
  if (thread != 0 && (_mm_getcsr() & 0x8040U) != 0x8040U) job.wrong_mode = true;
  job.runs[static_cast<size_t>(index)].fetch_add(1);
  job.busy[static_cast<size_t>(thread)].store(0);
}

TEST(ThreadPoolTest, RunsEveryTaskOnceAndNoTwoOnOneThread) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int round = 0; round < 300; ++round) {
      Job job(static_cast<size_t>(round % 37), static_cast<size_t>(threads));
      pool.run(round % 37, count, &job);
      for (const auto& runs : job.runs)
        ASSERT_EQ(runs.load(), 1);
      ASSERT_FALSE(job.shared_thread);
      ASSERT_FALSE(job.wrong_mode) << "a worker without FTZ and DAZ";
    }
  }
}

TEST(ThreadPoolTest, LateWorkersNeverRunATaskThatTheirSetDidNotHave) {
  // Small sets followed at once by larger ones, more threads than cores: workers are preempted
  // between reading the claim word and the set's fields.
  ThreadPool pool(5);
  for (int round = 0; round < 20000; ++round) {
    const int64_t tasks = round % 2 == 0 ? 2 : 9;
    Job job(static_cast<size_t>(tasks), 5);
    pool.run(tasks, count, &job);
    for (const auto& runs : job.runs)
      ASSERT_EQ(runs.load(), 1) << round;
  }
}

TEST(ThreadPoolTest, WhatTasksWroteIsVisibleAfterwards) {
  ThreadPool pool(3);
  std::vector<int64_t> plain(1000);
  for (int round = 0; round < 200; ++round) {
    pool.run(
        1000,
        [](const void* context, int64_t index, int) {
          auto& values = *static_cast<std::vector<int64_t>*>(const_cast<void*>(context));
          values[static_cast<size_t>(index)] += index;
        },
        &plain);
  }
  for (int64_t i = 0; i < 1000; ++i)
    ASSERT_EQ(plain[static_cast<size_t>(i)], 200 * i);
}

TEST(ThreadPoolTest, EndsWhileItsWorkersSpinOrSleep) {
  for (int round = 0; round < 50; ++round)
    ThreadPool pool(3);
}

TEST(CanonicalFloatModeTest, IsSetForItsLifeOnly) {
  const unsigned before = _mm_getcsr();
  {
    const CanonicalFloatMode mode;
    EXPECT_EQ(_mm_getcsr() & 0xFFC0U, 0x9FC0U);
  }
  EXPECT_EQ(_mm_getcsr(), before);
}

}  // namespace
}  // namespace trainyard::kernels
