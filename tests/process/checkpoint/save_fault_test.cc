// Every system call that a save makes fails, falls short or is the last one of the process: strace
// puts the faults between the real program and the real kernel. Afterwards the newest good
// checkpoint loads, is exactly the state of its step, and is no older than what had been reported.
//
// A call here is a pair (name, how many of that name before). In `make test` each gets one of the
// faults in turn, with TRAINYARD_LONG_TESTS=1 every one.

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <sys/resource.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/process/checkpoint/probe_run.h"
#include "tests/support/exact.h"
#include "tests/support/extent.h"
#include "tests/unit/worker/checkpoint/job_directory.h"
#include "worker/checkpoint/disk_thread.h"
#include "worker/checkpoint/state_hash.h"
#include "worker/checkpoint/store.h"

namespace trainyard::checkpoint::testing {
namespace {

using ::testing::HasSubstr;
using testing_support::ChildProcess;

constexpr char kRankThreadName[] = "probe-rank-0";
constexpr char kStrace[] = "/usr/bin/strace";
constexpr int64_t kTemplateStep = 2;  // the newest before the disturbed generation

/// Calls that touch files: each of them is failed.
const std::set<std::string> kFileCalls = {
    "openat",  "open",      "creat",           "write",      "pwrite64",  "writev",
    "fsync",   "fdatasync", "rename",          "renameat",   "renameat2", "link",
    "linkat",  "unlink",    "unlinkat",        "rmdir",      "mkdir",     "mkdirat",
    "symlink", "symlinkat", "readlink",        "readlinkat", "stat",      "newfstatat",
    "fstat",   "statx",     "getdents64",      "fcntl",      "close",     "pread64",
    "read",    "lseek",     "sync_file_range", "ftruncate",  "fallocate"};
/// Calls of a thread that say nothing to a disk.
const std::set<std::string> kOtherCalls = {"futex",
                                           "mmap",
                                           "munmap",
                                           "mprotect",
                                           "madvise",
                                           "brk",
                                           "mremap",
                                           "getrandom",
                                           "clock_gettime",
                                           "clock_nanosleep",
                                           "sched_yield",
                                           "gettid",
                                           "getpid",
                                           "rt_sigprocmask",
                                           "rt_sigaction",
                                           "restart_syscall",
                                           "set_robust_list",
                                           "rseq",
                                           "exit",
                                           "exit_group",
                                           "kill",
                                           "tgkill",
                                           "clone3",
                                           "prctl",
                                           "sched_getaffinity"};

struct Call {
  std::string name;
  int count = 0;  // the count-th of this name, from 1
};

struct Fault {
  std::string name;
  std::string inject;  // as strace spells it
};
const std::vector<Fault> kFaults = {{"EIO", "error=EIO"},
                                    {"ENOSPC", "error=ENOSPC"},
                                    {"short", "retval=1"},
                                    {"kill", "signal=SIGKILL"}};

bool applies(const Fault& fault, const Call& call) {
  static const std::set<std::string> kCounted = {"write", "pwrite64", "pread64", "read"};
  return fault.name != "short" || kCounted.contains(call.name);
}

class SaveFaultTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_TRUE(std::filesystem::exists(kStrace)) << "strace is missing; tools/setup installs it";
    template_ = std::make_unique<JobDirectory>();
    PosixFileSystem files;
    ASSERT_EQ(template_->train(files, {.generation = 1, .steps = {1, kTemplateStep}}), "");
  }
  static void TearDownTestSuite() { template_.reset(); }

