// Operations in memory that host code cannot touch, over the ones of a group in the host's memory.

#include "worker/comm/staged_communicator.h"

#include <latch>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/worker/comm/world.h"
#include "tests/unit/worker/device/guarded_device.h"

namespace trainyard::comm {
namespace {

using ::testing::HasSubstr;

/// More than two pieces, none of them whole.
constexpr int64_t kManyElements = 3 * kStagedPieceBytes / 8 + 12'345;

/// A rank's device, its group, and numbers in the device's memory.
class Rank {
 public:
  Rank(Communicator& host, int64_t elements)
      : block_(*device_.memory().allocate(elements * 8)),
        group_(*StagedCommunicator::make(host, device_)) {}

  engine::testing::GuardedDevice& device() { return device_; }
  StepCommunicator& group() { return *group_; }
  std::span<std::byte> bytes() { return block_->bytes(); }
  /// Where a test touches the numbers.
  std::span<int64_t> numbers() {
    const std::span<std::byte> bytes = device_.reachable(block_->bytes());
    return {reinterpret_cast<int64_t*>(bytes.data()), bytes.size() / 8};
  }

 private:
  engine::testing::GuardedDevice device_;
  std::unique_ptr<engine::MemoryBlock> block_;
  std::unique_ptr<StepCommunicator> group_;
};

/// Counts that differ, one of them 0 and none a multiple of a piece.
std::vector<int64_t> counts_of(int size, int64_t elements) {
  std::vector<int64_t> counts(static_cast<size_t>(size), 0);
  counts[0] = elements / 3;
  counts.back() = elements - counts[0];
  return counts;
}

TEST(StagedCommunicatorTest, SumsInPieces) {
  for (const int64_t elements : {int64_t{0}, int64_t{5}, kManyElements}) {
    testing::run_world(TransportKind::kLocal, 3, [&](Communicator& host) {
      Rank rank(host, elements);
      const std::span<int64_t> numbers = rank.numbers();
      std::iota(numbers.begin(), numbers.end(), 1000 * host.rank());
      ASSERT_TRUE(rank.group().all_reduce(rank.bytes(), DType::kInt64, ReduceOp::kSum)->wait());
      for (int64_t i = 0; i < elements; ++i)
        ASSERT_EQ(numbers[static_cast<size_t>(i)], 3000 + 3 * i) << i;
    });
  }
}

TEST(StagedCommunicatorTest, EveryRankHasItsPartOfTheSum) {
  testing::run_world(TransportKind::kLocal, 3, [&](Communicator& host) {
    Rank rank(host, kManyElements);
    const std::span<int64_t> numbers = rank.numbers();
    std::iota(numbers.begin(), numbers.end(), 1000 * host.rank());
    const std::vector<int64_t> counts = counts_of(3, kManyElements);
    ASSERT_TRUE(
        rank.group().reduce_scatter(rank.bytes(), counts, DType::kInt64, ReduceOp::kSum)->wait());
    const int64_t begin = host.rank() == 0 ? 0 : counts[0];
    for (int64_t i = begin; i < begin + counts[static_cast<size_t>(host.rank())]; ++i)
      ASSERT_EQ(numbers[static_cast<size_t>(i)], 3000 + 3 * i) << i;
    // What others own is as it was.
    const int64_t other = host.rank() == 0 ? kManyElements - 1 : 0;
    EXPECT_EQ(numbers[static_cast<size_t>(other)], 1000 * host.rank() + other);
  });
}

TEST(StagedCommunicatorTest, EveryRankHasAllParts) {
  testing::run_world(TransportKind::kLocal, 3, [&](Communicator& host) {
    Rank rank(host, kManyElements);
    const std::span<int64_t> numbers = rank.numbers();
    const std::vector<int64_t> counts = counts_of(3, kManyElements);
    const int64_t begin = host.rank() == 0 ? 0 : counts[0];
    for (int64_t i = begin; i < begin + counts[static_cast<size_t>(host.rank())]; ++i)
      numbers[static_cast<size_t>(i)] = 7 * i;
    ASSERT_TRUE(rank.group().all_gather(rank.bytes(), counts, DType::kInt64)->wait());
    for (int64_t i = 0; i < kManyElements; ++i)
      ASSERT_EQ(numbers[static_cast<size_t>(i)], 7 * i) << i;
  });
}

/// The part of the rank itself is copied, too.
TEST(StagedCommunicatorTest, PartsGoFromEveryRankToEveryRank) {
  for (const int64_t each : {int64_t{0}, int64_t{3}, kManyElements / 3}) {
    testing::run_world(TransportKind::kLocal, 3, [&](Communicator& host) {
      Rank rank(host, 6 * each);
      const std::span<int64_t> numbers = rank.numbers();
      std::iota(numbers.begin(), numbers.end(), 10'000'000 * host.rank());
      const size_t half = rank.bytes().size() / 2;
      ASSERT_TRUE(
          rank.group()
              .all_to_all(rank.bytes().first(half), rank.bytes().subspan(half), DType::kInt64)
              ->wait());
      for (int64_t i = 0; i < 3 * each; ++i) {
        const int64_t sent = 10'000'000 * (i / each) + host.rank() * each + i % each;
        ASSERT_EQ(numbers[static_cast<size_t>(3 * each + i)], sent) << i;
      }
      EXPECT_EQ(rank.group().counters().bytes_sent, 2 * each * 8);
    });
  }
}

TEST(StagedCommunicatorTest, PartsThatAreNotEqualAreRefused) {
  testing::run_world(TransportKind::kLocal, 2, [&](Communicator& host) {
    Rank rank(host, 6);
    if (host.rank() == 1) return;
    const Status status =
        rank.group()
            .all_to_all(rank.bytes().first(24), rank.bytes().subspan(24), DType::kInt64)
            ->wait();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidConfig);
    EXPECT_THAT(status.error().message,
                HasSubstr("found 24 bytes to send and 24 to receive, wanted as many, in 2 equal"));
  });
}

TEST(StagedCommunicatorTest, MessagesArriveInOrder) {
  testing::run_world(TransportKind::kLocal, 2, [&](Communicator& host) {
    Rank rank(host, kManyElements);
    const std::span<int64_t> numbers = rank.numbers();
    const std::span<std::byte> head = rank.bytes().first(8);
    if (host.rank() == 0) {
      std::iota(numbers.begin(), numbers.end(), 5);
      // The second message leaves before anybody has waited for the first.
      const WorkPtr all = rank.group().send(rank.bytes(), 1);
      const WorkPtr one = rank.group().send(head, 1);
      ASSERT_TRUE(all->wait() && one->wait());
    } else {
      ASSERT_TRUE(rank.group().receive(rank.bytes(), 0)->wait());
      for (int64_t i = 0; i < kManyElements; ++i)
        ASSERT_EQ(numbers[static_cast<size_t>(i)], 5 + i) << i;
      numbers[0] = 0;
      ASSERT_TRUE(rank.group().receive(head, 0)->wait());
      EXPECT_EQ(numbers[0], 5);
    }
  });
}

/// What an engine enqueued before the call is in what the peers get.
TEST(StagedCommunicatorTest, FollowsWhatIsEnqueued) {
  testing::run_world(TransportKind::kLocal, 2, [&](Communicator& host) {
    Rank rank(host, 1);
    const int64_t value = 11 + host.rank();
    const engine::CopyRange range{rank.bytes().data(), std::as_bytes(std::span(&value, 1)).data(),
                                  8};
    rank.device().copy(std::span(&range, 1));
    ASSERT_TRUE(rank.group().all_reduce(rank.bytes(), DType::kInt64, ReduceOp::kSum)->wait());
    EXPECT_EQ(rank.numbers()[0], 23);
  });
}

TEST(StagedCommunicatorTest, ADeviceThatFailsReleasesThePeers) {
  for (const int copies : {0, 1, 2, 3}) {
    testing::run_world(TransportKind::kLocal, 2, [&](Communicator& host) {
      Rank rank(host, kManyElements);
      if (host.rank() == 0) rank.device().fail_copies_after(copies);
      const WorkPtr work = rank.group().all_reduce(rank.bytes(), DType::kInt64, ReduceOp::kSum);
      const Status status = work->wait();
      ASSERT_FALSE(status);
      EXPECT_TRUE(work->done());
      EXPECT_THAT(status.error().message, HasSubstr("the device is broken"));
      if (host.rank() != 0) {
        EXPECT_THAT(status.error().message, HasSubstr("rank 0"));
      }
      EXPECT_FALSE(rank.group().send(rank.bytes(), 1 - host.rank())->wait()) << "nothing goes on";
    });
  }
}

TEST(StagedCommunicatorTest, AnAbortEndsWhatWaits) {
  std::latch over(1);
  testing::run_world(TransportKind::kLocal, 2, [&](Communicator& host) {
    Rank rank(host, 8);
    if (host.rank() != 0) return over.wait();  // it is there, and sends nothing
    const WorkPtr first = rank.group().receive(rank.bytes(), 1);
    const WorkPtr second = rank.group().receive(rank.bytes(), 1);
    rank.group().abort(Error{ErrorCode::kAborted, "enough"});
    const Status ended = first->wait();
    EXPECT_THAT(ended ? "" : ended.error().message, HasSubstr("enough"));
    EXPECT_FALSE(second->wait());
    over.count_down();
  });
}

/// A group that goes leaves nobody waiting, and no thread behind.
TEST(StagedCommunicatorTest, MayGoBeforeWhatItWasAskedFor) {
  testing::run_world(TransportKind::kLocal, 2, [&](Communicator& host) {
    WorkPtr work;
    {
      Rank rank(host, 8);
      for (int i = 0; i < 100; ++i)
        work = rank.group().all_reduce(rank.bytes(), DType::kInt64, ReduceOp::kMax);
      host.abort(Error{ErrorCode::kAborted, "over"});
    }
    EXPECT_TRUE(work->done());
  });
}

}  // namespace
}  // namespace trainyard::comm
