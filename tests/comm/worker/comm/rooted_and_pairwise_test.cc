// reduce, scatter, gather, all_to_all and single messages on every transport against a reference
// computed by one thread; what may be taken back.

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <numeric>
#include <thread>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/random/philox.h"
#include "tests/comm/worker/comm/reference.h"
#include "tests/comm/worker/comm/world.h"
#include "worker/comm/formulas.h"

namespace trainyard::comm {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using testing::bytes_of;
using testing::contribution;
using ::testing::HasSubstr;
using testing::is_combined;
using testing::kAllDTypes;
using testing::kAllReductions;
using testing::message_of;
using testing::part_of;
using testing::References;
using testing::run_world;
using testing::uneven_counts;

using Parameter = std::tuple<TransportKind, int>;

class RootedTest : public ::testing::TestWithParam<Parameter> {
 protected:
  TransportKind kind() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }

  References references_;
};

TEST_P(RootedTest, ReduceGivesTheRootTheReferenceForEveryTypeAndOperation) {
  run_world(kind(), size(), [&](Communicator& c) {
    int turn = 0;
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : kAllReductions) {
        if (!is_combined(dtype, op)) continue;
        // Above and below what is reduced directly, for elements of 1 to 8 bytes.
        for (const int64_t count : {0, 1, 1009, 70'001}) {
          const int root = turn++ % c.size();
          const uint64_t salt = mix64(static_cast<uint64_t>(turn));
          const int64_t before = c.counters().bytes_sent;
          auto data = contribution(dtype, count, c.rank(), salt);
          const Status status = c.reduce(data, dtype, op, root)->wait();
          ASSERT_TRUE(status.has_value()) << message_of(status);
          EXPECT_EQ(c.counters().bytes_sent - before,
                    reduce_bytes_sent(c.size(), c.rank(), root, count, dtype, op));
          if (c.rank() != root) continue;
          ASSERT_TRUE(data == references_.get(dtype, op, count, c.size(), salt))
              << name_of(dtype) << " " << name_of(op) << " count " << count << " root " << root;
        }
      }
    }
  });
}

