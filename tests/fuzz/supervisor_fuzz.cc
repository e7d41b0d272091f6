// Any decisions of a coordinator and any lines and ends of ranks, in any order: the agent starts
// each rank once, never beside ranks of an older generation, obeys only its own fence, and when
// told to end it ends. One that stays goes from generation to generation.
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

// What a frame does, by its operation's low bits; the fourth sets the fence right, and bits 4 and 5
// choose its generation, 3 to 6. The highest bit of the first frame makes an agent that stays.
enum class Operation : uint8_t { kDecision, kRankLine, kRankEnd, kClose, kTerminate, kTime, kHold };
constexpr uint8_t kOperations = 7;
constexpr uint8_t kRightFence = 8;
constexpr uint8_t kStays = 128;

/// The coordinator's end in the fuzzer's hand.
class FedChannel final : public control::ControlChannel {
 public:
  void open() override { push(control::ChannelEvent(control::ChannelEvent::Kind::kOpened, "")); }
  std::vector<control::ChannelEvent> take() override { return std::exchange(events_, {}); }
  int wake_fd() const override { return -1; }
  trainyard::Status send(const FromAgent& message) override {
    const int64_t generation = message.fence().generation();
    TRAINYARD_REQUIRE(generation >= told_ && generation <= newest, "another generation is told");
    told_ = generation;
    return {};
  }
  int64_t unsent() const override { return 0; }
  void finish(trainyard::Duration) override {}
  void push(control::ChannelEvent event) { events_.push_back(std::move(event)); }

  int64_t newest = kGeneration;  ///< that the agent may belong to

 private:
  int64_t told_ = kGeneration;
  std::vector<control::ChannelEvent> events_;
};

struct World {
  explicit World(bool stays_on)
      : stays(stays_on),
        supervisor({.job_name = "tiny",
                    .job_uid = "job-1",
                    .pod_name = "tiny-0",
                    .pod_uid = kPodUid,
                    .generation = kGeneration,
                    .worker = "/no/worker",
                    .orphan_limit = std::chrono::seconds(10),
                    .stays = stays_on},
                   channel, host, clock, *logger, 7) {
    supervisor.begin();
    supervisor.on_channel();
  }

  /// A rank that runs, chosen by `seed`; -1 when none does.
  int running(size_t seed) const {
    if (host.ranks.empty()) return -1;
    const size_t rank = seed % host.ranks.size();
    return host.ranks[rank].ended ? -1 : static_cast<int>(rank);
  }
  void end(int rank, agent::RankEnd how) {
    host.at(rank).ended = true;
    supervisor.on_rank_end(rank, how);
  }
  int64_t count_running() const {
    return std::count_if(host.ranks.begin(), host.ranks.end(),
                         [](const auto& rank) { return !rank.ended; });
  }
  void pass(std::chrono::milliseconds time) {
    clock.advance(time);
    supervisor.on_timer();
    supervisor.on_channel();
  }

  const bool stays;
  FedChannel channel;
  trainyard::testing_support::FakeRankHost host;
  trainyard::testing_support::ManualClock clock;
  std::unique_ptr<trainyard::Logger> logger = trainyard::Logger::to_nowhere();
  agent::Supervisor supervisor;
};

void decide(World& world, const Frames::Frame& frame) {
  auto decision = std::make_unique<ToAgent>();
  if (!decision->ParseFromArray(frame.bytes.data(), static_cast<int>(frame.bytes.size()))) return;
  if ((frame.operation & kRightFence) != 0) {
    decision->mutable_fence()->set_generation(kGeneration + ((frame.operation >> 4) & 3));
    decision->mutable_fence()->set_pod_uid(kPodUid);
  }
  const std::string& uid = decision->fence().pod_uid();
  if (world.stays && decision->has_join_generation() && (uid.empty() || uid == kPodUid)) {
    world.channel.newest = std::max(world.channel.newest, decision->fence().generation());
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
    case Operation::kHold:
      world.host.leaves_behind = !world.host.leaves_behind;
      return;
  }
}

/// One frame, by which no rank that runs is forgotten, and none starts beside older ones.
void act_and_judge(World& world, const Frames::Frame& frame) {
  const int64_t running = world.count_running();
  const int cleared = world.host.cleared;
  act(world, frame);
  const bool ended_one =
      static_cast<Operation>((frame.operation & 7U) % kOperations) == Operation::kRankEnd;
  TRAINYARD_REQUIRE(world.host.cleared == cleared || running <= (ended_one ? 1 : 0),
                    "a rank that runs is forgotten");
  for (const auto& rank : world.host.ranks) {
    TRAINYARD_REQUIRE(rank.launch.generation == world.host.ranks[0].launch.generation,
                      "ranks of two generations");
  }
}

/// Whatever came before: it does not join for ever, even where its ranks do not end. After SIGTERM
/// and with ranks that obey SIGKILL it ends.
void require_end(World& world) {
  if (world.supervisor.snapshot().joins) {
    world.pass(agent::Supervisor::kLongestClearLimit);
    TRAINYARD_REQUIRE(!world.supervisor.snapshot().joins, "it joins for ever");
  }
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
  World world(size > 0 && (data[0] & kStays) != 0);
  Frames frames(std::span(data, size));
  while (const auto frame = frames.next()) {
    if (world.supervisor.finished()) return 0;
    act_and_judge(world, *frame);
  }
  if (!world.supervisor.finished()) require_end(world);
  return 0;
}
