// Every collective on every transport against a reference computed by one thread.

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <tuple>

#include <gtest/gtest.h>

#include "common/random/philox.h"
#include "tests/comm/worker/comm/reference.h"
#include "tests/comm/worker/comm/world.h"
#include "worker/comm/formulas.h"
#include "worker/comm/host/reduce.h"

namespace trainyard::comm {
namespace {

using testing::bytes_of;
using testing::contribution;
using testing::is_combined;
using testing::kAllDTypes;
using testing::kAllReductions;
using testing::message_of;
using testing::References;
using testing::run_world;
using testing::uneven_counts;

class CollectivesTest : public ::testing::TestWithParam<std::tuple<TransportKind, int>> {
 protected:
  TransportKind kind() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
  std::vector<std::byte> reference(DType dtype, ReduceOp op, int64_t count, int of_size,
                                   uint64_t salt) {
    return references_.get(dtype, op, count, of_size, salt);
  }

  References references_;
};

TEST_P(CollectivesTest, AllReduceEqualsReferenceForEveryTypeAndOperation) {
  run_world(kind(), size(), [&](Communicator& c) {
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : kAllReductions) {
        if (!is_combined(dtype, op)) continue;
        for (const int64_t count : {0, 1, 7, 1009, 20'011}) {
          const uint64_t salt = mix64(static_cast<uint64_t>(count) * 64 +
                                      static_cast<uint64_t>(dtype) * 8 + static_cast<uint64_t>(op));
          auto data = contribution(dtype, count, c.rank(), salt);
          const Status status = c.all_reduce(data, dtype, op)->wait();
          ASSERT_TRUE(status.has_value()) << message_of(status);
          ASSERT_TRUE(data == reference(dtype, op, count, c.size(), salt))
              << name_of(dtype) << " op " << static_cast<int>(op) << " count " << count;
        }
      }
    }
  });
}

TEST_P(CollectivesTest, ReduceScatterAndAllGatherKeepUnevenCounts) {
  run_world(kind(), size(), [&](Communicator& c) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt64}) {
      for (const int64_t count : {0, 1, 13, 1009, 100'003}) {
        const uint64_t salt = mix64(static_cast<uint64_t>(count) + static_cast<uint64_t>(dtype));
        const auto counts = uneven_counts(count, c.size(), salt);
        const auto wanted = reference(dtype, ReduceOp::kSum, count, c.size(), salt);
        auto data = contribution(dtype, count, c.rank(), salt);
        const Status scattered = c.reduce_scatter(data, counts, dtype, ReduceOp::kSum)->wait();
        ASSERT_TRUE(scattered.has_value()) << message_of(scattered);
        const int64_t begin =
            std::accumulate(counts.begin(), counts.begin() + c.rank(), int64_t{0}) * size_of(dtype);
        const int64_t bytes = counts[static_cast<size_t>(c.rank())] * size_of(dtype);
        ASSERT_TRUE(
            std::equal(data.begin() + begin, data.begin() + begin + bytes, wanted.begin() + begin));
        const Status gathered = c.all_gather(data, counts, dtype)->wait();
        ASSERT_TRUE(gathered.has_value()) << message_of(gathered);
        ASSERT_TRUE(data == wanted) << name_of(dtype) << " count " << count;
      }
    }
  });
}

TEST_P(CollectivesTest, WhereOneHasItAllTheOthersTalkToItAlone) {
  run_world(kind(), size(), [&](Communicator& c) {
    for (const int owner : {0, c.size() - 1}) {
      for (const DType dtype : {DType::kInt64, DType::kFloat32}) {
        constexpr int64_t kCount = 100'003;
        std::vector<int64_t> counts(static_cast<size_t>(c.size()), 0);
        counts[static_cast<size_t>(owner)] = kCount;
        const auto wanted = reference(dtype, ReduceOp::kSum, kCount, c.size(), 9);
        auto data = contribution(dtype, kCount, c.rank(), 9);
        const Counters before = c.counters();
        ASSERT_TRUE(c.reduce_scatter(data, counts, dtype, ReduceOp::kSum)->wait().has_value());
        ASSERT_TRUE(c.rank() != owner || data == wanted) << name_of(dtype);
        ASSERT_TRUE(c.all_gather(data, counts, dtype)->wait().has_value());
        ASSERT_TRUE(data == wanted) << name_of(dtype);
        const Counters after = c.counters();
        const int64_t links = c.rank() == owner ? c.size() - 1 : c.size() == 1 ? 0 : 1;
        const int64_t bytes = links * kCount * size_of(dtype);
        EXPECT_EQ(after.bytes_sent - before.bytes_sent, bytes);
        EXPECT_EQ(after.bytes_received - before.bytes_received, bytes);
      }
    }
  });
}

