// Copies of states with the next node: rounds, fetching, and their ends.
#include "worker/rank/state_replicas.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <span>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/unique_fd.h"
#include "tests/comm/worker/comm/world.h"
#include "worker/checkpoint/writer.h"

namespace trainyard::engine {
namespace {

using checkpoint::MemoryOffer;
using checkpoint::MemorySlots;
using checkpoint::StatePart;
using comm::Communicator;
using comm::TransportKind;
using Round = StateReplicas::Round;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// More on higher ranks, and several pieces of a message.
std::vector<StatePart> parts_of(int rank) {
  const int64_t rows = 100'000 + 300'000 * rank;
  return {{"wte", checkpoint::TensorKind::kParameter, {rows, 3}, {{0, 0}, {rows, 3}}}};
}

std::string owner_of(int rank) { return "rank " + std::to_string(rank) + " of job j"; }

/// A rank that is alone on its node.
class Node {
 public:
  explicit Node(Communicator& world) : world_(world), fd_(::memfd_create("states", MFD_CLOEXEC)) {
    restart();
  }

  /// A new process of the rank, in its pod.
  void restart() {
    replicas.reset();
    const int ward = (world_.rank() + world_.size() - 1) % world_.size();
    auto mapped = MemorySlots::map(fd_.get(), parts_of(world_.rank()), owner_of(world_.rank()),
                                   checkpoint::shape_of(parts_of(ward), owner_of(ward)));
    ASSERT_TRUE(mapped) << mapped.error().message;
    slots = *std::move(mapped);
    replicas = std::make_unique<StateReplicas>(world_, *slots);
  }
  /// A new pod.
  void lose() {
    replicas.reset();
    fd_ = UniqueFd(::memfd_create("states", MFD_CLOEXEC));
    restart();
  }

