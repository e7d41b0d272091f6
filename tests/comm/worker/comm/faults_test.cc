// What ranks see when calls disagree, peers are aborted, gone, or speak nonsense.

#include <barrier>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/worker/comm/world.h"

namespace trainyard::comm {
namespace {

using ::testing::AllOf;
using testing::bytes_of;
using ::testing::ElementsAre;
using testing::for_each_rank;
using ::testing::HasSubstr;
using testing::make_world;
using testing::message_of;
using testing::run_world;

class FaultsTest : public ::testing::TestWithParam<TransportKind> {};

/// What one rank calls, differently from the others.
using Call = std::function<WorkPtr(Communicator&, std::vector<int64_t>&)>;

/// Rank 1 of three makes `odd`, the others `even`; every rank must fail and name both, and who sees
/// it with kInternal.
void expect_mismatch(TransportKind kind, const Call& even, const Call& odd,
                     const std::string& even_words, const std::string& odd_words) {
  std::atomic<int> seen_by{0};
  run_world(kind, 3, [&](Communicator& c) {
    std::vector<int64_t> data(6000, 1);
    const Status status = (c.rank() == 1 ? odd : even)(c, data)->wait();
    ASSERT_FALSE(status.has_value()) << "rank " << c.rank();
    if (status.error().code != ErrorCode::kAborted) {
      ++seen_by;
      EXPECT_EQ(status.error().code, ErrorCode::kInternal) << status.error().message;
    }
    EXPECT_THAT(status.error().message,
                AllOf(HasSubstr("signature mismatch"), HasSubstr(even_words), HasSubstr(odd_words),
                      HasSubstr("rank 1")));
    // One-shot: everything afterwards fails the same way.
    EXPECT_EQ(message_of(c.barrier()->wait()), status.error().message);
  });
  EXPECT_GE(seen_by, 1);
}

TEST_P(FaultsTest, AnotherCountIsNamedOnEveryRank) {
  expect_mismatch(
      GetParam(),
      [](Communicator& c, auto& d) {
        return c.all_reduce(bytes_of(d), DType::kInt64, ReduceOp::kSum);
      },
      [](Communicator& c, auto& d) {
        return c.all_reduce(bytes_of(d).first(8 * 17), DType::kInt64, ReduceOp::kSum);
      },
      "6000 elements", "17 elements");
}

TEST_P(FaultsTest, AnotherTypeIsNamedOnEveryRank) {
  expect_mismatch(
      GetParam(),
      [](Communicator& c, auto& d) {
        return c.all_reduce(bytes_of(d), DType::kInt64, ReduceOp::kSum);
      },
      [](Communicator& c, auto& d) {
        return c.all_reduce(bytes_of(d), DType::kFloat64, ReduceOp::kSum);
      },
      "I64 sum", "F64 sum");
}

TEST_P(FaultsTest, AnotherReductionIsNamedOnEveryRank) {
  expect_mismatch(
      GetParam(),
      [](Communicator& c, auto& d) {
        return c.all_reduce(bytes_of(d), DType::kInt64, ReduceOp::kMin);
      },
      [](Communicator& c, auto& d) {
        return c.all_reduce(bytes_of(d), DType::kInt64, ReduceOp::kMax);
      },
      "I64 min", "I64 max");
}

TEST_P(FaultsTest, AnotherOperationIsNamedOnEveryRank) {
  expect_mismatch(
      GetParam(),
      [](Communicator& c, auto& d) {
        return c.all_reduce(bytes_of(d), DType::kInt64, ReduceOp::kSum);
      },
      [](Communicator& c, auto&) { return c.barrier(); }, "all_reduce #0", "barrier #0");
}

TEST_P(FaultsTest, AnExtraOperationIsNamedOnEveryRank) {
  expect_mismatch(
      GetParam(),
      [](Communicator& c, auto& d) {
        c.batch_point_to_point({});
        return c.all_reduce(bytes_of(d), DType::kInt64, ReduceOp::kSum);
      },
      [](Communicator& c, auto& d) {
        // As if one more collective had been called here only: with one rank it would end at once.
        std::vector<int64_t> none;
        c.all_reduce(bytes_of(none), DType::kInt64, ReduceOp::kSum);
        return c.all_reduce(bytes_of(d), DType::kInt64, ReduceOp::kSum);
      },
      "6000 elements", " 0 elements");
}

TEST_P(FaultsTest, AbortWakesEveryWaiterWithTheReason) {
  std::barrier all_done(4);
  run_world(GetParam(), 4, [&](Communicator& c) {
    std::vector<int64_t> data(100'000, 1);
    const WorkPtr first = c.all_reduce(bytes_of(data), DType::kInt64, ReduceOp::kSum);
    EXPECT_EQ(message_of(first->wait()), "");
    all_done.arrive_and_wait();
    if (c.rank() == 2) {
      // It has work pending itself, which another thread aborts.
      std::vector<int64_t> mine(1);
      const WorkPtr pending =
          c.batch_point_to_point({{PointToPoint::Kind::kReceive, 0, bytes_of(mine)}});
      std::thread other([&] { c.abort({ErrorCode::kUnavailable, "the node is drained"}); });
      const Status status = pending->wait();
      other.join();
      ASSERT_FALSE(status.has_value());
      EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
      EXPECT_EQ(status.error().message, "the node is drained");
      return;
    }
    const WorkPtr second = c.all_reduce(bytes_of(data), DType::kInt64, ReduceOp::kSum);
    const WorkPtr third = c.barrier();
    for (const WorkPtr& work : {second, third}) {
      const Status status = work->wait();
      ASSERT_FALSE(status.has_value());
      EXPECT_EQ(status.error().code, ErrorCode::kAborted);
      EXPECT_THAT(status.error().message,
                  AllOf(HasSubstr("rank 2"), HasSubstr("the node is drained")));
    }
  });
}

/// It would be taken for a failure of theirs: what a rank fails with it tells itself.
TEST_P(FaultsTest, AnErrorOfARankIsNotThatOfItsPeers) {
  for (const ErrorCode code :
       {ErrorCode::kInvalidConfig, ErrorCode::kInvalidData, ErrorCode::kNotFound,
        ErrorCode::kInternal, ErrorCode::kConflict, ErrorCode::kIo}) {
    run_world(GetParam(), 3, [&](Communicator& c) {
      if (c.rank() == 2) return c.abort({code, "tokens/train"});
      const Status status = c.barrier()->wait();
      ASSERT_FALSE(status.has_value());
      EXPECT_EQ(status.error().code, ErrorCode::kAborted);
      EXPECT_THAT(status.error().message, HasSubstr("rank 2 aborted: tokens/train"));
    });
  }
}

TEST_P(FaultsTest, DestroyingWithPendingWorkAbortsItInBoundedTime) {
  auto world = make_world(GetParam(), 3);
  std::barrier phase(3);
  for_each_rank(3, [&](int rank) {
    auto made = world.connect(rank);
    ASSERT_TRUE(made.has_value()) << made.error().message;
    std::unique_ptr<Communicator> c = *std::move(made);
    std::vector<int64_t> data(50'000, 1);
    EXPECT_EQ(message_of(c->barrier()->wait()), "");
    phase.arrive_and_wait();
    if (rank == 0) {
      // The others never call this one, so it cannot end otherwise.
      const WorkPtr pending = c->all_reduce(bytes_of(data), DType::kInt64, ReduceOp::kSum);
      c.reset();
      ASSERT_TRUE(pending->done());
      EXPECT_EQ(pending->wait().error().code, ErrorCode::kAborted);
      phase.arrive_and_wait();
      return;
    }
    phase.arrive_and_wait();
    std::vector<int64_t> in(1);
    const Status status =
        c->batch_point_to_point({{PointToPoint::Kind::kReceive, 0, bytes_of(in)}})->wait();
    ASSERT_FALSE(status.has_value());
    EXPECT_THAT(status.error().message, HasSubstr("rank 0"));
  });
}

TEST_P(FaultsTest, ARankThatLeftIsNamedToWhoStillWaitsForIt) {
  auto world = make_world(GetParam(), 2);
  for_each_rank(2, [&](int rank) {
    auto c = world.connect(rank);
    ASSERT_TRUE(c.has_value()) << c.error().message;
    ASSERT_TRUE((*c)->barrier()->wait().has_value());
    if (rank == 1) return;
    const Status status = (*c)->barrier()->wait();
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kPeerLost);
    EXPECT_THAT(status.error().message, HasSubstr("rank 1"));
    EXPECT_THAT((*c)->lost_ranks(), ElementsAre(1));
  });
}

TEST_P(FaultsTest, CallsThatCannotBeRightFailTheGroup) {
  run_world(GetParam(), 2, [&](Communicator& c) {
    std::vector<std::byte> odd(7);
    const std::vector<int64_t> counts{1, 2};
    if (c.rank() == 0) {
      const Status status = c.reduce_scatter(odd, counts, DType::kInt32, ReduceOp::kSum)->wait();
      ASSERT_FALSE(status.has_value());
      EXPECT_EQ(status.error().code, ErrorCode::kInvalidConfig);
      EXPECT_THAT(status.error().message, HasSubstr("counts make 12 bytes, the buffer has 7"));
    } else {
      const Status status = c.barrier()->wait();
      ASSERT_FALSE(status.has_value());
      EXPECT_THAT(status.error().message, HasSubstr("counts make 12 bytes"));
    }
  });
}

TEST_P(FaultsTest, SubGroupsOfTheWrongRanksAreRefused) {
  run_world(GetParam(), 2, [&](Communicator& c) {
    const std::vector<int> descending{1, 0};
    const std::vector<int> other{1 - c.rank()};
    EXPECT_EQ(c.sub_group(descending).error().code, ErrorCode::kInvalidConfig);
    EXPECT_THAT(c.sub_group(other).error().message, HasSubstr("is not among its members"));
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, FaultsTest, ::testing::ValuesIn(testing::kTransports),
                         [](const auto& parameter) {
                           return std::string(name_of(parameter.param));
                         });

}  // namespace
}  // namespace trainyard::comm
