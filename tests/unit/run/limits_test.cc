// Limits of the system that `trainyard run` looks at before it starts anything. Each is set in a
// process of its own, as no test may keep it, and as a user who may not raise it again.
#include "cli/run/limits.h"

#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/extent.h"

namespace trainyard::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Somebody who has no other processes, and whom no limit spares.
constexpr uid_t kNobodyElse = 64'321;
constexpr char kSanitizersData[] = "a sanitizer's own memory counts as data";
/// In a user namespace that has no such user.
constexpr char kNoOtherUser[] = "root can become nobody else here";

/// Of one rank a node.
api::TrainingJobSpec job_of(int64_t nodes, api::Transport transport) {
  api::TrainingJobSpec spec;
  spec.num_nodes = nodes;
  spec.num_proc_per_node = 1;
  spec.engine.emplace().runtime.transport = transport;
  return spec;
}

/// What check_limits says under a limit: empty where it finds nothing.
std::string said_under(__rlimit_resource_t resource, rlim_t most, const api::TrainingJobSpec& spec,
                       int64_t rank_bytes = 0) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{most, most};
    // Root's processes are not counted.
    const bool counted = resource != RLIMIT_NPROC || ::getuid() != 0 || ::setuid(kNobodyElse) == 0;
    std::string said = counted ? "could not set the limit" : kNoOtherUser;
    if (counted && ::setrlimit(resource, &limit) == 0) {
      Status fit = check_limits(spec);
      if (fit) fit = check_rank_data(spec, rank_bytes);
      said = fit ? "" : fit.error().message;
    }
    (void)!::write(ends[1], said.data(), said.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    said.append(buffer, static_cast<size_t>(n));
  ::close(ends[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return said;
}

TEST(LimitsTest, TooFewThreadsAreNamedWithHowManyThereAreAndHowManyItTakes) {
  const std::string said = said_under(RLIMIT_NPROC, 1, job_of(2, api::Transport::kShm));
  if (said == kNoOtherUser) GTEST_SKIP() << said;
  EXPECT_THAT(said, HasSubstr("limit of processes and threads: found room for 0, wanted at least"));
  EXPECT_THAT(said, HasSubstr("for 2 x 1 ranks; raise it (ulimit -u"));
}

TEST(LimitsTest, TcpTakesTwiceTheFilesOfSharedMemory) {
  const auto tcp = job_of(20, api::Transport::kTcp);
  EXPECT_THAT(said_under(RLIMIT_NOFILE, 119, tcp),
              HasSubstr("found 119 (ulimit -Hn), wanted at least 120"));
  EXPECT_THAT(said_under(RLIMIT_NOFILE, 120, tcp), Not(HasSubstr("open files")));
  const auto shared = job_of(20, api::Transport::kShm);
  EXPECT_THAT(said_under(RLIMIT_NOFILE, 79, shared), HasSubstr("wanted at least 80"));
  EXPECT_THAT(said_under(RLIMIT_NOFILE, 80, shared), Not(HasSubstr("open files")));
}

TEST(LimitsTest, CopiesOnTheNextNodeTakeFilesForEachOtherNode) {
  auto spec = job_of(20, api::Transport::kShm);
  spec.failure_policy.restart_strategy = api::RestartStrategy::kInPlace;
  spec.checkpoint_policy.memory_replicas = 1;
  EXPECT_THAT(said_under(RLIMIT_NOFILE, 117, spec), HasSubstr("wanted at least 118"));
  EXPECT_THAT(said_under(RLIMIT_NOFILE, 118, spec), Not(HasSubstr("open files")));
  spec.checkpoint_policy.memory_every_steps = 0;
  EXPECT_THAT(said_under(RLIMIT_NOFILE, 80, spec), Not(HasSubstr("open files")));
}

TEST(LimitsTest, LittleDataIsNamedAndStacksOfThreadsCountAsData) {
  if (testing_support::kSanitized) GTEST_SKIP() << kSanitizersData;
  const auto spec = job_of(1, api::Transport::kShm);
  for (const rlim_t most : {rlim_t{30'000} << 10, rlim_t{200'000} << 10}) {
    EXPECT_THAT(
        said_under(RLIMIT_DATA, most, spec),
        HasSubstr("limit of data size: found " + std::to_string(most >> 10) + " KiB (ulimit -d)"));
  }
  EXPECT_THAT(said_under(RLIMIT_DATA, rlim_t{2} << 30, spec), IsEmpty());
  auto threads = spec;
  threads.engine->runtime.threads = 400;
  EXPECT_THAT(said_under(RLIMIT_DATA, rlim_t{2} << 30, threads), HasSubstr("limit of data size"));
}

TEST(LimitsTest, WhatARankTrainsCountsBesideWhatEveryProcessTakes) {
  if (testing_support::kSanitized) GTEST_SKIP() << kSanitizersData;
  const auto spec = job_of(1, api::Transport::kShm);
  EXPECT_TRUE(check_rank_data(spec, int64_t{1} << 40)) << "no limit";
  const std::string said = said_under(RLIMIT_DATA, rlim_t{1} << 30, spec, int64_t{1} << 30);
  EXPECT_THAT(said, HasSubstr("limit of data size: found 1048576 KiB (ulimit -d)"));
  EXPECT_THAT(said, HasSubstr("(1048576 KiB of it for what a rank trains)"));
  EXPECT_THAT(said_under(RLIMIT_DATA, rlim_t{1} << 30, spec, 1 << 20), IsEmpty());
}

TEST(LimitsTest, ALimitOfProcessorTimeIsADoubt) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_CPU, &before), 0);
  const rlimit limit{86'400, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_CPU, &limit), 0);
  EXPECT_THAT(doubt_of_cpu_time(), HasSubstr("found 86400 s (ulimit -t)"));
  ASSERT_EQ(::setrlimit(RLIMIT_CPU, &before), 0);
}

TEST(LimitsTest, ASmallStackIsNamed) {
  const auto spec = job_of(1, api::Transport::kShm);
  EXPECT_THAT(said_under(RLIMIT_STACK, 100 << 10, spec),
              HasSubstr("limit of stack size: found 100 KiB (ulimit -s)"));
  EXPECT_THAT(said_under(RLIMIT_STACK, 1 << 20, spec), IsEmpty());
}

}  // namespace
}  // namespace trainyard::cli