  /// A directory as generation 1 left it.
  std::filesystem::path fresh_root() {
    const auto root = work_.path() / ("job-" + std::to_string(++roots_));
    std::filesystem::copy(
        template_->root(), root,
        std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
    return root;
  }
  std::filesystem::path log() const { return work_.path() / "probe.out"; }

  /// Attaches strace to one thread that has stopped itself, and lets it go on.
  std::unique_ptr<ChildProcess> trace(const ProbeRun& probe, pid_t thread,
                                      const std::vector<std::string>& how) {
    ChildProcess::Spec spec;
    spec.argv = {kStrace, "-o", trace_log().string(), "-p", std::to_string(thread)};
    spec.argv.insert(spec.argv.end(), how.begin(), how.end());
    spec.output = work_.path() / "strace.out";
    spec.errors = work_.path() / "strace.err";
    auto strace = std::make_unique<ChildProcess>(spec);
    // Said when the thread can make no further call unseen.
    const std::string attached = "Process " + std::to_string(thread) + " attached";
    const auto deadline = std::chrono::steady_clock::now() + ProbeRun::kDeadline;
    while (slurp(spec.errors).find(attached) == std::string::npos) {
      if (std::chrono::steady_clock::now() > deadline ||
          strace->wait(std::chrono::milliseconds(0))) {
        ADD_FAILURE() << "strace did not attach; this test needs ptrace: " << slurp(spec.errors);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    probe.signal(SIGCONT);
    return strace;
  }

  std::filesystem::path trace_log() const { return work_.path() / "strace.log"; }

  /// Runs generation 2 with one part of it traced.
  struct Ran {
    std::unique_ptr<ProbeRun> probe;
    testing_support::ChildEnd end;
  };
  Ran run(const std::filesystem::path& root, const std::string& part,
          const std::vector<std::string>& how) {
    Ran ran{std::make_unique<ProbeRun>(
                root, std::vector<std::string>{"2", "1", "3,4", "--pause", part}, log()),
            {}};
    EXPECT_TRUE(ran.probe->stopped()) << ran.probe->said();
    const pid_t thread = part == "save"
                             ? ran.probe->thread_named(DiskThread::kThreadName).value_or(-1)
                             : ran.probe->thread_named(kRankThreadName).value_or(-1);
    const auto strace = trace(*ran.probe, thread, how);
    const auto end = ran.probe->wait();
    EXPECT_TRUE(end) << "the probe does not end: " << ran.probe->said();
    if (end) ran.end = *end;
    EXPECT_TRUE(strace->wait(ProbeRun::kDeadline)) << "strace does not end";
    return ran;
  }

  /// The calls of an undisturbed part, in order.
  std::vector<Call> calls_of(const std::string& part) {
    const Ran ran = run(fresh_root(), part, {});
    EXPECT_EQ(ran.end.exit_code, 0) << ran.probe->said();
    EXPECT_THAT(ran.probe->steps("committed"), ::testing::ElementsAre(3, 4));
    std::map<std::string, int> counts;
    std::vector<Call> calls;
    std::ifstream file(trace_log());
    for (std::string line; std::getline(file, line);) {
      // A beginning ends when the probe says so; what follows is the probe's own.
      if (part == "begin" && line.rfind("write(1,", 0) == 0) break;
      const size_t paren = line.find('(');
      if (paren == std::string::npos || line.rfind("---", 0) == 0 || line.rfind("+++", 0) == 0)
        continue;
      const std::string name = line.substr(0, paren);
      if (kOtherCalls.contains(name)) continue;
      EXPECT_TRUE(kFileCalls.contains(name)) << "a call this test does not know: " << line;
      calls.push_back({name, ++counts[name]});
    }
    return calls;
  }

  /// The promises, after whatever happened to generation 2.
  void expect_promises_kept(const std::filesystem::path& root, const ProbeRun& probe) {
    PosixFileSystem files;
    int64_t reported = kTemplateStep;
    for (const int64_t step : probe.steps("committed"))
      reported = std::max(reported, step);
    const auto reader = open_newest_good(files, root, std::nullopt, Verify::kAll, nullptr);
    ASSERT_TRUE(reader) << reader.error().message;
    const int64_t newest = (*reader)->manifest().step;
    ASSERT_GE(newest, reported);
    ASSERT_EQ(difference(**reader), "") << testing_support::kExact;
    const auto hash = state_hash_of(**reader);
    ASSERT_TRUE(hash);
    ASSERT_TRUE(testing_support::same_hash(to_hex(*hash), to_hex(hash_of_step(newest))));
    if (const auto latest = read_latest(files, root)) {
      const auto target =
          CheckpointReader::open(files, root / directory_name(*latest), Verify::kAll);
      ASSERT_TRUE(target) << "latest: " << target.error().message;
    }
    JobDirectory job(root);
    ASSERT_EQ(job.train(files, {.generation = 3, .parent = 2, .steps = {100}}), "");
    ASSERT_EQ(job.restored_step(), newest);
    ASSERT_EQ(job.committed_step(), 100);
  }

  static Hash128 hash_of_step(int64_t step) {
    StateHash hash;
    for (const WholeTensor& tensor : small_state(step))
      hash.add(tensor.name, tensor.kind, tensor.values);
    return hash.finish(step, 0xfedcba9876543210, step * 64);
  }

  /// Puts faults at the calls of a part; `judge` looks at what the process did.
  template <class Judge>
  void sweep(const std::string& part, const Judge& judge) {
    const std::vector<Call> calls = calls_of(part);
    ASSERT_GT(calls.size(), 40U);
    int64_t cases = 0;
    for (size_t i = 0; i < calls.size(); ++i) {
      for (size_t f = 0; f < kFaults.size(); ++f) {
        const Fault& fault = kFaults[f];
        const bool chosen =
            testing_support::runs_everything() || fault.name == "short" || f == i % kFaults.size();
        if (!applies(fault, calls[i]) || !chosen) continue;
        SCOPED_TRACE(part + ": " + calls[i].name + " number " + std::to_string(calls[i].count) +
                     ": " + fault.name);
        const auto root = fresh_root();
        const Ran ran = run(root, part,
                            {"-e", "trace=" + calls[i].name, "-e",
                             "inject=" + calls[i].name + ":" + fault.inject +
                                 ":when=" + std::to_string(calls[i].count)});
        const bool killed = fault.name == "kill";
        ASSERT_EQ(ran.end.signal, killed ? SIGKILL : 0) << ran.probe->said();
        if (!killed) {
          ASSERT_THAT(slurp(trace_log()), HasSubstr("(INJECTED)")) << "no such call this time";
          judge(ran);
        }
        expect_promises_kept(root, *ran.probe);
        if (HasFailure()) return;
        std::filesystem::remove_all(root);
        ++cases;
      }
    }
    RecordProperty("cases", std::to_string(cases));
    std::cout << part << ": " << calls.size() << " calls, " << cases << " faults\n";
  }

  trainyard::testing_support::TemporaryDirectory work_;
  int roots_ = 0;
  static std::unique_ptr<JobDirectory> template_;
};

std::unique_ptr<JobDirectory> SaveFaultTest::template_;

TEST_F(SaveFaultTest, EverySystemCallOfASaveMayFailOrBeTheLast) {
  sweep("save", [](const Ran& ran) {
    // One fault costs at most one checkpoint; training goes on and the next one is written.
    ASSERT_EQ(ran.end.exit_code, 0) << ran.probe->said();
    ASSERT_LE(ran.probe->steps("abandoned").size(), 1U) << ran.probe->said();
    ASSERT_GE(ran.probe->steps("committed").size(), 1U) << ran.probe->said();
  });
}

TEST_F(SaveFaultTest, EverySystemCallOfABeginningMayFailOrBeTheLast) {
  // Adoption and lineage: the generation may refuse to begin, but it harms nothing.
  sweep("begin", [](const Ran& ran) {
    ASSERT_TRUE(ran.end.exit_code == 0 || ran.end.exit_code == 75) << ran.probe->said();
    if (ran.end.exit_code == 0) {
      ASSERT_EQ(ran.probe->steps("committed").size(), 2U) << ran.probe->said();
    }
  });
}

TEST_F(SaveFaultTest, AFullDiskCutsAWriteShortAtAnyByte) {
  // The limit on a file's size ends a write in its middle as a full disk does: a short count first,
  // then an error.
  uintmax_t largest = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(template_->root() / "g1-step-0000000002")) {
    largest = std::max(largest, entry.file_size());
  }
  const uintmax_t stride = testing_support::runs_everything() ? 1 : largest / 24;
  // The probe's own few lines go to a file as well.
  for (uintmax_t limit = 1024; limit < largest; limit += stride) {
    SCOPED_TRACE("files of at most " + std::to_string(limit) + " bytes");
    const auto root = fresh_root();
    ProbeRun probe(root, {"2", "1", "3,4", "--pause", "save"}, log());
    ASSERT_TRUE(probe.stopped()) << probe.said();
    rlimit size{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &size), 0);
    size.rlim_cur = limit;  // the hard one stays: raising it may not be allowed
    ASSERT_EQ(::prlimit(probe.pid(), RLIMIT_FSIZE, &size, nullptr), 0);
    probe.signal(SIGCONT);
    const auto end = probe.wait();
    ASSERT_TRUE(end && end->exit_code == 0) << probe.said();
    ASSERT_EQ(probe.steps("abandoned").size(), 2U) << probe.said();
    expect_promises_kept(root, probe);
    if (HasFatalFailure()) return;
    std::filesystem::remove_all(root);
  }
}

TEST_F(SaveFaultTest, AHangingDiskCostsTheCheckpointAndNotTheRun) {
  const auto root = fresh_root();
  ProbeRun probe(root, {"2", "1", "3,4,5", "--pause", "save", "--hang-limit-ms", "5000"}, log());
  ASSERT_TRUE(probe.stopped());
  const auto thread = probe.thread_named(DiskThread::kThreadName);
  ASSERT_TRUE(thread);
  // The second fsync takes longer than a save waits, and less than the probe is waited for: the
  // process ends with it.
  const auto strace =
      trace(probe, *thread, {"-e", "trace=fsync", "-e", "inject=fsync:delay_enter=20s:when=2"});
  const auto end = probe.wait();
  ASSERT_TRUE(end && end->exit_code == 0) << probe.said();
  EXPECT_EQ(probe.steps("abandoned").size(), 3U) << probe.said();
  EXPECT_THAT(probe.said(), HasSubstr("abandoned 3 checkpoint at step 3: rank 0: shard: the disk "
                                      "hangs (sync "));
  expect_promises_kept(root, probe);
}

}  // namespace
}  // namespace trainyard::checkpoint::testing
