// What has a deadline of less than a second, within which ranks that are well must move.

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
#include "tests/comm/worker/comm/world.h"
#include "worker/comm/groups.h"

namespace trainyard::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using testing::AnyOperation;
using testing::bytes_of;
using ::testing::ElementsAre;
using testing::for_each_rank;
using ::testing::HasSubstr;
using testing::make_world;
using testing::message_of;
using testing::run_world;

using Clock = std::chrono::steady_clock;

std::string transport_name(const ::testing::TestParamInfo<TransportKind>& info) {
  return std::string(name_of(info.param));
}

class FaultsTest : public ::testing::TestWithParam<TransportKind> {};

TEST_P(FaultsTest, ARankThatDoesNotCallIsNamedByAllAfterTheDeadline) {
  const milliseconds deadline(400);
  std::atomic<int> failed{0};
  run_world(
      GetParam(), 5,
      [&](Communicator& c) {
        std::vector<int64_t> data(50'000, 1);
        ASSERT_TRUE(c.barrier()->wait().has_value());
        if (c.rank() == 3) {
          while (failed.load() < 4)
            std::this_thread::sleep_for(milliseconds(1));
          return;
        }
        const auto begin = Clock::now();
        const Status status = c.all_reduce(bytes_of(data), DType::kInt64, ReduceOp::kSum)->wait();
        const auto took = Clock::now() - begin;
        failed.fetch_add(1);
        ASSERT_FALSE(status.has_value());
        EXPECT_EQ(status.error().code, ErrorCode::kPeerLost);
        EXPECT_THAT(status.error().message,
                    AllOf(HasSubstr("awaiting rank 3"), HasSubstr("all_reduce #1"),
                          HasSubstr("no progress for 0.400 s")));
        EXPECT_THAT(c.lost_ranks(), ElementsAre(3));
        EXPECT_GE(took, deadline / 2);
      },
      deadline);
}

TEST_P(FaultsTest, ASlowPeerThatMovesDoesNotFail) {
  const milliseconds deadline(400);
  run_world(
      GetParam(), 2,
      [&](Communicator& c) {
        ASSERT_TRUE(c.barrier()->wait().has_value());
        std::vector<std::vector<int64_t>> pieces(6, std::vector<int64_t>(100));
        if (c.rank() == 0) {
          // One operation that lasts three deadlines.
          std::vector<PointToPoint> all;
          for (auto& piece : pieces) {
            all.push_back({PointToPoint::Kind::kReceive, 1, bytes_of(piece)});
          }
          const auto begin = Clock::now();
          EXPECT_EQ(message_of(c.batch_point_to_point(all)->wait()), "");
          EXPECT_GE(Clock::now() - begin, deadline);
          return;
        }
        for (auto& piece : pieces) {
          std::this_thread::sleep_for(deadline / 2);  // the slowness under test
          const WorkPtr sent =
              c.batch_point_to_point({{PointToPoint::Kind::kSend, 0, bytes_of(piece)}});
          EXPECT_EQ(message_of(sent->wait()), "");
        }
      },
      deadline);
}

TEST_P(FaultsTest, ARankThatNeverComesIsNamed) {
  auto world = make_world(GetParam(), 3, milliseconds(400));
  for_each_rank(3, [&](int rank) {
    if (rank == 2) return;
    const auto c = world.connect(rank);
    ASSERT_FALSE(c.has_value());
    EXPECT_EQ(c.error().code, ErrorCode::kPeerLost);
    EXPECT_THAT(c.error().message, HasSubstr("rank 2"));
  });
}

TEST_P(FaultsTest, AnotherGenerationJobAndBuildAreRefused) {
  struct Case {
    void (*change)(Options& options);
    const char* told;  ///< to who connects
    const char* seen;  ///< by who refuses
    bool of_processes = false;
  };
  const std::vector<Case> cases = {
      {[](Options& options) { options.generation = 6; }, "it is of another generation (reason 5)",
       "generation 6, this is generation 7"},
      {[](Options& options) { options.job_uid = "another"; }, "it is of another job (reason 4)",
       "job hash"},
      {[](Options& options) { options.build = "b2"; }, "it runs another build (reason 12)",
       "run the same build on every rank", true},
  };
  for (const Case& other : cases) {
    if (other.of_processes && GetParam() == TransportKind::kLocal) continue;
    auto world = make_world(GetParam(), 2, milliseconds(300));
    for (Options& options : world.options)
      options.build = "a1";
    other.change(world.options[0]);
    for_each_rank(2, [&](int rank) {
      const auto c = world.connect(rank);
      ASSERT_FALSE(c.has_value());
      if (GetParam() != TransportKind::kLocal && rank == 0) {
        EXPECT_EQ(c.error().code, ErrorCode::kConflict);
        EXPECT_THAT(c.error().message,
                    AllOf(HasSubstr("rank 1 at "), HasSubstr("refuses the connection of rank 0"),
                          HasSubstr(other.told)));
      } else if (GetParam() != TransportKind::kLocal) {
        EXPECT_EQ(c.error().code, ErrorCode::kPeerLost);
        EXPECT_THAT(c.error().message,
                    AllOf(HasSubstr("meeting the peers: rank 0"),
                          HasSubstr("refuses a connection from rank 0"), HasSubstr(other.seen)));
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, FaultsTest, ::testing::ValuesIn(testing::kTransports),
                         transport_name);

class OperationFaultsTest : public ::testing::TestWithParam<std::tuple<TransportKind, Operation>> {
};

TEST_P(OperationFaultsTest, ASilentRankIsNamedByAllAfterTheDeadline) {
  const milliseconds deadline(300);
  const TransportKind kind = std::get<0>(GetParam());
  const Operation op = std::get<1>(GetParam());
  std::atomic<int> failed{0};
  run_world(
      kind, 4,
      [&](Communicator& c) {
        AnyOperation buffers(c, 100'000);
        EXPECT_EQ(message_of(c.barrier()->wait()), "");
        if (c.rank() == 1) {
          while (failed.load() < 3)
            std::this_thread::sleep_for(milliseconds(1));
          return;
        }
        // A rank that only sends may be done before its peer has looked.
        Status status = buffers.start(op)->wait();
        if (status) status = c.barrier()->wait();
        failed.fetch_add(1);
        ASSERT_FALSE(status.has_value());
        EXPECT_EQ(status.error().code, ErrorCode::kPeerLost) << status.error().message;
        EXPECT_THAT(status.error().message, HasSubstr("awaiting rank 1"));
        EXPECT_THAT(c.lost_ranks(), ElementsAre(1));
      },
      deadline);
}

INSTANTIATE_TEST_SUITE_P(Operations, OperationFaultsTest,
                         ::testing::Combine(::testing::ValuesIn(testing::kTransports),
                                            ::testing::ValuesIn(kOperations)),
                         [](const auto& parameter) {
                           return std::string(name_of(std::get<0>(parameter.param))) + "_" +
                                  std::string(name_of(std::get<1>(parameter.param)));
                         });

// The others wait for it in several groups, some of them by way of others.
TEST(MeshBlameTest, ARankThatOnlyWaitsIsNeverHeldLost) {
  for (const layout::Mesh mesh :
       {layout::Mesh{.dp = 2, .fsdp = 2}, layout::Mesh{.dp = 2, .fsdp = 3}}) {
    for (int silent = 0; silent < mesh.size(); ++silent) {
      SCOPED_TRACE(std::to_string(mesh.size()) + " ranks, rank " + std::to_string(silent));
      std::atomic<int> failed{0};
      run_world(
          TransportKind::kLocal, mesh.size(),
          [&](Communicator& c) {
            auto groups = Groups::make(c, mesh);
            ASSERT_TRUE(groups) << groups.error().message;
            EXPECT_EQ(message_of(c.barrier()->wait()), "");
            std::vector<int64_t> data(100, 1);
            while (c.rank() == silent && failed.load() < mesh.size() - 1)
              std::this_thread::sleep_for(milliseconds(1));
            if (c.rank() == silent) return;
            Status status;
            while (status) {
              status =
                  groups->shard->all_reduce(bytes_of(data), DType::kInt64, ReduceOp::kMax)->wait();
              if (!status) break;
              status = groups->copies({})
                           ->all_reduce(bytes_of(data), DType::kInt64, ReduceOp::kMax)
                           ->wait();
            }
            EXPECT_EQ(status.error().code, ErrorCode::kPeerLost) << status.error().message;
            EXPECT_THAT(groups->lost_ranks(), ElementsAre(silent))
                << "rank " << c.rank() << ": " << status.error().message;
            groups->abort(status.error());
            failed.fetch_add(1);
          },
          milliseconds(500));
    }
  }
}

// What a rank has begun and does not wait for excuses it not.
TEST(MeshBlameTest, ARankThatComputesWhileAnOperationStallsIsNotExcused) {
  std::atomic<int> failed{0};
  run_world(
      TransportKind::kLocal, 3,
      [&](Communicator& c) {
        const std::vector<int> all{0, 1, 2};
        auto other = c.sub_group(all);
        ASSERT_TRUE(other) << other.error().message;
        EXPECT_EQ(message_of(c.barrier()->wait()), "");
        // Rank 2 has begun what the others begin after the barrier that it does not come to.
        if (c.rank() == 2) {
          const WorkPtr ahead = (*other)->barrier();
          while (failed.load() < 2)
            std::this_thread::sleep_for(milliseconds(1));
          return;
        }
        const Status status = c.barrier()->wait();
        failed.fetch_add(1);
        ASSERT_FALSE(status);
        EXPECT_THAT(c.lost_ranks(), ElementsAre(2)) << status.error().message;
      },
      milliseconds(500));
}

class RetreatTest : public ::testing::TestWithParam<TransportKind> {};

TEST_P(RetreatTest, PatienceBeyondTheDeadlineHoldsUntilSomethingMoves) {
  const milliseconds deadline(300);
  const milliseconds patience(800);
  std::barrier over(2);
  run_world(
      GetParam(), 2,
      [&](Communicator& c) {
        ASSERT_EQ(message_of(c.barrier()->wait()), "");
        std::vector<int64_t> data(10, c.rank());
        if (c.rank() == 0) {
          const auto begin = std::chrono::steady_clock::now();
          const Status status = c.receive(bytes_of(data), 1, {.patience = patience})->wait();
          ASSERT_FALSE(status.has_value());
          EXPECT_EQ(status.error().code, ErrorCode::kDeadline) << status.error().message;
          EXPECT_GE(std::chrono::steady_clock::now() - begin, patience);
          EXPECT_THAT(c.lost_ranks(), ::testing::IsEmpty());
        }
        over.arrive_and_wait();
        ASSERT_EQ(message_of(c.barrier()->wait()), "");
        if (c.rank() == 1) {
          std::this_thread::sleep_for(deadline + deadline / 2);  // the lateness under test
          ASSERT_EQ(message_of(c.send(bytes_of(data), 0)->wait()), "");
        } else {
          ASSERT_EQ(message_of(c.receive(bytes_of(data), 1, {.patience = seconds(60)})->wait()),
                    "");
          EXPECT_EQ(data, std::vector<int64_t>(10, 1));
        }
        ASSERT_EQ(message_of(c.barrier()->wait()), "");
      },
      deadline);
}

INSTANTIATE_TEST_SUITE_P(Transports, RetreatTest, ::testing::ValuesIn(testing::kTransports),
                         transport_name);

}  // namespace
}  // namespace trainyard::comm
