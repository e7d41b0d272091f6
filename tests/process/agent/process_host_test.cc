#include "agent/process_host.h"

#include <chrono>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <poll.h>
#include <signal.h>
#include <string>
#include <sys/prctl.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/spawn.h"
#include "common/base/unique_fd.h"
#include "common/proto/coordination.pb.h"
#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::agent {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr seconds kDeadline{60};

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A shell as the rank of a one-process world.
class ProcessHostTest : public ::testing::Test {
 protected:
  ProcessHostTest() : mark_("PROCESS_HOST_MARK=" + folder_.path().filename().string()) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    listener_.on_line = [this](int, const std::string& line) { lines_.push_back(line); };
    listener_.on_end = [this](int, RankEnd end) { ends_.push_back(end); };
  }
  ~ProcessHostTest() override { ::prctl(PR_SET_CHILD_SUBREAPER, 0); }

  Status start(const std::string& script) {
    AgentOptions options;
    options.pod_dir = folder_.path();
    options.command = {"sh", "-c", script};
    host_ = std::make_unique<ProcessHost>(options,
                                          std::vector<std::string>{"PATH=/usr/bin:/bin", mark_});
    return host_->start({.rank = 5, .world_size = 8, .generation = 2});
  }

  bool serve_until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (!condition()) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::vector<pollfd> fds;
      host_->add_poll_fds(fds);
      ::poll(fds.data(), fds.size(), 10);
      for (const pollfd& fd : fds)
        host_->serve(fd, listener_);
      host_->reap(listener_);
    }
    return true;
  }
  bool serve_to_the_end() {
    return serve_until([this] { return !ends_.empty(); });
  }

  const testing_support::TemporaryDirectory folder_;
  const std::string mark_;
  std::unique_ptr<ProcessHost> host_;
  ProcessHost::Listener listener_;
  std::vector<std::string> lines_;
  std::vector<RankEnd> ends_;
};

TEST_F(ProcessHostTest, KeepsWhatARankPrintsAndHowItEnds) {
  ASSERT_TRUE(start("echo out; echo err >&2; printf unfinished; exit 7"));
  ASSERT_TRUE(serve_to_the_end());
  EXPECT_EQ(ends_[0].exit_code, 7);
  EXPECT_EQ(ends_[0].signal, 0);
  EXPECT_THAT(host_->last_lines(0), ::testing::UnorderedElementsAre("out", "err", "unfinished"));
  EXPECT_THAT(content(folder_.path() / "rank-5.log"), HasSubstr("unfinished\n"));
}

TEST_F(ProcessHostTest, HandsTheLastWordsOverBeforeTheEnd) {
  listener_.on_end = [this](int, RankEnd end) {
    lines_.push_back("end");
    ends_.push_back(end);
  };
  ASSERT_TRUE(start("echo first >&4; echo last >&4; kill -9 $$"));
  ASSERT_TRUE(serve_to_the_end());
  EXPECT_THAT(lines_, ElementsAre("first", "last", "end"));
  EXPECT_EQ(ends_[0].signal, SIGKILL);
}

TEST_F(ProcessHostTest, LinesReachTheRank) {
  ASSERT_TRUE(start("read line <&4; echo \"got $line\" >&4"));
  host_->send(0, "{\"type\":\"stop\"}\n");
  ASSERT_TRUE(serve_to_the_end());
  EXPECT_THAT(lines_, ElementsAre("got {\"type\":\"stop\"}"));
}

TEST_F(ProcessHostTest, ARankThatReadsLateGetsALargeLineWhole) {
  ASSERT_TRUE(start("sleep 0.2; head -n 1 <&4 | wc -c >&4"));
  host_->send(0, std::string(3 << 20, 'x') + "\n");
  ASSERT_TRUE(serve_to_the_end()) << "the agent must not wait for a rank to read";
  EXPECT_THAT(lines_, ElementsAre(std::to_string((3 << 20) + 1)));
}

TEST_F(ProcessHostTest, ARankHasOnlyTheDescriptorsItIsMeantToHave) {
  const UniqueFd stray(::dup(0));  // not close-on-exec, as a library may open one
  ASSERT_TRUE(
      start("for fd in /proc/self/fd/*; do echo \"${fd##*/}\"; done | sort -n | tr '\\n' ' '"));
  ASSERT_TRUE(serve_to_the_end());
  ASSERT_EQ(host_->last_lines(0).size(), 1u);
  // The shell's own glob holds one more while it reads the folder.
  EXPECT_THAT(host_->last_lines(0)[0], ::testing::StartsWith("0 1 2 3 4 "));
  EXPECT_LE(host_->last_lines(0)[0].size(), std::string("0 1 2 3 4 5 ").size() + 1);
}

TEST_F(ProcessHostTest, SignalsAreDefaultAndUnblockedInARank) {
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &term, &before);
  ASSERT_TRUE(start("echo ready >&4; while :; do sleep 0.05; done"));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ASSERT_TRUE(serve_until([this] { return !lines_.empty(); }));
  host_->signal(0, SIGTERM);
  ASSERT_TRUE(serve_to_the_end());
  EXPECT_EQ(ends_[0].signal, SIGTERM);
}

