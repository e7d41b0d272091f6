// Any decisions of a coordinator and any lines and ends of ranks, in any order: the agent starts
// each rank once, obeys only its own fence, and when told to end it ends.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/supervisor.h"
#include "common/proto/coordination.pb.h"
#include "tests/fuzz/frames.h"
#include "tests/fuzz/require.h"
#include "tests/support/fake_rank_host.h"
#include "tests/support/manual_clock.h"

namespace {

namespace agent = trainyard::agent;
namespace control = trainyard::control;
using trainyard::coordination::FromAgent;
using trainyard::coordination::ToAgent;

constexpr int64_t kGeneration = 3;
constexpr char kPodUid[] = "pod-a";

// What a frame does, by its operation's low bits; the fourth sets the fence right.
enum class Operation : uint8_t { kDecision, kRankLine, kRankEnd, kClose, kTerminate, kTime };
constexpr uint8_t kOperations = 6;
constexpr uint8_t kRightFence = 8;

/// The coordinator's end in the fuzzer's hand.
class FedChannel final : public control::ControlChannel {
 public:
  void open() override { push(control::ChannelEvent(control::ChannelEvent::Kind::kOpened, "")); }
  std::vector<control::ChannelEvent> take() override { return std::exchange(events_, {}); }
  int wake_fd() const override { return -1; }
  trainyard::Status send(const FromAgent& message) override {
    TRAINYARD_REQUIRE(message.fence().generation() == kGeneration, "another generation is told");
    return {};
  }
  int64_t unsent() const override { return 0; }
  void finish(trainyard::Duration) override {}
  void push(control::ChannelEvent event) { events_.push_back(std::move(event)); }

 private:
  std::vector<control::ChannelEvent> events_;
};

struct World {
  World()
      : supervisor({.job_name = "tiny",
                    .job_uid = "job-1",
                    .pod_name = "tiny-0",
                    .pod_uid = kPodUid,
                    .generation = kGeneration,
                    .worker = "/no/worker",
                    .orphan_limit = std::chrono::seconds(10)},
                   channel, host, clock, *logger, 7) {
    supervisor.begin();
    supervisor.on_channel();
  }

  /// A rank that runs, chosen by `seed`; -1 when none does.
  int running(size_t seed) const {
    if (host.ranks.empty()) return -1;
    const size_t rank = seed % host.ranks.size();
    return rank < ended.size() && ended[rank] ? -1 : static_cast<int>(rank);
  }
  void end(int rank, agent::RankEnd how) {
    ended.resize(std::max(ended.size(), host.ranks.size()));
    ended[static_cast<size_t>(rank)] = true;
    supervisor.on_rank_end(rank, how);
  }
  void pass(std::chrono::milliseconds time) {
    clock.advance(time);
    supervisor.on_timer();
    supervisor.on_channel();
  }

  FedChannel channel;
  trainyard::testing_support::FakeRankHost host;
  trainyard::testing_support::ManualClock clock;
  std::unique_ptr<trainyard::Logger> logger = trainyard::Logger::to_nowhere();
  agent::Supervisor supervisor;
  std::vector<bool> ended;
};

void decide(World& world, const Frames::Frame& frame) {
  auto decision = std::make_unique<ToAgent>();
  if (!decision->ParseFromArray(frame.bytes.data(), static_cast<int>(frame.bytes.size()))) return;
  if ((frame.operation & kRightFence) != 0) {
    decision->mutable_fence()->set_generation(kGeneration);
    decision->mutable_fence()->set_pod_uid(kPodUid);
  }
  // A decision names the ranks of one node; more of them than this only make the fuzzer slow.
  if (decision->has_start_generation() && decision->start_generation().ranks_size() > 64) return;
  world.channel.push(control::ChannelEvent(std::move(decision)));
  world.supervisor.on_channel();
}

void act(World& world, const Frames::Frame& frame) {
  const size_t seed = frame.bytes.empty() ? 0 : frame.bytes.front();
  switch (static_cast<Operation>((frame.operation & 7U) % kOperations)) {
    case Operation::kDecision:
      return decide(world, frame);
    case Operation::kRankLine: {
      const int rank = world.running(seed);
      if (rank < 0 || frame.bytes.empty()) return;
      const auto text = frame.bytes.subspan(1);
      return world.supervisor.on_rank_line(rank, std::string(text.begin(), text.end()));
    }
    case Operation::kRankEnd: {
      const int rank = world.running(seed);
      if (rank < 0) return;
      const int code = frame.bytes.size() > 1 ? frame.bytes[1] : 0;
      return world.end(rank, {.exit_code = code % 128, .signal = code >= 128 ? code % 32 : 0});
    }
    case Operation::kClose:
      world.channel.push(control::ChannelEvent(control::ChannelEvent::Kind::kClosed, "cut"));
      return world.supervisor.on_channel();
    case Operation::kTerminate:
      return world.supervisor.on_terminate();
    case Operation::kTime:
      return world.pass(std::chrono::milliseconds(seed * 40));
  }
}

/// Whatever came before: after SIGTERM and with ranks that obey SIGKILL the agent ends.
void require_end(World& world) {
  world.supervisor.on_terminate();
  for (int i = 0; i < 400 && !world.supervisor.finished(); ++i) {
    world.pass(std::chrono::seconds(1));
    for (size_t rank = 0; rank < world.host.ranks.size(); ++rank) {
      const auto& signals = world.host.ranks[rank].signals;
      const bool killed = std::find(signals.begin(), signals.end(), SIGKILL) != signals.end();
      if (killed && world.running(rank) >= 0)
        world.end(static_cast<int>(rank), {.exit_code = 0, .signal = SIGKILL});
    }
  }
  TRAINYARD_REQUIRE(world.supervisor.finished().has_value(), "the agent does not end");
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  World world;
  Frames frames(std::span(data, size));
  while (const auto frame = frames.next()) {
    if (world.supervisor.finished()) return 0;
    act(world, *frame);
  }
  if (!world.supervisor.finished()) require_end(world);
  return 0;
}
