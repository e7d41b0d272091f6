// Every operation whose peer is gone, of another mind or only slow; and peers that die
// while ranks are still meeting.

#include <atomic>
#include <barrier>
#include <chrono>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/worker/comm/any_operation.h"
#include "tests/comm/worker/comm/process.h"
#include "tests/comm/worker/comm/world.h"
#include "tests/support/paths.h"

namespace trainyard::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using testing::AnyOperation;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Process;
using testing::run_world;

using Clock = std::chrono::steady_clock;
/// For what takes milliseconds and must not take the deadline.
constexpr seconds kAtOnce{60};
constexpr seconds kDeadline = 2 * kAtOnce;

using Parameter = std::tuple<TransportKind, Operation>;

std::string case_name(const ::testing::TestParamInfo<Parameter>& info) {
  return std::string(name_of(std::get<0>(info.param))) + "_" +
         std::string(name_of(std::get<1>(info.param)));
}

/// Keeps a rank in the group until the three others have failed, but not for ever.
void wait_for_three(const std::atomic<int>& failed) {
  const auto deadline = Clock::now() + kAtOnce;
  while (failed.load() < 3 && Clock::now() < deadline)
    std::this_thread::sleep_for(milliseconds(1));
}

class OperationFaultsTest : public ::testing::TestWithParam<Parameter> {
 protected:
  TransportKind kind() const { return std::get<0>(GetParam()); }
  Operation op() const { return std::get<1>(GetParam()); }

  /// The operation and then a barrier, since a rank that only sends may be done before its peer has
  /// looked: the first error of the two.
  Status op_and_barrier(AnyOperation& buffers, Communicator& c) const {
    TRAINYARD_TRY(buffers.start(op())->wait());
    return c.barrier()->wait();
  }
};

TEST_P(OperationFaultsTest, AnAbortFromAnotherThreadEndsItOnAllRanks) {
  std::atomic<int> failed{0};
  std::barrier all_met(4);
  run_world(kind(), 4, [&](Communicator& c) {
    AnyOperation buffers(c, 100'000);
    EXPECT_EQ(message_of(c.barrier()->wait()), "");
    all_met.arrive_and_wait();
    if (c.rank() == 1) {
      // It never calls the operation; the others wait for it until it aborts.
      std::thread other([&] { c.abort({ErrorCode::kUnavailable, "the node is drained"}); });
      other.join();
      wait_for_three(failed);
      return;
    }
    const Status status = op_and_barrier(buffers, c);
    failed.fetch_add(1);
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kAborted) << status.error().message;
    EXPECT_THAT(status.error().message,
                AllOf(HasSubstr("rank 1"), HasSubstr("the node is drained")));
  });
}

/// Operations on data, which a barrier is not.
class CountedOperationsTest : public OperationFaultsTest {};

std::vector<Operation> counted_operations() {
  std::vector<Operation> operations(kOperations.begin(), kOperations.end());
  std::erase(operations, Operation::kBarrier);
  return operations;
}

TEST_P(CountedOperationsTest, AnotherCountIsAMismatchThatNamesTheRank) {
  std::atomic<int> seen_by{0};
  run_world(kind(), 3, [&](Communicator& c) {
    AnyOperation buffers(c, c.rank() == 1 ? 30'003 : 30'000);
    const Status status = op_and_barrier(buffers, c);
    ASSERT_FALSE(status.has_value()) << "rank " << c.rank();
    if (status.error().code != ErrorCode::kAborted) {
      ++seen_by;
      EXPECT_EQ(status.error().code, ErrorCode::kInternal) << status.error().message;
    }
    EXPECT_THAT(status.error().message,
                AllOf(HasSubstr("signature mismatch"), HasSubstr("rank 1")));
  });
  EXPECT_GE(seen_by, 1);
}

INSTANTIATE_TEST_SUITE_P(Operations, OperationFaultsTest,
                         ::testing::Combine(::testing::ValuesIn(testing::kTransports),
                                            ::testing::ValuesIn(kOperations)),
                         case_name);