TEST_P(RootedTest, ScatterAndGatherKeepUnevenCounts) {
  run_world(kind(), size(), [&](Communicator& c) {
    for (const DType dtype : {DType::kUint8, DType::kBFloat16, DType::kInt64}) {
      for (const int64_t count : {0, 1, 13, 100'003}) {
        for (int root = 0; root < c.size(); ++root) {
          const auto salt = static_cast<uint64_t>(count + root);
          const auto counts = uneven_counts(count, c.size(), salt);
          const auto whole = contribution(dtype, count, 0, salt);
          const auto wanted = part_of(whole, counts, c.rank(), dtype);
          int64_t before = c.counters().bytes_sent;
          std::vector<std::byte> own(wanted.size());
          // Only the root has the whole.
          const Status scattered = c.scatter(c.rank() == root ? std::span<const std::byte>(whole)
                                                              : std::span<const std::byte>(),
                                             own, counts, dtype, root)
                                       ->wait();
          ASSERT_TRUE(scattered.has_value()) << message_of(scattered);
          ASSERT_TRUE(own == wanted) << name_of(dtype) << " count " << count << " root " << root;
          EXPECT_EQ(c.counters().bytes_sent - before,
                    scatter_bytes_sent(c.rank(), root, counts, dtype));
          before = c.counters().bytes_sent;
          std::vector<std::byte> gathered(c.rank() == root ? whole.size() : 0);
          const Status status = c.gather(own, gathered, counts, dtype, root)->wait();
          ASSERT_TRUE(status.has_value()) << message_of(status);
          ASSERT_TRUE(c.rank() != root || gathered == whole);
          EXPECT_EQ(c.counters().bytes_sent - before,
                    gather_bytes_sent(c.rank(), root, counts, dtype));
        }
      }
    }
  });
}

TEST_P(RootedTest, ScatterAndGatherWorkInPlaceAtTheRoot) {
  run_world(kind(), size(), [&](Communicator& c) {
    const auto counts = uneven_counts(5000, c.size(), 3);
    const int root = c.size() - 1;
    const auto whole = contribution(DType::kInt64, 5000, 0, 9);
    auto buffer = whole;
    const auto offset = static_cast<size_t>(
        8 * std::accumulate(counts.begin(), counts.begin() + c.rank(), int64_t{0}));
    const auto bytes = static_cast<size_t>(8 * counts[static_cast<size_t>(c.rank())]);
    const auto own = std::span(buffer).subspan(offset, bytes);
    ASSERT_TRUE(c.scatter(buffer, own, counts, DType::kInt64, root)->wait().has_value());
    ASSERT_TRUE(c.gather(own, buffer, counts, DType::kInt64, root)->wait().has_value());
    EXPECT_TRUE(buffer == whole);
  });
}

TEST_P(RootedTest, AllToAllDeliversUnevenParts) {
  const auto count_of = [](int from, int to, int64_t scale) {
    const uint64_t random = mix64(static_cast<uint64_t>(from * 16 + to));
    return random % 3 == 0 ? int64_t{0} : static_cast<int64_t>(random % 997) * scale;
  };
  run_world(kind(), size(), [&](Communicator& c) {
    for (const DType dtype : {DType::kUint8, DType::kFloat16, DType::kFloat64}) {
      for (const int64_t scale : {0, 1, 30}) {
        std::vector<int64_t> out_counts;
        std::vector<int64_t> in_counts;
        std::vector<std::byte> out;
        std::vector<std::byte> wanted;
        for (int peer = 0; peer < c.size(); ++peer) {
          out_counts.push_back(count_of(c.rank(), peer, scale));
          in_counts.push_back(count_of(peer, c.rank(), scale));
          const auto pair = [&](int from, int to) {
            return contribution(dtype, count_of(from, to, scale), from, static_cast<uint64_t>(to));
          };
          const auto to_peer = pair(c.rank(), peer);
          const auto from_peer = pair(peer, c.rank());
          out.insert(out.end(), to_peer.begin(), to_peer.end());
          wanted.insert(wanted.end(), from_peer.begin(), from_peer.end());
        }
        const int64_t before = c.counters().bytes_sent;
        std::vector<std::byte> in(wanted.size());
        const Status status = c.all_to_all(out, out_counts, in, in_counts, dtype)->wait();
        ASSERT_TRUE(status.has_value()) << message_of(status);
        ASSERT_TRUE(in == wanted) << name_of(dtype) << " scale " << scale;
        EXPECT_EQ(c.counters().bytes_sent - before,
                  all_to_all_bytes_sent(c.rank(), out_counts, dtype));
      }
    }
  });
}

TEST_P(RootedTest, MessagesGoRoundTheRingWithoutBlocking) {
  run_world(kind(), size(), [&](Communicator& c) {
    if (c.size() == 1) return;
    const int next = (c.rank() + 1) % c.size();
    const int previous = (c.rank() + c.size() - 1) % c.size();
    std::vector<std::vector<int64_t>> out;
    std::vector<std::vector<int64_t>> in;
    std::vector<WorkPtr> works;
    for (int64_t i = 0; i < 20; ++i) {
      out.emplace_back(static_cast<size_t>(100 + i), c.rank() * 1000 + i);
      in.emplace_back(static_cast<size_t>(100 + i));
    }
    for (size_t i = 0; i < out.size(); ++i) {
      // Rank 0 receives first, so that a chain of messages too long for buffers could not stop.
      if (c.rank() == 0) works.push_back(c.receive(bytes_of(in[i]), previous));
      works.push_back(c.send(std::as_bytes(std::span(out[i])), next));
      if (c.rank() != 0) works.push_back(c.receive(bytes_of(in[i]), previous));
    }
    for (const WorkPtr& work : works)
      ASSERT_EQ(message_of(work->wait()), "");
    for (size_t i = 0; i < in.size(); ++i) {
      EXPECT_EQ(in[i], std::vector<int64_t>(100 + i, previous * 1000 + static_cast<int64_t>(i)));
    }
  });
}

TEST_P(RootedTest, TimeAndBytesAreCountedByOperation) {
  run_world(kind(), size(), [&](Communicator& c) {
    std::vector<int64_t> data(20'000, 1);
    ASSERT_TRUE(c.all_reduce(bytes_of(data), DType::kInt64, ReduceOp::kSum)->wait().has_value());
    ASSERT_TRUE(c.reduce(bytes_of(data), DType::kInt64, ReduceOp::kMin, 0)->wait().has_value());
    ASSERT_TRUE(c.reduce(bytes_of(data), DType::kInt64, ReduceOp::kMin, 0)->wait().has_value());
    const Counters counters = c.counters();
    EXPECT_EQ(counters.operations, 3);
    EXPECT_EQ(counters.of(Operation::kAllReduce).operations, 1);
    EXPECT_EQ(counters.of(Operation::kReduce).operations, 2);
    EXPECT_EQ(counters.of(Operation::kAllReduce).bytes_sent,
              all_reduce_bytes_sent(c.size(), c.rank(), 20'000, DType::kInt64));
    EXPECT_EQ(counters.of(Operation::kBroadcast).operations, 0);
    OperationCounters sum;
    for (const OperationCounters& one : counters.by_operation) {
      sum.bytes_sent += one.bytes_sent;
      sum.bytes_received += one.bytes_received;
      EXPECT_EQ(one.operations == 0, one.time.count() == 0);
    }
    EXPECT_EQ(sum.bytes_sent, counters.bytes_sent);
    EXPECT_EQ(sum.bytes_received, counters.bytes_received);
  });
}

std::string case_name(const ::testing::TestParamInfo<Parameter>& info) {
  return std::string(name_of(std::get<0>(info.param))) + "_" +
         std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Transports, RootedTest,
                         ::testing::Combine(::testing::ValuesIn(testing::kTransports),
                                            ::testing::ValuesIn(testing::kWorldSizes)),
                         case_name);

class RetreatTest : public ::testing::TestWithParam<TransportKind> {};

TEST_P(RetreatTest, AnUntouchedReceiveIsCancelledAndTheNextOneTakesItsPlace) {
  // Until then the peers send nothing: what they sent would be taken for what is awaited.
  std::barrier over(2);
  run_world(GetParam(), 2, [&](Communicator& c) {
    ASSERT_EQ(message_of(c.barrier()->wait()), "");
    std::vector<int64_t> data(1000, c.rank());
    if (c.rank() == 0) {
      for (const bool queued : {false, true}) {
        std::vector<int64_t> never(1000);
        // The second is cancelled while it runs and while it is still behind another.
        const WorkPtr first = c.receive(bytes_of(never), 1);
        const WorkPtr second = queued ? c.receive(bytes_of(never), 1) : first;
        second->cancel();
        if (queued) first->cancel();
        for (const WorkPtr& work : {first, second}) {
          const Status status = work->wait();
          ASSERT_FALSE(status.has_value());
          EXPECT_EQ(status.error().code, ErrorCode::kAborted);
          EXPECT_THAT(status.error().message, HasSubstr("cancelled before anything"));
        }
      }
      over.arrive_and_wait();
      ASSERT_EQ(message_of(c.barrier()->wait()), "");
      ASSERT_EQ(message_of(c.receive(bytes_of(data), 1)->wait()), "");
      EXPECT_EQ(data, std::vector<int64_t>(1000, 1));
    } else {
      over.arrive_and_wait();
      ASSERT_EQ(message_of(c.barrier()->wait()), "");
      ASSERT_EQ(message_of(c.send(bytes_of(data), 0)->wait()), "");
    }
    ASSERT_EQ(message_of(c.all_reduce(bytes_of(data), DType::kInt64, ReduceOp::kSum)->wait()), "");
  });
}

TEST_P(RetreatTest, PatienceEndsAReceiveAndNothingElse) {
  // Until then the peers send nothing: what they sent would be taken for what is awaited.
  std::barrier over(3);
  run_world(GetParam(), 3, [&](Communicator& c) {
    ASSERT_EQ(message_of(c.barrier()->wait()), "");
    std::vector<int64_t> data(10);
    if (c.rank() == 0) {
      const auto begin = std::chrono::steady_clock::now();
      const Status status = c.receive(bytes_of(data), 2, {.patience = milliseconds(100)})->wait();
      ASSERT_FALSE(status.has_value());
      EXPECT_EQ(status.error().code, ErrorCode::kDeadline);
      EXPECT_THAT(status.error().message,
                  AllOf(HasSubstr("within 0.100 s"), HasSubstr("awaiting rank 2")));
      EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(100));
      EXPECT_THAT(c.lost_ranks(), ::testing::IsEmpty());
    }
    over.arrive_and_wait();
    ASSERT_EQ(message_of(c.barrier()->wait()), "");
  });
}

TEST_P(RetreatTest, WhatHasBegunAndCollectivesAreNotCancelled) {
  std::atomic<bool> go{false};
  run_world(GetParam(), 2, [&](Communicator& c) {
    std::vector<int64_t> first(10, c.rank());
    std::vector<int64_t> second(10, c.rank());
    if (c.rank() == 0) {
      const WorkPtr both =
          c.batch_point_to_point({{PointToPoint::Kind::kReceive, 1, bytes_of(first)},
                                  {PointToPoint::Kind::kReceive, 1, bytes_of(second)}});
      const WorkPtr after = c.all_reduce(bytes_of(first), DType::kInt64, ReduceOp::kMax);
      after->cancel();
      // The peer has sent the first message: this rank's stream takes it up, then the request
      // comes.
      while (c.counters().bytes_received < 80)
        std::this_thread::yield();
      both->cancel();
      go = true;
      EXPECT_EQ(message_of(both->wait()), "");
      EXPECT_EQ(message_of(after->wait()), "");
      EXPECT_EQ(second, std::vector<int64_t>(10, 1));
    } else {
      ASSERT_EQ(message_of(c.send(bytes_of(first), 0)->wait()), "");
      while (!go)
        std::this_thread::yield();
      ASSERT_EQ(message_of(c.send(bytes_of(second), 0)->wait()), "");
      ASSERT_EQ(message_of(c.all_reduce(bytes_of(first), DType::kInt64, ReduceOp::kMax)->wait()),
                "");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, RetreatTest, ::testing::ValuesIn(testing::kTransports),
                         [](const auto& parameter) {
                           return std::string(name_of(parameter.param));
                         });

}  // namespace
}  // namespace trainyard::comm
