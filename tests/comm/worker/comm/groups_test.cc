// Sub-groups by colour and key, orders of the ring, random programs over several groups at once.

#include "worker/comm/groups.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/random/philox.h"
#include "tests/comm/worker/comm/reference.h"
#include "tests/comm/worker/comm/world.h"
#include "worker/comm/formulas.h"

namespace trainyard::comm {
namespace {

using testing::bytes_of;
using testing::contribution;
using testing::for_each_rank;
using ::testing::HasSubstr;
using testing::make_world;
using testing::message_of;
using testing::run_world;
using testing::uneven_counts;

using Parameter = std::tuple<TransportKind, int>;

std::string case_name(const ::testing::TestParamInfo<Parameter>& info) {
  return std::string(name_of(std::get<0>(info.param))) + "_" +
         std::to_string(std::get<1>(info.param));
}

class GroupsTest : public ::testing::TestWithParam<Parameter> {
 protected:
  TransportKind kind() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
};

/// A bit for each rank of the world that is in the group.
int64_t members_of(const Communicator& world, StepCommunicator& group) {
  std::vector<int64_t> members(1, int64_t{1} << world.rank());
  EXPECT_EQ(message_of(group.all_reduce(bytes_of(members), DType::kInt64, ReduceOp::kSum)->wait()),
            "");
  return members[0];
}

TEST(MeshGroupsTest, HaveTheRanksThatDifferInTheirAxesAlone) {
  const layout::Mesh mesh{.pp = 3, .dp = 2, .fsdp = 2, .tp = 1};
  run_world(TransportKind::kLocal, mesh.size(), [&](Communicator& c) {
    auto groups = Groups::make(c, mesh);
    ASSERT_TRUE(groups) << groups.error().message;
    EXPECT_EQ(groups->world, &c);
    EXPECT_EQ(groups->data_ranks(), 4);
    EXPECT_EQ(groups->data_rank(), c.rank() % 4);
    EXPECT_EQ(members_of(c, *groups->shard), int64_t{3} << (c.rank() / 2 * 2));
    const std::vector<int> one_stage = {c.rank() / 4};
    EXPECT_EQ(members_of(c, *groups->copies(one_stage)),
              int64_t{5} << (c.rank() / 4 * 4 + c.rank() % 2));
    const std::vector<int> both_ends = {0, 2};
    StepCommunicator* const tied = groups->copies(both_ends);
    ASSERT_EQ(tied == nullptr, c.rank() / 4 == 1) << "a stage between";
    if (tied != nullptr) {
      EXPECT_EQ(members_of(c, *tied), int64_t{0x505} << c.rank() % 2);
    }
    EXPECT_EQ(groups->counters().operations, tied == nullptr ? 2 : 3) << "of all groups together";
  });
}

TEST(MeshGroupsTest, CopiesOfWhatIsSummedOverTensorRanksAreNumberedByCopyAndTensorRank) {
  const layout::Mesh mesh{.dp = 2, .fsdp = 2, .tp = 2, .slices = true};
  run_world(TransportKind::kLocal, mesh.size(), [&](Communicator& c) {
    auto groups = Groups::make(c, mesh);
    ASSERT_TRUE(groups) << groups.error().message;
    const std::vector<int> one_stage = {0};
    EXPECT_EQ(groups->copies(one_stage)->size(), 2);
    StepCommunicator* const copies = groups->copies(one_stage, true);
    ASSERT_EQ(copies->size(), 4);
    EXPECT_EQ(copies->rank(), groups->at.dp * 2 + groups->at.tp);
    std::vector<int64_t> members(1, int64_t{1} << c.rank());
    EXPECT_EQ(
        message_of(copies->all_reduce(bytes_of(members), DType::kInt64, ReduceOp::kSum)->wait()),
        "");
    EXPECT_EQ(members[0], int64_t{0x33} << (groups->at.fsdp * 2));
  });
}

TEST(MeshGroupsTest, ContextRanksMeetAndAreCopiesBesideThoseOfDataRanks) {
  const layout::Mesh mesh{.pp = 2, .dp = 2, .cp = 2, .tp = 2, .slices = true};
  run_world(TransportKind::kLocal, mesh.size(), [&](Communicator& c) {
    auto groups = Groups::make(c, mesh);
    ASSERT_TRUE(groups) << groups.error().message;
    const layout::Coordinate& at = groups->at;
    ASSERT_EQ(groups->context->size(), 2);
    EXPECT_EQ(groups->context->rank(), at.cp);
    EXPECT_EQ(members_of(c, *groups->context), int64_t{5} << (at.pp * 8 + at.dp * 4 + at.tp));
    const std::vector<int> one_stage = {at.pp};
    EXPECT_EQ(groups->copies(one_stage)->rank(), at.dp * 2 + at.cp);
    EXPECT_EQ(members_of(c, *groups->copies(one_stage)), int64_t{0x55} << (at.pp * 8 + at.tp));
    EXPECT_EQ(groups->copies(one_stage, true)->rank(), (at.dp * 2 + at.cp) * 2 + at.tp);
    EXPECT_EQ(members_of(c, *groups->copies(one_stage, true)), int64_t{0xff} << (at.pp * 8));
    const std::vector<int> both_ends = {0, 1};
    EXPECT_EQ(groups->copies(both_ends)->rank(), (at.pp * 2 + at.dp) * 2 + at.cp);
    EXPECT_EQ(members_of(c, *groups->copies(both_ends)), int64_t{0x5555} << at.tp);
  });
}

/// Every rank begins to receive from both sides before it sends its number; -1: nobody is there.
void expect_neighbours(const Groups& groups, int rank, int rank_before, int rank_after) {
  EXPECT_EQ(groups.channel(Channel::kActivationIn) == nullptr, rank_before < 0);
  EXPECT_EQ(groups.channel(Channel::kGradientOut) == nullptr, rank_before < 0);
  EXPECT_EQ(groups.channel(Channel::kActivationOut) == nullptr, rank_after < 0);
  EXPECT_EQ(groups.channel(Channel::kGradientIn) == nullptr, rank_after < 0);
  std::vector<int> before(1, -1);
  std::vector<int> after(1, -1);
  std::vector<int> own(1, rank);
  std::vector<WorkPtr> works;
  const auto exchange = [&](Channel channel, std::vector<int>& value, bool sends) {
    StepCommunicator* const group = groups.channel(channel);
    if (group == nullptr) return;
    EXPECT_EQ(group->size(), 2);
    const int peer = 1 - group->rank();
    works.push_back(sends ? group->send(bytes_of(value), peer)
                          : group->receive(bytes_of(value), peer));
  };
  exchange(Channel::kActivationIn, before, false);
  exchange(Channel::kGradientIn, after, false);
  exchange(Channel::kActivationOut, own, true);
  exchange(Channel::kGradientOut, own, true);
  for (const WorkPtr& work : works)
    EXPECT_EQ(message_of(work->wait()), "");
  EXPECT_EQ(before[0], rank_before);
  EXPECT_EQ(after[0], rank_after);
}

TEST(MeshGroupsTest, ChannelsGoBetweenNeighboursAlongAPipelineEachInAnOrderOfItsOwn) {
  const layout::Mesh mesh{.pp = 3, .dp = 2};
  run_world(TransportKind::kLocal, mesh.size(), [&](Communicator& c) {
    const auto groups = Groups::make(c, mesh);
    ASSERT_TRUE(groups) << groups.error().message;
    const int pp = c.rank() / 2;
    expect_neighbours(*groups, c.rank(), pp == 0 ? -1 : c.rank() - 2, pp == 2 ? -1 : c.rank() + 2);
  });
}

TEST(MeshGroupsTest, TheLastRankOfAPipelineWithSeveralStagesEachComesBeforeTheFirst) {
  for (const int pipeline : {2, 3, 4}) {
    const layout::Mesh mesh{.pp = pipeline, .fsdp = 2};
    run_world(TransportKind::kLocal, mesh.size(), [&](Communicator& c) {
      const auto groups = Groups::make(c, mesh, 2);
      ASSERT_TRUE(groups) << groups.error().message;
      const int ranks = mesh.size();
      expect_neighbours(*groups, c.rank(), (c.rank() + ranks - 2) % ranks, (c.rank() + 2) % ranks);
    });
  }
}

TEST(MeshGroupsTest, AreTheWorldItselfWhereAllRanksShareTheStates) {
  run_world(TransportKind::kLocal, 3, [](Communicator& c) {
    const Groups groups = Groups::of_data_ranks(c);
    EXPECT_EQ(groups.shard, &c);
    const std::vector<int> stages = {0, 0};
    EXPECT_EQ(groups.copies(std::span(stages).first(1)), nullptr) << "there is one copy";
    EXPECT_EQ(groups.copies(stages), nullptr) << "and one stage";
    EXPECT_EQ(groups.data_rank(), c.rank());
    const auto other = Groups::make(c, {.dp = 2});
    ASSERT_FALSE(other);
    EXPECT_THAT(other.error().message, HasSubstr("found 3 ranks, wanted the 2 of the mesh"));
  });
}

TEST_P(GroupsTest, RowsAndColumnsOfAMeshRunAtTheSameTime) {
  run_world(kind(), size(), [&](Communicator& c) {
    const int width = 3;
    std::vector<int> ranks_of_row;
    std::vector<int> ranks_of_column;
    for (int rank = 0; rank < c.size(); ++rank) {
      if (rank / width == c.rank() / width) ranks_of_row.push_back(rank);
      if (rank % width == c.rank() % width) ranks_of_column.push_back(rank);
    }
    auto row = c.sub_group(ranks_of_row);
    auto column = c.sub_group(ranks_of_column);
    ASSERT_TRUE(row.has_value() && column.has_value());
    for (int round = 0; round < 5; ++round) {
      std::vector<int64_t> in_row(30'000, c.rank() + 1);
      std::vector<int64_t> in_column(30'000, c.rank() + 1);
      std::vector<int64_t> everywhere(30'000, c.rank() + 1);
      const WorkPtr works[] = {
          (*column)->all_reduce(bytes_of(in_column), DType::kInt64, ReduceOp::kSum),
          c.all_reduce(bytes_of(everywhere), DType::kInt64, ReduceOp::kSum),
          (*row)->all_reduce(bytes_of(in_row), DType::kInt64, ReduceOp::kSum)};
      for (const WorkPtr& work : works)
        ASSERT_EQ(message_of(work->wait()), "");
      int64_t of_row = 0;
      for (const int rank : ranks_of_row)
        of_row += rank + 1;
      int64_t of_column = 0;
      for (const int rank : ranks_of_column)
        of_column += rank + 1;
      EXPECT_EQ(in_row, std::vector<int64_t>(30'000, of_row));
      EXPECT_EQ(in_column, std::vector<int64_t>(30'000, of_column));
      EXPECT_EQ(everywhere, std::vector<int64_t>(30'000, c.size() * (c.size() + 1) / 2));
    }
  });
}

/// Everything a rank has after one of each collective.
std::vector<std::byte> one_of_each(Communicator& c, std::span<const int> ring) {
  std::vector<std::byte> all;
  int64_t before = c.counters().bytes_sent;
  const auto finish = [&](const WorkPtr& work, std::span<const std::byte> data,
                          int64_t bytes_sent) {
    EXPECT_EQ(message_of(work->wait()), "");
    all.insert(all.end(), data.begin(), data.end());
    EXPECT_EQ(c.counters().bytes_sent - std::exchange(before, c.counters().bytes_sent), bytes_sent);
  };
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt64}) {
    for (const int64_t count : {3, 65'537}) {
      const auto salt = static_cast<uint64_t>(count);
      const auto counts = uneven_counts(count, c.size(), salt);
      auto data = contribution(dtype, count, c.rank(), salt);
      finish(c.all_reduce(data, dtype, ReduceOp::kSum), data,
             all_reduce_bytes_sent(c.size(), c.rank(), count, dtype, ring));
      data = contribution(dtype, count, c.rank(), salt + 1);
      const WorkPtr scattered = c.reduce_scatter(data, counts, dtype, ReduceOp::kSum);
      EXPECT_EQ(message_of(scattered->wait()), "");
      const auto own = testing::part_of(data, counts, c.rank(), dtype);
      finish(scattered, own, reduce_scatter_bytes_sent(c.rank(), counts, dtype));
      finish(c.all_gather(data, counts, dtype), data,
             all_gather_bytes_sent(c.rank(), counts, dtype, ring));
      const int root = c.size() / 2;
      data = contribution(dtype, count, c.rank(), salt + 2);
      finish(c.broadcast(data, root), data,
             broadcast_bytes_sent(c.size(), c.rank(), root, count * size_of(dtype), ring));
      data = contribution(dtype, count, c.rank(), salt + 3);
      const WorkPtr reduced = c.reduce(data, dtype, ReduceOp::kSum, root);
      EXPECT_EQ(message_of(reduced->wait()), "");
      finish(reduced, c.rank() == root ? std::span<const std::byte>(data) : std::span<std::byte>(),
             reduce_bytes_sent(c.size(), c.rank(), root, count, dtype, ReduceOp::kSum));
    }
  }
  return all;
}

TEST_P(GroupsTest, AnyRingOrderGivesTheSameBitsAndTheBytesOfTheFormulas) {
  std::vector<std::vector<std::byte>> wanted(static_cast<size_t>(size()));
  std::vector<int> ring(static_cast<size_t>(size()));
  std::iota(ring.begin(), ring.end(), 0);
  for (uint64_t order = 0; order < 4; ++order) {
    auto world = make_world(kind(), size());
    for (Options& options : world.options)
      options.ring_order = order == 0 ? std::vector<int>() : ring;
    for_each_rank(size(), [&](int rank) {
      auto c = world.connect(rank);
      ASSERT_TRUE(c.has_value()) << c.error().message;
      const auto results = one_of_each(**c, order == 0 ? std::span<const int>() : ring);
      auto& first = wanted[static_cast<size_t>(rank)];
      if (order == 0) first = results;
      EXPECT_TRUE(results == first) << "order " << order << " rank " << rank;
    });
    for (size_t i = ring.size(); i > 1; --i)
      std::swap(ring[i - 1], ring[mix64(order * 100 + i) % i]);
  }
}

TEST_P(GroupsTest, ASubGroupKeepsTheRingOrder) {
  auto world = make_world(kind(), size());
  for (Options& options : world.options) {
    // Named in part, and for a larger world.
    options.ring_order = {size() + 4, size() - 1, 1};
    if (size() == 2) options.ring_order.pop_back();
  }
  for_each_rank(size(), [&](int rank) {
    auto c = world.connect(rank);
    ASSERT_TRUE(c.has_value()) << c.error().message;
    std::vector<int> members;
    for (int member = size() % 2; member < size(); ++member)
      members.push_back(member);
    if (rank < members.front()) return;
    auto group = (*c)->sub_group(members);
    ASSERT_TRUE(group.has_value()) << group.error().message;
    // Member m is rank m + offset; the last rank first, rank 1, then the others.
    const int offset = members.front();
    std::vector<int> ring;
    for (const int in_world : {size() - 1, 1, 0, 2, 3, 4, 5, 6, 7, 8}) {
      const int member = in_world - offset;
      const bool there = member >= 0 && in_world < size();
      if (there && std::find(ring.begin(), ring.end(), member) == ring.end()) {
        ring.push_back(member);
      }
    }
    one_of_each(**group, ring);
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, GroupsTest,
                         ::testing::Combine(::testing::ValuesIn(testing::kTransports),
                                            ::testing::ValuesIn(testing::kGroupedWorldSizes)),
                         case_name);

/// Threads of one process know at once that a rank does not come; by the deadline this test would
/// outlast its limit.
class LocalMeetingTest : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr std::chrono::hours kNever{24};
};

TEST_P(LocalMeetingTest, ARankThatLeavesTheWorldWakesThoseWhoWaitForItInAGroup) {
  const bool aborts = GetParam();
  auto world = make_world(TransportKind::kLocal, 3, kNever);
  for_each_rank(3, [&](int rank) {
    auto c = world.connect(rank);
    ASSERT_TRUE(c.has_value()) << c.error().message;
    if (rank == 2) {
      if (aborts) (*c)->abort({ErrorCode::kIo, "no memory"});
      return;
    }
    const auto group = (*c)->sub_group(std::vector<int>{0, 1, 2});
    ASSERT_FALSE(group.has_value());
    // An abort that comes before it begins to meet has a code of its own.
    if (!aborts) {
      EXPECT_EQ(group.error().code, ErrorCode::kPeerLost);
    }
    EXPECT_THAT(group.error().message, HasSubstr("rank 2"));
    EXPECT_THAT(group.error().message, HasSubstr(aborts ? "no memory" : "it has left"));
  });
}

TEST_P(LocalMeetingTest, TheEndOfASmallerGroupKeepsNobodyFromMeeting) {
  const bool aborts = GetParam();
  run_world(
      TransportKind::kLocal, 3,
      [&](Communicator& c) {
        {
          const auto pair = c.sub_group(std::vector<int>{0, 1, 2});
          ASSERT_TRUE(pair.has_value()) << pair.error().message;
          if (aborts && c.rank() == 2) (*pair)->abort({ErrorCode::kIo, "no link"});
        }
        const auto all = c.sub_group(std::vector<int>{0, 1, 2});
        ASSERT_TRUE(all.has_value()) << all.error().message;
      },
      kNever);
}

INSTANTIATE_TEST_SUITE_P(LeavesOrAborts, LocalMeetingTest, ::testing::Bool());

TEST(LocalRefusalTest, ARankThatIsRefusedWakesTheOthers) {
  auto world = make_world(TransportKind::kLocal, 2, std::chrono::hours(24));
  world.options[0].ring_order = {1, 0};
  for_each_rank(2, [&](int rank) {
    const auto c = world.connect(rank);
    ASSERT_FALSE(c.has_value());
    EXPECT_THAT(c.error().message, HasSubstr("has another ring order than the others"));
  });
}

class RingOrderTest : public ::testing::TestWithParam<TransportKind> {};

TEST_P(RingOrderTest, RanksThatDisagreeAreRefused) {
  auto world = make_world(GetParam(), 2, std::chrono::milliseconds(500));
  world.options[0].ring_order = {1, 0};
  for_each_rank(2, [&](int rank) {
    const auto c = world.connect(rank);
    ASSERT_FALSE(c.has_value());
    // Who connects, or comes second, is told; the other waits for it in vain.
    if (c.error().code == ErrorCode::kConflict) {
      EXPECT_THAT(c.error().message, HasSubstr("ring order"));
    } else {
      EXPECT_EQ(c.error().code, ErrorCode::kPeerLost) << c.error().message;
    }
  });
}

TEST_P(RingOrderTest, ARankNamedTwiceIsRefused) {
  auto world = make_world(GetParam(), 2);
  world.options[0].ring_order = {1, 0, 1};
  const auto c = world.connect(0);
  ASSERT_FALSE(c.has_value());
  EXPECT_EQ(c.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(c.error().message, HasSubstr("rank 1 is named twice"));
}

INSTANTIATE_TEST_SUITE_P(Transports, RingOrderTest, ::testing::ValuesIn(testing::kTransports),
                         [](const auto& parameter) {
                           return std::string(name_of(parameter.param));
                         });

}  // namespace
}  // namespace trainyard::comm
