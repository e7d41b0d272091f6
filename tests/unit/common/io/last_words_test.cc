// Each is said in a process of its own, as no test may keep such a limit or such an end.
#include "common/io/last_words.h"

#include <csignal>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/worker_contract.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct End {
  int status = 0;
  std::string said;
};

End end_of(LastWords words, const std::function<void()>& body) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    say_last_words("program", words);
    // A thread of its own, as an exception that leaves main() would be the test's.
    std::thread([&] { body(); }).join();
    ::_exit(0);
  }
  ::close(ends[1]);
  End end;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    end.said.append(buffer, static_cast<size_t>(n));
  ::close(ends[0]);
  EXPECT_EQ(::waitpid(child, &end.status, 0), child);
  return end;
}

void limit_data(rlim_t bytes) {
  const rlimit limit{bytes, bytes};
  ASSERT_EQ(::setrlimit(RLIMIT_DATA, &limit), 0);
}

void start_threads() {
  std::vector<std::jthread> threads;
  for (int i = 0; i < 1000; ++i)
    threads.emplace_back([](const std::stop_token& stop) {
      while (!stop.stop_requested())
        std::this_thread::yield();
    });
}

TEST(LastWordsTest, AThreadThatCannotBeStartedNamesTheLimitAndEndsWithABadSetting) {
  const End end = end_of(LastWords::kText, [] {
    limit_data(rlim_t{200} << 20);
    start_threads();
  });
  ASSERT_TRUE(WIFEXITED(end.status)) << end.said;
  EXPECT_EQ(WEXITSTATUS(end.status), contract::kExitBadConfig);
  EXPECT_THAT(end.said, AllOf(StartsWith("program: "), HasSubstr("; ulimit -d is 204800 KiB"),
                              HasSubstr("; raise the limit")));
}

TEST(LastWordsTest, MemoryThatCannotBeHadIsSaidAsALineOfTheLog) {
  const End end = end_of(LastWords::kJson, [] {
    limit_data(rlim_t{200} << 20);
    std::vector<std::unique_ptr<std::string>> kept;
    while (true)
      kept.push_back(std::make_unique<std::string>(size_t{1} << 20, 'x'));
  });
  ASSERT_TRUE(WIFEXITED(end.status)) << end.said;
  EXPECT_EQ(WEXITSTATUS(end.status), contract::kExitBadConfig);
  EXPECT_THAT(end.said,
              StartsWith(R"({"level":"error","message":"program: memory cannot be allocated)"));
}

TEST(LastWordsTest, WithoutALimitAnotherAttemptMaySucceed) {
  const End end = end_of(LastWords::kText, [] {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  });
  ASSERT_TRUE(WIFEXITED(end.status)) << end.said;
  rlimit data{};
  ASSERT_EQ(::getrlimit(RLIMIT_DATA, &data), 0);
  if (data.rlim_cur != RLIM_INFINITY) GTEST_SKIP() << "this process has such a limit";
  EXPECT_EQ(WEXITSTATUS(end.status), contract::kExitRetry);
  EXPECT_THAT(end.said, HasSubstr("program: a thread cannot be started"));
}

TEST(LastWordsTest, AnotherExceptionIsABugAndAborts) {
  const End end = end_of(LastWords::kText, [] { throw std::runtime_error("no such case"); });
  ASSERT_TRUE(WIFSIGNALED(end.status));
  EXPECT_EQ(WTERMSIG(end.status), SIGABRT);
  EXPECT_EQ(end.said, "program: no such case\n");
}

}  // namespace
}  // namespace trainyard
