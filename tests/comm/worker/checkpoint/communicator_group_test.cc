#include "worker/checkpoint/communicator_group.h"

#include <numeric>

#include <gtest/gtest.h>

#include "tests/comm/worker/comm/world.h"
#include "tests/support/exact.h"
#include "tests/unit/worker/checkpoint/job_directory.h"

namespace trainyard::checkpoint {
namespace {

using comm::Communicator;
using comm::TransportKind;
using comm::testing::kTransports;
using comm::testing::run_world;

constexpr int kSizes[] = {1, 2, 3, 5};
constexpr std::chrono::seconds kDeadline{60};

/// A record that tells its rank and round, of a length that differs between ranks: empty, short,
/// beyond one message of any transport; with every byte value.
std::string record_of(int rank, int round) {
  static constexpr size_t kLengths[] = {0, 1, 100, 70'000, 3'000'001};
  std::string text(kLengths[static_cast<size_t>(rank + round) % std::size(kLengths)], '\0');
  for (size_t i = 0; i < text.size(); ++i)
    text[i] = static_cast<char>(i * 7 + static_cast<size_t>(rank * 31 + round));
  return text;
}

class CommitGroupTest : public ::testing::TestWithParam<TransportKind> {};

TEST_P(CommitGroupTest, GathersEveryRecordInRankOrderOnRank0) {
  for (const int size : kSizes) {
    run_world(GetParam(), size, [&](Communicator& communicator) {
      CommunicatorCommitGroup group(communicator);
      ASSERT_EQ(group.size(), size);
      for (int round = 0; round < 5; ++round) {
        const auto records = group.gather(record_of(group.rank(), round));
        ASSERT_TRUE(records) << records.error().message;
        if (group.rank() != 0) {
          ASSERT_TRUE(records->empty());
          continue;
        }
        ASSERT_EQ(static_cast<int>(records->size()), size);
        for (int rank = 0; rank < size; ++rank)
          ASSERT_EQ((*records)[static_cast<size_t>(rank)], record_of(rank, round))
              << testing_support::kExact << ": rank " << rank;
      }
    });
  }
}

TEST_P(CommitGroupTest, BroadcastsRank0sTextAndIgnoresTheOthers) {
  for (const int size : kSizes) {
    run_world(GetParam(), size, [&](Communicator& communicator) {
      CommunicatorCommitGroup group(communicator);
      for (int round = 0; round < 5; ++round) {
        const auto text = group.broadcast(record_of(group.rank(), round));
        ASSERT_TRUE(text) << text.error().message;
        ASSERT_EQ(*text, record_of(0, round)) << testing_support::kExact << ": round " << round;
      }
    });
  }
}

TEST_P(CommitGroupTest, AnyIsTrueOnAllWhenOneSaysSo) {
  for (const int size : kSizes) {
    run_world(GetParam(), size, [&](Communicator& communicator) {
      CommunicatorCommitGroup group(communicator);
      for (int who = -1; who < size; ++who) {  // -1: nobody
        const auto any = group.any(group.rank() == who);
        ASSERT_TRUE(any) << any.error().message;
        ASSERT_EQ(*any, who >= 0) << who;
      }
      const auto all = group.any(true);
      ASSERT_TRUE(all && *all);
    });
  }
}

TEST_P(CommitGroupTest, LivesBesideTheStepsOnASubGroupOfItsOwn) {
  run_world(GetParam(), 3, [&](Communicator& communicator) {
    std::vector<int> everyone(3);
    std::iota(everyone.begin(), everyone.end(), 0);
    const auto background = communicator.sub_group(everyone);
    ASSERT_TRUE(background) << background.error().message;
    CommunicatorCommitGroup group(**background);
    // Rank 0 is late in the group, not in the steps: those do not wait for it.
    std::vector<int64_t> sum(8, communicator.rank());
    const auto step =
        communicator.all_reduce(comm::testing::bytes_of(sum), DType::kInt64, comm::ReduceOp::kSum);
    if (group.rank() == 0) {
      ASSERT_TRUE(step->wait());
    }
    const auto any = group.any(group.rank() == 2);
    ASSERT_TRUE(any && *any);
    ASSERT_TRUE(step->wait());
    EXPECT_EQ(sum, std::vector<int64_t>(8, 3)) << testing_support::kExact;
  });
}

TEST_P(CommitGroupTest, ALostRankIsAnErrorAndEveryLaterCallToo) {
  run_world(GetParam(), 3, [&](Communicator& communicator) {
    CommunicatorCommitGroup group(communicator);
    // Rank 2 may be gone before the others have heard of the end of this one.
    const auto first = group.any(false);
    if (group.rank() == 2) {
      ASSERT_TRUE(first);
      communicator.abort({ErrorCode::kAborted, "this rank goes"});
      return;
    }
    const auto lost = group.gather("something");
    // A send may have left before the peer went; then the next call knows.
    const auto later = group.any(false);
    EXPECT_FALSE(lost && later);
    const auto last = group.broadcast("something");
    ASSERT_FALSE(last);
    EXPECT_TRUE(last.error().code == ErrorCode::kPeerLost ||
                last.error().code == ErrorCode::kAborted)
        << last.error().message;
  });
}

TEST_P(CommitGroupTest, CarriesAGenerationItsCheckpointsAndItsSuccessor) {
  using checkpoint::testing::difference;
  checkpoint::testing::JobDirectory job;
  const auto files = std::make_shared<PosixFileSystem>();
  const auto live = [&](Communicator& communicator, int64_t generation,
                        std::optional<int64_t> parent, int64_t step, int64_t restored_step) {
    CommunicatorCommitGroup group(communicator);
    int64_t restored = -1;
    const auto started = start_generation(*files, job.plan(generation, parent), group,
                                          [&](CheckpointReader& reader) -> Status {
                                            const std::string wrong = difference(reader);
                                            if (!wrong.empty())
                                              return Error{ErrorCode::kInvalidData, wrong};
                                            restored = reader.manifest().step;
                                            return {};
                                          });
    ASSERT_TRUE(started) << started.error().message;
    ASSERT_EQ(restored, restored_step);
    CheckpointWriter writer(files, group, {.root = job.root(), .chunk_bytes = 256}, *started);
    const auto state = checkpoint::testing::small_state(step);
    ASSERT_TRUE(
        writer.begin(checkpoint::testing::small_snapshot(state, step, group.rank(), group.size())));
    const auto outcome = writer.wait(kDeadline);
    ASSERT_TRUE(outcome && outcome->status) << outcome->status.error().message;
  };
  run_world(GetParam(), 3, [&](Communicator& world) { live(world, 1, std::nullopt, 10, -1); });
  run_world(GetParam(), 2, [&](Communicator& world) { live(world, 2, 1, 20, 10); });
}

std::string transport_of(const ::testing::TestParamInfo<TransportKind>& tested) {
  return std::string(name_of(tested.param));
}
INSTANTIATE_TEST_SUITE_P(Transports, CommitGroupTest, ::testing::ValuesIn(kTransports),
                         transport_of);

}  // namespace
}  // namespace trainyard::checkpoint
