// Ranks that are processes: killed, stopped, and what is left of them.

#include <chrono>
#include <filesystem>
#include <set>
#include <signal.h>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/worker/comm/process.h"
#include "tests/comm/worker/comm/world.h"
#include "tests/support/extent.h"
#include "tests/support/paths.h"

namespace trainyard::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::Process;
using ::testing::StartsWith;

using Clock = std::chrono::steady_clock;

constexpr seconds kAtOnce{60};

std::set<std::string> entries_of(const std::filesystem::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.insert(entry.path().filename());
  }
  return names;
}

/// How a rank ended, from its last line.
struct Ending {
  std::string word;
  std::string code;
  int64_t operation_ms = -1;
  std::string lost;
  std::string message;
};

Ending ending_of(Process& rank) {
  std::istringstream line(rank.read_line());
  Ending ending;
  line >> ending.word >> ending.code;
  if (ending.word == "failed") {
    line >> ending.operation_ms >> ending.lost;
    std::getline(line, ending.message);
  }
  return ending;
}

class ProcessesTest : public ::testing::TestWithParam<TransportKind> {
 protected:
  /// Starts `size` ranks that all-reduce `elements` int64 in a loop; returns when all are at it.
  std::vector<Process> start(int size, milliseconds deadline, int64_t elements,
                             const std::string& mesh = "") {
    std::vector<Process> ranks;
    std::string table;
    for (int rank = 0; rank < size; ++rank) {
      std::vector<std::string> arguments{testing_support::test_program_path("comm_rank"),
                                         std::string(name_of(GetParam())),
                                         std::to_string(rank),
                                         std::to_string(size),
                                         std::to_string(deadline.count()),
                                         std::to_string(elements)};
      if (!mesh.empty()) arguments.push_back(mesh);
      ranks.emplace_back(arguments);
    }
    for (Process& rank : ranks)
      table += rank.read_line() + " ";
    for (Process& rank : ranks)
      rank.write_line(table);
    for (Process& rank : ranks)
      EXPECT_EQ(rank.read_line(), "ready");
    return ranks;
  }

  const std::set<std::string> shared_before_ = entries_of("/dev/shm");
};

TEST_P(ProcessesTest, AKilledRankIsNamedAtOnceByAll) {
  for (const int64_t elements : {100, 200'000}) {
    auto ranks = start(4, 2 * kAtOnce, elements);
    ranks[2].signal(SIGKILL);
    const auto killed = Clock::now();
    for (const int rank : {0, 1, 3}) {
      const Ending ending = ending_of(ranks[static_cast<size_t>(rank)]);
      EXPECT_EQ(ending.word, "failed");
      EXPECT_EQ(ending.code, "peer_lost") << ending.message;
      EXPECT_EQ(ending.lost, "2") << ending.message;
      EXPECT_THAT(ending.message, HasSubstr("rank 2"));
    }
    // Found by its closed connections and not by the deadline.
    EXPECT_LT(Clock::now() - killed, kAtOnce);
  }
  EXPECT_EQ(entries_of("/dev/shm"), shared_before_);
}

TEST_P(ProcessesTest, AStoppedRankIsNamedAfterTheDeadline) {
  auto ranks = start(3, milliseconds(1000), 50'000);
  ranks[1].signal(SIGSTOP);
  for (const int rank : {0, 2}) {
    const Ending ending = ending_of(ranks[static_cast<size_t>(rank)]);
    EXPECT_EQ(ending.code, "peer_lost") << ending.message;
    EXPECT_EQ(ending.lost, "1") << ending.message;
    EXPECT_THAT(ending.message, HasSubstr("awaiting rank 1"));
    EXPECT_GE(ending.operation_ms, 500);
  }
  ranks[1].signal(SIGCONT);
  // When it wakes up it learns that the others have given it up.
  EXPECT_EQ(ending_of(ranks[1]).word, "failed");
}

// The others wait for the one that is stopped in several groups and channels, some of them by way
// of others.
TEST_P(ProcessesTest, ARankThatOnlyWaitsIsNeverHeldLost) {
  int64_t index = 0;
  for (const auto& [mesh, size] : {std::pair("1x2x2", 4), std::pair("1x2x3", 6),
                                   std::pair("4x1x1", 4), std::pair("2x2x1", 4)}) {
    for (int stopped = 0; stopped < size; ++stopped) {
      if (!testing_support::in_sample("a stopped rank of a mesh", index++, 6)) continue;
      SCOPED_TRACE(std::string(mesh) + ", rank " + std::to_string(stopped));
      auto ranks = start(size, milliseconds(1500), 1000, mesh);
      ranks[static_cast<size_t>(stopped)].signal(SIGSTOP);
      for (int rank = 0; rank < size; ++rank) {
        if (rank == stopped) continue;
        const Ending ending = ending_of(ranks[static_cast<size_t>(rank)]);
        EXPECT_EQ(ending.code, "peer_lost") << ending.message;
        EXPECT_EQ(ending.lost, std::to_string(stopped)) << ending.message;
      }
    }
  }
}

TEST_P(ProcessesTest, RanksThatEndInOrderHurtNobody) {
  auto ranks = start(4, seconds(60), 10'000);
  ranks[0].write_line("stop");
  for (Process& rank : ranks) {
    EXPECT_THAT(rank.read_line(), StartsWith("stopped "));
    EXPECT_EQ(rank.wait(), 0);
  }
}

TEST_P(ProcessesTest, NothingIsLeftWhenAllAreKilled) {
  {
    auto ranks = start(3, seconds(60), 10'000);
    for (Process& rank : ranks)
      rank.signal(SIGKILL);
  }
  EXPECT_EQ(entries_of("/dev/shm"), shared_before_);
}

INSTANTIATE_TEST_SUITE_P(Transports, ProcessesTest,
                         ::testing::Values(TransportKind::kShm, TransportKind::kTcp),
                         [](const auto& parameter) {
                           return std::string(name_of(parameter.param));
                         });

TEST(LeakTest, WorldsLeaveNoDescriptorThreadOrSharedMemory) {
  // The thread sanitizer starts a thread of its own with the first one of ours.
  std::thread([] {}).join();
  const auto shared_before = entries_of("/dev/shm");
  const auto descriptors_before = entries_of("/proc/self/fd").size();
  const auto threads_before = entries_of("/proc/self/task").size();
  for (const TransportKind kind : testing::kTransports) {
    for (const bool aborts : {false, true}) {
      testing::run_world(kind, 3, [&](Communicator& c) {
        std::vector<int64_t> data(1000, 1);
        const std::vector<int> all{0, 1, 2};
        auto sub = c.sub_group(all);
        ASSERT_TRUE(sub.has_value()) << sub.error().message;
        const WorkPtr work =
            (*sub)->all_reduce(testing::bytes_of(data), DType::kInt64, ReduceOp::kSum);
        EXPECT_EQ(testing::message_of(work->wait()), "");
        if (aborts) c.abort({ErrorCode::kAborted, "enough"});
      });
    }
  }
  EXPECT_EQ(entries_of("/dev/shm"), shared_before);
  EXPECT_EQ(entries_of("/proc/self/fd").size(), descriptors_before);
  EXPECT_EQ(entries_of("/proc/self/task").size(), threads_before);
}

}  // namespace
}  // namespace trainyard::comm
