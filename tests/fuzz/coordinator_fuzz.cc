// Any messages from two agents and a stranger, in any order, with right and wrong fences: the
// coordinator keeps to its membership, and what it holds stays bounded.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/proto/coordination.pb.h"
#include "control/coordinator/coordinator.h"
#include "control/coordinator/memory_transport.h"
#include "tests/fuzz/frames.h"
#include "tests/fuzz/require.h"
#include "tests/support/manual_clock.h"

namespace {

namespace control = trainyard::control;
using trainyard::coordination::FromAgent;

constexpr int64_t kGeneration = 3;
constexpr int kRanks = 4;
constexpr std::array<const char*, 3> kPods = {"pod-a", "pod-b", "stranger"};
constexpr int64_t kReportsMax = 4096;

// Bits of a frame's operation.
constexpr uint8_t kSenderMask = 3;
constexpr uint8_t kRightFence = 4;
constexpr uint8_t kReconnect = 8;
constexpr uint8_t kWait = 16;

control::MembershipOrder order() {
  control::MembershipOrder order;
  order.job_uid = "job-1";
  order.job_name = "tiny";
  order.generation = kGeneration;
  order.previous_generation = kGeneration - 1;
  order.num_nodes = 2;
  order.num_proc_per_node = 2;
  order.members = {{"tiny-0", kPods[0], 0}, {"tiny-1", kPods[1], 1}};
  return order;
}

void check(const control::Coordinator& coordinator) {
  for (const auto& reading : coordinator.readings("job-1")) {
    TRAINYARD_REQUIRE(reading.rank >= 0 && reading.rank < kRanks, "a rank outside the world");
    TRAINYARD_REQUIRE(reading.generation == kGeneration, "a reading of another generation");
  }
  const control::StreamFacts facts = coordinator.facts("job-1");
  TRAINYARD_REQUIRE(facts.hosted && facts.generation == kGeneration, "another generation");
  TRAINYARD_REQUIRE(facts.members.size() <= 2, "more members than the order names");
  TRAINYARD_REQUIRE(static_cast<int64_t>(facts.peer_reports.size()) <= kReportsMax,
                    "reports without a limit");
  for (const auto& member : facts.members) {
    TRAINYARD_REQUIRE(member.pod_uid == kPods[0] || member.pod_uid == kPods[1],
                      "a member that the order does not name");
  }
}

void check_decisions(control::ControlChannel& channel, size_t sender) {
  for (const auto& event : channel.take()) {
    if (!event.message || !event.message->has_start_generation()) continue;
    TRAINYARD_REQUIRE(sender < 2, "a stranger is told to start ranks");
    for (const int rank : event.message->start_generation().ranks())
      TRAINYARD_REQUIRE(rank >= 0 && rank < kRanks, "a rank outside the world is started");
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  trainyard::testing_support::ManualClock clock;
  const auto logger = trainyard::Logger::to_nowhere();
  control::MemoryTransport transport;
  control::Coordinator coordinator(
      {.transport = &transport, .clock = &clock, .logger = logger.get()});
  coordinator.publish(order());
  std::array<std::unique_ptr<control::ControlChannel>, kPods.size()> channels;
  for (auto& channel : channels) {
    channel = transport.make_channel();
    channel->open();
  }
  Frames frames(std::span(data, size));
  while (const auto frame = frames.next()) {
    const size_t sender = (frame->operation & kSenderMask) % kPods.size();
    control::ControlChannel& channel = *channels[sender];
    if ((frame->operation & kReconnect) != 0) {
      channel.finish(trainyard::Duration::zero());
      channel.open();
    }
    if ((frame->operation & kWait) != 0) clock.advance(std::chrono::seconds(1));
    FromAgent message;
    if (!message.ParseFromArray(frame->bytes.data(), static_cast<int>(frame->bytes.size())))
      continue;
    if ((frame->operation & kRightFence) != 0) {
      message.mutable_fence()->set_generation(kGeneration);
      message.mutable_fence()->set_pod_uid(kPods[sender]);
    }
    (void)channel.send(message);  // a connection that the coordinator closed takes nothing
    coordinator.poll(trainyard::Duration::zero());
    check(coordinator);
    check_decisions(channel, sender);
  }
  return 0;
}