INSTANTIATE_TEST_SUITE_P(Operations, CountedOperationsTest,
                         ::testing::Combine(::testing::ValuesIn(testing::kTransports),
                                            ::testing::ValuesIn(counted_operations())),
                         case_name);

/// The same with real processes.
class ProcessOperationsTest : public OperationFaultsTest {
 protected:
  std::vector<Process> spawn(int size, milliseconds deadline) {
    std::vector<Process> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.emplace_back(std::vector<std::string>{
          testing_support::test_program_path("comm_rank"), std::string(name_of(kind())),
          std::to_string(rank), std::to_string(size), std::to_string(deadline.count()), "60000",
          std::string(name_of(op()))});
    }
    for (Process& rank : ranks)
      table_ += rank.read_line() + " ";
    return ranks;
  }
  std::vector<Process> start(int size, milliseconds deadline) {
    auto ranks = spawn(size, deadline);
    for (Process& rank : ranks)
      rank.write_line(table_);
    for (Process& rank : ranks)
      EXPECT_EQ(rank.read_line(), "ready");
    return ranks;
  }

  std::string table_;
};

TEST_P(ProcessOperationsTest, AKilledRankIsNamedAtOnce) {
  auto ranks = start(3, kDeadline);
  ranks[1].signal(SIGKILL);
  const auto killed = Clock::now();
  for (const size_t rank : {0U, 2U}) {
    EXPECT_THAT(ranks[rank].read_line(),
                AllOf(HasSubstr("failed peer_lost"), HasSubstr(" 1 "), HasSubstr("rank 1")));
  }
  EXPECT_LT(Clock::now() - killed, kAtOnce);
}

TEST_P(ProcessOperationsTest, ARankThatIsOnlySlowFailsNobody) {
  auto ranks = start(3, kDeadline);
  for (int pulse = 0; pulse < 2; ++pulse) {
    // Stopped for much longer than any operation, for less than the deadline: the slowness under
    // test.
    ranks[1].signal(SIGSTOP);
    std::this_thread::sleep_for(milliseconds(250));
    ranks[1].signal(SIGCONT);
  }
  ranks[0].write_line("stop");
  for (Process& rank : ranks)
    EXPECT_THAT(rank.read_line(), HasSubstr("stopped "));
}

INSTANTIATE_TEST_SUITE_P(Operations, ProcessOperationsTest,
                         ::testing::Combine(::testing::Values(TransportKind::kShm,
                                                              TransportKind::kTcp),
                                            ::testing::ValuesIn(kOperations)),
                         case_name);

/// Among the ranks that a message names; one that gave up may be named beside the one it lost.
auto names_rank(size_t rank) {
  return ::testing::ContainsRegex("ranks?( [0-9]+,?| and)* " + std::to_string(rank) + "[^0-9]");
}

/// Of real processes, before they have met.
class MeetingTest : public ProcessOperationsTest {};

TEST_P(MeetingTest, ARankThatDiesMeanwhileIsNamedAtOnceWhateverItsPlace) {
  for (const size_t dies : {0U, 1U, 2U}) {
    table_.clear();
    auto ranks = spawn(3, kDeadline);
    const auto begin = Clock::now();
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      // It is there, and listens, but has not begun to meet the others.
      if (rank != dies) ranks[rank].write_line(table_);
    }
    ranks[dies].signal(SIGKILL);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (rank == dies) continue;
      EXPECT_THAT(ranks[rank].read_line(), AllOf(HasSubstr("failed peer_lost"), names_rank(dies)));
    }
    EXPECT_LT(Clock::now() - begin, kAtOnce) << "rank " << dies;
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, MeetingTest,
                         ::testing::Combine(::testing::Values(TransportKind::kShm,
                                                              TransportKind::kTcp),
                                            ::testing::Values(Operation::kAllReduce)),
                         case_name);

}  // namespace
}  // namespace trainyard::comm