TEST_F(ProcessHostTest, AProgramThatIsNotThereIsNamed) {
  AgentOptions options;
  options.pod_dir = folder_.path();
  options.worker = "/no/such/worker";
  ProcessHost host(options, {});
  const Status started = host.start({});
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(started.error().message, HasSubstr("/no/such/worker"));
}

TEST_F(ProcessHostTest, WhatARankLeavesBehindIsEnded) {
  ASSERT_TRUE(start("setsid sleep 1000 & exit 0"));
  ASSERT_TRUE(serve_to_the_end());
  ASSERT_EQ(testing_support::processes_with(mark_).size(), 1u) << "the daemon is adopted";
  EXPECT_TRUE(end_adopted_children(kDeadline));
  EXPECT_THAT(testing_support::processes_with(mark_), IsEmpty());
}

TEST_F(ProcessHostTest, ClearsWithoutWaiting) {
  ASSERT_TRUE(start("setsid sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; exit 0"));
  ASSERT_TRUE(serve_to_the_end());
  EXPECT_THAT(host_->left(), HasSubstr("(sleep)"));
  const Status first = host_->clear();
  ASSERT_FALSE(first) << "it waited for what it killed";
  EXPECT_EQ(first.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(first.error().message, HasSubstr("(sleep)"));
  EXPECT_TRUE(end_adopted_children(kDeadline));
  EXPECT_TRUE(host_->clear());
  EXPECT_EQ(host_->left(), "");
}

TEST_F(ProcessHostTest, WhatARankHasStartedMayNotHoldItsEndUpByWriting) {
  ASSERT_TRUE(start("yes & exit 3"));
  ASSERT_TRUE(serve_to_the_end());
  EXPECT_EQ(ends_[0].exit_code, 3);
  EXPECT_TRUE(end_adopted_children(kDeadline));
}

TEST_F(ProcessHostTest, RanksDieWithTheirHost) {
  ASSERT_TRUE(start("while :; do sleep 0.05; done"));
  ASSERT_EQ(testing_support::processes_with(mark_).empty(), false);
  host_.reset();
  EXPECT_TRUE(end_adopted_children(kDeadline));
  EXPECT_THAT(testing_support::processes_with(mark_), IsEmpty());
}

TEST_F(ProcessHostTest, AnErrorOfAGpuExplainsOnlyRanksThatMayUseOne) {
  const std::filesystem::path gpus = folder_.path() / "gpus";
  std::ofstream(gpus) << "count 1\n0.name NVIDIA H200\n";
  ::setenv("TRAINYARD_FAKE_NVML", gpus.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): alone
  const auto watch =
      GpuWatch::start(std::vector{testing_support::build_path("tests/libtrainyard-fake-nvml.so")});
  ASSERT_TRUE(watch) << watch.error().message;
  AgentOptions options;
  options.pod_dir = folder_.path();
  options.worker = folder_.path() / "rank";
  std::ofstream(options.worker) << "#!/bin/sh\nread line <&4\nexit 70\n";
  std::filesystem::permissions(options.worker, std::filesystem::perms::owner_all);
  for (const api::DeviceKind device :
       {api::DeviceKind::kCpu, api::DeviceKind::kAuto, api::DeviceKind::kCuda}) {
    ends_.clear();
    options.device = device;
    host_ = std::make_unique<ProcessHost>(options, std::vector<std::string>{"PATH=/usr/bin:/bin"},
                                          watch->get());
    ASSERT_TRUE(host_->start({.rank = 0, .world_size = 1, .generation = 2}));
    const size_t before = (*watch)->errors();
    std::ofstream(gpus, std::ios::app) << "xid 0 79\n";
    ASSERT_TRUE(serve_until([&] { return (*watch)->errors() > before; }));
    host_->send(0, "end\n");
    ASSERT_TRUE(serve_to_the_end());
    EXPECT_EQ(ends_[0].gpu.words.empty(), device == api::DeviceKind::kCpu) << ends_[0].gpu.words;
  }
  ::unsetenv("TRAINYARD_FAKE_NVML");  // NOLINT(concurrency-mt-unsafe): alone
}

TEST_F(ProcessHostTest, LookupIsExecvps) {
  SpawnRequest request;
  request.argv = {"trainyard-no-such-program"};
  const UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  request.stdout_fd = request.stderr_fd = null.get();
  const auto spawned = spawn(request);
  ASSERT_FALSE(spawned);
  EXPECT_EQ(spawned.error().code, ErrorCode::kInvalidConfig);
  // A script that somebody forgot to make executable is not one that is not there.
  const std::filesystem::path script = folder_.path() / "trainyard-no-such-program";
  std::ofstream(script) << "#!/bin/sh\n";
  const std::string before = ::getenv("PATH");
  ::setenv("PATH", (before + ":" + folder_.path().string()).c_str(), 1);
  const auto denied = spawn(request);
  ::setenv("PATH", before.c_str(), 1);
  ASSERT_FALSE(denied);
  EXPECT_EQ(denied.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(denied.error().message, HasSubstr(script.string()));
  EXPECT_THAT(denied.error().message, HasSubstr("Permission denied"));
}

}  // namespace
}  // namespace trainyard::agent