  static float value(int rank, int64_t step) {
    return static_cast<float>(int64_t{1000} * rank + step);
  }
  void keep(int64_t step) const {
    const auto room = slots->begin();
    ASSERT_TRUE(room) << room.error().message;
    auto* const values = reinterpret_cast<float*>(room->data());
    std::fill_n(values, room->size() / sizeof(float), value(world_.rank(), step));
    ASSERT_TRUE(slots->complete({.job_uid = "j",
                                 .generation = 1,
                                 .branch_id = "b",
                                 .step = step,
                                 .scalars = {{checkpoint::kOptimizerStepScalar, step}}}));
  }
  /// The round's end on this rank.
  Round wait() const {
    while (replicas->round() == Round::kSending)
      std::this_thread::yield();
    return replicas->round();
  }
  void go_round(int64_t step) const {
    keep(step);
    replicas->begin_round(true);
    ASSERT_EQ(wait(), Round::kComplete);
    ASSERT_TRUE(world_.barrier()->wait());
    slots->settle(true);
  }
  bool holds(int64_t step) const {
    const auto state = slots->open({1, step});
    if (!state) return false;
    std::vector<float> row(3);
    EXPECT_TRUE(
        (*state)->read("wte", checkpoint::TensorKind::kParameter, {{99'999, 0}, {1, 3}}, row));
    return row == std::vector<float>(3, value(world_.rank(), step));
  }

  std::unique_ptr<MemorySlots> slots;
  std::unique_ptr<StateReplicas> replicas;

 private:
  Communicator& world_;
  UniqueFd fd_;
};

void run_nodes(int nodes, const std::function<void(Communicator&, Node&)>& body,
               std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
  comm::testing::run_world(
      TransportKind::kTcp, nodes,
      [&](Communicator& world) {
        Node node(world);
        body(world, node);
      },
      deadline);
}

TEST(StateReplicasTest, ALostNodeGetsItsStateBack) {
  run_nodes(3, [](Communicator& world, Node& node) {
    node.go_round(5);
    node.go_round(6);
    if (world.rank() == 1) {
      node.lose();
      EXPECT_THAT(node.slots->offers(), IsEmpty());
    } else {
      node.restart();
    }
    const auto fetched = node.replicas->fetch({1, 6}, {});
    ASSERT_TRUE(fetched) << fetched.error().message;
    EXPECT_EQ(*fetched, world.rank() == 1);
    EXPECT_TRUE(node.holds(6));
    node.go_round(7);
    EXPECT_TRUE(node.holds(7)) << "the new node keeps copies, and has one";
  });
}

TEST(StateReplicasTest, ADamagedStateIsFetched) {
  run_nodes(2, [](Communicator& world, Node& node) {
    node.go_round(5);
    node.restart();
    for (int slot = 0; slot < MemorySlots::kSlots && world.rank() == 0; ++slot)
      node.slots->data(slot)[17] ^= std::byte{1};
    const auto fetched = node.replicas->fetch({1, 5}, {});
    ASSERT_TRUE(fetched) << fetched.error().message;
    EXPECT_EQ(*fetched, world.rank() == 0);
    EXPECT_TRUE(node.holds(5));
  });
}

TEST(StateReplicasTest, ADamagedCopyIsRefused) {
  run_nodes(2, [](Communicator& world, Node& node) {
    node.go_round(5);
    if (world.rank() == 0) node.lose();
    if (world.rank() == 1) {
      for (int slot = 0; slot < MemorySlots::kWardSlots; ++slot)
        node.slots->ward_data(slot)[17] ^= std::byte{1};
      node.restart();
    }
    ASSERT_TRUE(node.replicas->fetch({1, 5}, {}));
    EXPECT_EQ(node.holds(5), world.rank() == 1);
    if (world.rank() == 0) {
      EXPECT_EQ(node.slots->open({1, 5}).error().code, ErrorCode::kInvalidData);
    }
  });
}

TEST(StateReplicasTest, WhatNobodyHasIsNamed) {
  run_nodes(2, [](Communicator& world, Node& node) {
    node.go_round(5);
    if (world.rank() == 0) node.lose();
    if (world.rank() == 1) node.restart();
    const auto fetched = node.replicas->fetch({1, 4}, {});
    ASSERT_FALSE(fetched);
    EXPECT_EQ(fetched.error().code, ErrorCode::kNotFound);
    EXPECT_THAT(fetched.error().message, ::testing::HasSubstr("g1-step-0000000004"));
    EXPECT_TRUE(node.replicas->fetch({1, 5}, {})) << "the group is as good as before";
  });
}

TEST(StateReplicasTest, ARankWithoutAStateKeepsTheRoundIncomplete) {
  run_nodes(2, [](Communicator& world, Node& node) {
    node.go_round(5);
    node.keep(6);
    node.replicas->begin_round(world.rank() == 0);
    EXPECT_EQ(node.wait(), Round::kIncomplete);
    node.slots->settle(false);
    std::vector<int64_t> kept;
    for (const MemoryOffer& offer : node.slots->ward_offers())
      kept.push_back(offer.id.step);
    if (world.rank() == 0) {
      EXPECT_THAT(kept, ElementsAre(5));
    } else {
      EXPECT_THAT(kept, ElementsAre(6, 5));
    }
    node.go_round(7);
    EXPECT_TRUE(node.holds(7));
  });
}

TEST(StateReplicasTest, ARoundThatGoesOnEndsWithItsRank) {
  std::latch gone(1);
  std::latch went(2);  // a rank that leaves takes the other's barrier along
  run_nodes(2, [&](Communicator& world, Node& node) {
    node.go_round(5);
    went.arrive_and_wait();
    node.keep(6);
    if (world.rank() == 0) {
      node.replicas->begin_round(true);
      node.replicas.reset();
      gone.count_down();
      EXPECT_TRUE(node.holds(6));
      return;
    }
    gone.wait();
    node.replicas->begin_round(true);
    EXPECT_EQ(node.wait(), Round::kFailed);
    EXPECT_NE(node.replicas->failure().message, "");
    EXPECT_TRUE(node.slots->ward_state({1, 5})) << "what all have is still there";
  });
}

TEST(StateReplicasTest, ACopyThatComesDamagedDoesNotTakeThePlaceOfAGoodOne) {
  run_nodes(2, [](Communicator& world, Node& node) {
    node.go_round(5);
    node.keep(6);
    if (world.rank() == 0) const_cast<std::byte&>(node.slots->newest()[17]) ^= std::byte{1};
    node.replicas->begin_round(true);
    const bool receives_it = world.rank() == 1;
    EXPECT_EQ(node.wait(), receives_it ? Round::kIncomplete : Round::kComplete);
    EXPECT_EQ(node.replicas->failure().message.empty(), !receives_it);
    node.slots->settle(false);
    EXPECT_TRUE(node.slots->ward_state({1, 5}));
    EXPECT_EQ(node.slots->ward_state({1, 6}).has_value(), !receives_it);
    node.go_round(7);
    EXPECT_EQ(node.replicas->failure().message, "");
    EXPECT_TRUE(node.holds(7)) << "the group is as good as before";
  });
}

TEST(StateReplicasTest, ARankWithoutRoomBreaksOffTheRound) {
  run_nodes(2, [](Communicator& world, Node& node) {
    node.go_round(5);
    std::vector<std::shared_ptr<const void>> read;
    if (world.rank() == 0) {
      node.lose();
      for (int64_t step = 1; step <= MemorySlots::kSlots; ++step) {
        node.keep(step);
        read.push_back(node.slots->hold());
      }
    } else {
      node.restart();
    }
    const auto fetched = node.replicas->fetch({1, 5}, {});
    EXPECT_TRUE(!fetched || world.rank() == 1) << "what rank 1 sends may fit the buffers";
    // The peer learns of it from rank 0, not from the time that it waits.
    const Status next = fetched ? world.barrier()->wait() : Status(fetched.error());
    ASSERT_FALSE(next);
    EXPECT_THAT(next.error().message, ::testing::HasSubstr("the disk still reads"));
  });
}

/// The slots hold no state that has not come whole, and there is room for the next ones.
void expect_no_slot_lost(Node& node, const std::vector<int64_t>& steps) {
  std::vector<int64_t> offered;
  for (const MemoryOffer& offer : node.slots->offers())
    offered.push_back(offer.id.step);
  EXPECT_EQ(offered, steps);
  for (int64_t step = 21; step <= 20 + 2 * MemorySlots::kSlots; ++step) {
    node.keep(step);
    EXPECT_TRUE(node.holds(step));
  }
}

TEST(StateReplicasTest, ARankThatIsAskedToStopDoesNotWaitForItsKeeper) {
  std::latch gave_up(1);
  const auto body = [&gave_up](Communicator& world, Node& node) {
    node.go_round(5);
    if (world.rank() == 1) {
      // It never serves.
      gave_up.wait();
      node.restart();
      EXPECT_FALSE(node.replicas->fetch({1, 5}, {})) << "the group is over on all ranks";
      expect_no_slot_lost(node, {5});
      return;
    }
    node.lose();
    std::atomic<int> asked{0};
    const StateReplicas::Patience patience{[&asked] { return ++asked > 2; },
                                           std::chrono::milliseconds(150)};
    const auto fetched = node.replicas->fetch({1, 5}, patience);
    gave_up.count_down();
    ASSERT_FALSE(fetched);
    EXPECT_EQ(fetched.error().code, ErrorCode::kAborted);
    EXPECT_THAT(fetched.error().message, ::testing::HasSubstr("asked to stop"));
    EXPECT_GE(asked, 4) << "it goes on for a while";
    expect_no_slot_lost(node, {});
  };
  run_nodes(2, body, std::chrono::seconds(20));
}

TEST(StateReplicasTest, ARankThatIsAskedToStopFetchesWhatComesInTime) {
  run_nodes(2, [](Communicator& world, Node& node) {
    node.go_round(5);
    if (world.rank() == 0) node.lose();
    if (world.rank() == 1) node.restart();
    const auto fetched =
        node.replicas->fetch({1, 5}, {[] { return true; }, std::chrono::minutes(10)});
    ASSERT_TRUE(fetched) << fetched.error().message;
    EXPECT_TRUE(node.holds(5));
  });
}

/// `nodes` = 2: each is the other's keeper, and rank 1 has no wish of its own.
TEST(StateReplicasTest, AKeeperThatGoesWhileItServesLeavesNoHalfState) {
  run_nodes(2, [](Communicator& world, Node& node) {
    node.go_round(5);
    if (world.rank() == 0) {
      node.lose();
      const auto fetched = node.replicas->fetch({1, 5}, {});
      ASSERT_FALSE(fetched);
      EXPECT_TRUE(checkpoint::ends_generation(fetched.error().code)) << fetched.error().message;
      expect_no_slot_lost(node, {});
      return;
    }
    node.restart();
    const checkpoint::PackedState copy = *node.slots->ward_state({1, 5});
    std::string description(copy.description);
    std::string piece(reinterpret_cast<const char*>(copy.data.data()), size_t{1} << 20);
    // What the fetch of a keeper sends and receives, up to the first piece of several.
    const auto swap = [&world](std::span<std::byte> out, std::span<std::byte> in) {
      using Kind = comm::PointToPoint::Kind;
      std::vector<comm::PointToPoint> transfers = {{Kind::kSend, 0, out}};
      if (!in.empty()) transfers.push_back({Kind::kReceive, 0, in});
      ASSERT_TRUE(world.batch_point_to_point(std::move(transfers))->wait());
    };
    std::byte wants{0};
    std::byte wanted{0};
    swap({&wants, 1}, {&wanted, 1});
    EXPECT_EQ(wanted, std::byte{1});
    std::array<int64_t, 2> frame = {std::ssize(description), std::ssize(copy.data)};
    std::array<int64_t, 2> none = {};
    ASSERT_GT(frame[1], std::ssize(piece));
    swap(std::as_writable_bytes(std::span(frame)), std::as_writable_bytes(std::span(none)));
    swap(std::as_writable_bytes(std::span(description)), {});
    swap(std::as_writable_bytes(std::span(piece)), {});
    world.abort({ErrorCode::kInternal, "the keeper is killed"});
  });
}

}  // namespace
}  // namespace trainyard::engine