TEST_P(CollectivesTest, BroadcastGivesTheRootsData) {
  run_world(kind(), size(), [&](Communicator& c) {
    for (int root = 0; root < c.size(); ++root) {
      for (const int64_t bytes : {0, 1, 4097, 300'007}) {
        auto data = contribution(DType::kUint8, bytes, c.rank(), 5);
        const Status status = c.broadcast(data, root)->wait();
        ASSERT_TRUE(status.has_value()) << message_of(status);
        ASSERT_TRUE(data == contribution(DType::kUint8, bytes, root, 5)) << root << ' ' << bytes;
      }
    }
  });
}

TEST_P(CollectivesTest, BarrierEndsAfterAllHaveCome) {
  std::atomic<int> came{0};
  run_world(kind(), size(), [&](Communicator& c) {
    for (int round = 1; round <= 5; ++round) {
      came.fetch_add(1);
      const Status status = c.barrier()->wait();
      ASSERT_TRUE(status.has_value()) << message_of(status);
      ASSERT_GE(came.load(), round * c.size());
    }
  });
}

TEST_P(CollectivesTest, PointToPointBatchesExchangeBothWaysWithoutDeadlock) {
  run_world(kind(), size(), [&](Communicator& c) {
    for (const int64_t bytes : {0, 1, 1000, 150'001}) {
      std::vector<std::vector<std::byte>> out;
      std::vector<std::vector<std::byte>> in;
      std::vector<PointToPoint> transfers;
      for (int peer = 0; peer < c.size(); ++peer) {
        out.push_back(contribution(DType::kUint8, bytes, c.rank() * 100 + peer, 1));
        in.emplace_back(static_cast<size_t>(bytes));
      }
      // All sends before all receives: in order they would deadlock.
      for (int peer = 0; peer < c.size(); ++peer) {
        if (peer == c.rank()) continue;
        transfers.push_back({PointToPoint::Kind::kSend, peer, out[static_cast<size_t>(peer)]});
      }
      for (int peer = 0; peer < c.size(); ++peer) {
        if (peer == c.rank()) continue;
        transfers.push_back({PointToPoint::Kind::kReceive, peer, in[static_cast<size_t>(peer)]});
      }
      const Status status = c.batch_point_to_point(transfers)->wait();
      ASSERT_TRUE(status.has_value()) << message_of(status);
      for (int peer = 0; peer < c.size(); ++peer) {
        if (peer == c.rank()) continue;
        ASSERT_TRUE(in[static_cast<size_t>(peer)] ==
                    contribution(DType::kUint8, bytes, peer * 100 + c.rank(), 1));
      }
    }
  });
}

TEST_P(CollectivesTest, BytesSentEqualTheFormulas) {
  std::mutex mutex;
  std::map<int64_t, int64_t> sent_by_count;
  run_world(kind(), size(), [&](Communicator& c) {
    int64_t before = 0;
    const auto since = [&] {
      const int64_t now = c.counters().bytes_sent;
      return now - std::exchange(before, now);
    };
    for (const DType dtype : {DType::kInt64, DType::kFloat32, DType::kBFloat16}) {
      for (const int64_t count : {1, 100, 4099, 65'537}) {
        std::vector<std::byte> data(static_cast<size_t>(count * size_of(dtype)));
        const auto counts = uneven_counts(count, c.size(), static_cast<uint64_t>(count));
        ASSERT_TRUE(c.all_reduce(data, dtype, ReduceOp::kSum)->wait().has_value());
        const int64_t all_reduce = since();
        EXPECT_EQ(all_reduce, all_reduce_bytes_sent(c.size(), c.rank(), count, dtype));
        {
          const std::lock_guard lock(mutex);
          sent_by_count[count * 100 + size_of(dtype) * 10 + static_cast<int64_t>(dtype)] +=
              all_reduce;
        }
        ASSERT_TRUE(c.reduce_scatter(data, counts, dtype, ReduceOp::kSum)->wait().has_value());
        EXPECT_EQ(since(), reduce_scatter_bytes_sent(c.rank(), counts, dtype));
        ASSERT_TRUE(c.all_gather(data, counts, dtype)->wait().has_value());
        EXPECT_EQ(since(), all_gather_bytes_sent(c.rank(), counts, dtype));
        std::vector<int64_t> sole(static_cast<size_t>(c.size()), 0);
        sole.back() = count;
        ASSERT_TRUE(c.all_gather(data, sole, dtype)->wait().has_value());
        EXPECT_EQ(since(), all_gather_bytes_sent(c.rank(), sole, dtype));
        ASSERT_TRUE(c.broadcast(data, c.size() - 1)->wait().has_value());
        EXPECT_EQ(since(),
                  broadcast_bytes_sent(c.size(), c.rank(), c.size() - 1, count * size_of(dtype)));
      }
    }
  });
  // Over all ranks a large all-reduce sends exactly 2(P-1)S.
  const int64_t bytes = 65'537 * 8;
  EXPECT_EQ(sent_by_count[65'537 * 100 + 80 + static_cast<int64_t>(DType::kInt64)],
            2 * (size() - 1) * bytes);
}

TEST_P(CollectivesTest, ManyOperationsInFlightRunInOrder) {
  run_world(kind(), size(), [&](Communicator& c) {
    constexpr int kOperations = 60;
    std::vector<std::vector<std::byte>> data;
    std::vector<WorkPtr> works;
    for (uint64_t i = 0; i < kOperations; ++i) {
      const auto count = static_cast<int64_t>(mix64(i) % 20'000);
      data.push_back(contribution(DType::kInt64, count, c.rank(), i));
      switch (mix64(i * 3) % 4) {
        case 0:
          works.push_back(c.all_reduce(data[i], DType::kInt64, ReduceOp::kSum));
          break;
        case 1:
          works.push_back(c.broadcast(
              data[i], static_cast<int>(mix64(i * 5) % static_cast<uint64_t>(c.size()))));
          break;
        case 2:
          works.push_back(c.all_reduce(data[i], DType::kInt32, ReduceOp::kMax));
          break;
        default:
          works.push_back(c.barrier());
          break;
      }
    }
    for (const WorkPtr& work : works) {
      const Status status = work->wait();
      ASSERT_TRUE(status.has_value()) << message_of(status);
    }
    for (uint64_t i = 0; i < kOperations; ++i) {
      const auto count = static_cast<int64_t>(mix64(i) % 20'000);
      if (mix64(i * 3) % 4 == 0) {
        ASSERT_TRUE(data[i] == reference(DType::kInt64, ReduceOp::kSum, count, c.size(), i));
      }
    }
    EXPECT_EQ(c.counters().operations, kOperations);
  });
}

TEST_P(CollectivesTest, OperationsGoOnWhenNobodyWaits) {
  run_world(kind(), size(), [&](Communicator& c) {
    for (const size_t count : {10U, 100'000U, 10U}) {
      std::vector<int64_t> data(count, 1);
      const WorkPtr work = c.all_reduce(bytes_of(data), DType::kInt64, ReduceOp::kSum);
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (!work->done() && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
      }
      ASSERT_TRUE(work->done());
      ASSERT_EQ(data, std::vector<int64_t>(count, c.size()));
    }
  });
}

TEST_P(CollectivesTest, SubGroupsRunAtTheSameTime) {
  run_world(kind(), size(), [&](Communicator& c) {
    std::vector<int> half;
    for (int rank = c.rank() % 2; rank < c.size(); rank += 2)
      half.push_back(rank);
    auto sub = c.sub_group(half);
    ASSERT_TRUE(sub.has_value()) << sub.error().message;
    EXPECT_EQ((*sub)->size(), static_cast<int>(half.size()));
    EXPECT_EQ(half[static_cast<size_t>((*sub)->rank())], c.rank());
    std::vector<int64_t> everyone(50'000, c.rank() + 1);
    std::vector<int64_t> ours(50'000, c.rank() + 1);
    const WorkPtr of_all = c.all_reduce(bytes_of(everyone), DType::kInt64, ReduceOp::kSum);
    const WorkPtr of_half = (*sub)->all_reduce(bytes_of(ours), DType::kInt64, ReduceOp::kSum);
    ASSERT_TRUE(of_half->wait().has_value());
    ASSERT_TRUE(of_all->wait().has_value());
    int64_t wanted = 0;
    for (const int rank : half)
      wanted += rank + 1;
    EXPECT_EQ(ours, std::vector<int64_t>(50'000, wanted));
    EXPECT_EQ(everyone, std::vector<int64_t>(50'000, c.size() * (c.size() + 1) / 2));
  });
}

std::string case_name(const ::testing::TestParamInfo<std::tuple<TransportKind, int>>& info) {
  return std::string(name_of(std::get<0>(info.param))) + "_" +
         std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Transports, CollectivesTest,
                         ::testing::Combine(::testing::ValuesIn(testing::kTransports),
                                            ::testing::ValuesIn(testing::kWorldSizes)),
                         case_name);

}  // namespace
}  // namespace trainyard::comm
