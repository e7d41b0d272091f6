// Brain, coordinator and agents together in one thread, each step of each of them by choice: a rank
// is killed at every point of a job's life, and then another thing goes wrong at every point of the
// recovery. Nothing may start twice, before it is written, or among ranks of another generation.
#include <algorithm>
#include <csignal>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "agent/rank_host.h"
#include "agent/supervisor.h"
#include "common/proto/coordination.pb.h"
#include "control/coordinator/coordinator.h"
#include "control/coordinator/memory_transport.h"
#include "control/pod_spec.h"
#include "control/reconciler.h"
#include "control/status_edit.h"
#include "tests/support/manual_clock.h"
#include "tests/support/memory_cluster.h"

namespace trainyard::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::MemoryCluster;

constexpr int kNodes = 2;
constexpr int kRanksPerNode = 2;
constexpr milliseconds kRound{50};
/// A minute and more of the job's time.
constexpr int kMostRounds = 1500;
/// Rounds after which ranks end well.
constexpr int kTrainingRounds = 60;
/// Rounds after which a rank misses a peer that is dead.
constexpr int kRoundsToMissAPeer = 8;

/// Within which agents have streams again: the first wait before a reconnect is 0.4 s at most.
constexpr int kRoundsToComeBack = 12;

/// What all nodes have in common, and what is wrong with what they did.
struct Judge {
  std::function<int64_t()> written;              ///< generation that the status holds
  std::map<std::string, int64_t> address_owner;  ///< generation of the process that listens there
  std::map<std::string, bool> is_alive;          ///< by address
  std::vector<std::string> violations;
  int64_t processes = 0;

  void expect(bool holds, const std::string& what) {
    if (!holds) violations.push_back(what);
  }
};

/// The processes of one node.
class Ranks final : public agent::RankHost {
 public:
  struct Rank {
    agent::RankLaunch launch;
    std::string address;
    agent::RankEnd end;
    bool alive = true;
    int dies_by = 0;  ///< a signal that takes its time
    bool end_told = false;
    bool listening_told = false;
    std::vector<std::string> peers;  ///< of the rank table; empty before it has come
    int rounds_alone = 0;
    int fails_with = 0;       ///< the exit code that it is about to end with; 0: none
    int rounds_to_clean = 0;  ///< until then
    bool failing_told = false;
  };

  explicit Ranks(Judge& judge) : judge_(judge) {}

  Status start(const agent::RankLaunch& launch) override {
    const std::string what = "rank " + std::to_string(launch.rank) + " of generation " +
                             std::to_string(launch.generation);
    judge_.expect(launch.generation <= judge_.written(), what + " started before it was written");
    judge_.expect(launch.generation >= newest_, what + " started after a newer one");
    judge_.expect(launch.node_index == launch.rank / kRanksPerNode,
                  what + " started at index " + std::to_string(launch.node_index));
    newest_ = std::max(newest_, launch.generation);
    for (const Rank& rank : ranks) {
      judge_.expect(rank.launch.generation == launch.generation,
                    what + " started beside older ones");
      judge_.expect(rank.launch.rank != launch.rank, what + " started twice");
    }
    Rank rank;
    rank.launch = launch;
    rank.address = "host:" + std::to_string(++judge_.processes);
    judge_.address_owner[rank.address] = launch.generation;
    judge_.is_alive[rank.address] = true;
    ranks.push_back(std::move(rank));
    return {};
  }
  Status clear() override {
    for (const Rank& rank : ranks)
      judge_.expect(!rank.alive, "a rank that runs was forgotten");
    ranks.clear();
    return {};
  }
  int64_t pid(int local_rank) const override { return 1000 + local_rank; }
  void send(int local_rank, const std::string& line) override {
    const auto start = contract::decode_start(line);
    if (!start) return;
    Rank& rank = ranks.at(static_cast<size_t>(local_rank));
    judge_.expect(start->generation == rank.launch.generation,
                  "a rank table of another generation");
    for (const contract::RankEntry& peer : start->ranks) {
      judge_.expect(judge_.address_owner[peer.address] == rank.launch.generation,
                    "a rank table with a rank of another generation");
      rank.peers.push_back(peer.address);
    }
  }
  void signal(int local_rank, int number) override {
    if (number == SIGKILL || number == SIGTERM)
      ranks.at(static_cast<size_t>(local_rank)).dies_by = number;
  }
  void read_progress(int local_rank, coordination::RankProgress& progress) const override {
    const Rank& rank = ranks.at(static_cast<size_t>(local_rank));
    progress.set_restored_step(rank.peers.empty() ? -1 : 0);
    progress.set_checkpoint_step(-1);
    progress.set_phase(static_cast<uint32_t>(rank.peers.empty() ? contract::Phase::kRendezvous
                                                                : contract::Phase::kTraining));
  }
  contract::RankCountersReading read_counters(int) const override { return {}; }
  std::vector<std::string> last_lines(int) const override { return {}; }

  void die(Rank& rank, agent::RankEnd end) {
    if (!rank.alive) return;
    rank.alive = false;
    rank.end = end;
    judge_.is_alive[rank.address] = false;
  }

  /// It tells its agent, then its peers, cleans up and ends.
  void fail(agent::Supervisor& agent, size_t local_rank) {
    Rank& rank = ranks[local_rank];
    if (!std::exchange(rank.failing_told, true)) {
      agent.on_rank_line(static_cast<int>(local_rank),
                         contract::encode(contract::Failing{rank.fails_with, "bad"}));
      judge_.is_alive[rank.address] = false;
    }
    if (rank.rounds_to_clean-- <= 0) die(rank, {rank.fails_with, 0, false});
  }

  /// What ranks do in a round; told to their agent.
  void live(agent::Supervisor& agent, bool may_end) {
    for (size_t i = 0; i < ranks.size(); ++i) {
      Rank& rank = ranks[i];
      if (rank.dies_by != 0) die(rank, {0, rank.dies_by, false});
      if (rank.fails_with != 0) fail(agent, i);
      if (rank.alive && !rank.listening_told) {
        rank.listening_told = true;
        agent.on_rank_line(static_cast<int>(i),
                           contract::encode(contract::Listening{rank.address}));
      }
      const bool alone = std::any_of(rank.peers.begin(), rank.peers.end(),
                                     [&](const auto& peer) { return !judge_.is_alive[peer]; });
      if (rank.fails_with != 0) continue;
      if (alone && may_end) continue;  // its peers have ended well, and so does it
      if (alone && ++rank.rounds_alone > kRoundsToMissAPeer) die(rank, {69, 0, false});
    }
    const bool done = may_end && std::all_of(ranks.begin(), ranks.end(), [](const Rank& rank) {
                        return rank.alive && !rank.peers.empty() && rank.fails_with == 0;
                      });
    for (Rank& rank : ranks) {
      if (done) die(rank, {0, 0, false});
    }
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i].alive || ranks[i].end_told) continue;
      ranks[i].end_told = true;
      return agent.on_rank_end(static_cast<int>(i), ranks[i].end);  // may have cleared the list
    }
  }

  std::vector<Rank> ranks;

 private:
  Judge& judge_;
  int64_t newest_ = 0;
};

struct Node {
  std::string pod_name;
  bool lost = false;  ///< nothing in it runs any more
  std::unique_ptr<control::ControlChannel> channel;
  std::unique_ptr<Ranks> ranks;
  std::unique_ptr<agent::Supervisor> agent;
};

/// How a play's job differs from others.
struct Setting {
  int64_t spares = 0;
  api::RestartStrategy strategy = api::RestartStrategy::kInPlace;
  int training_rounds = kTrainingRounds;
};

api::TrainingJob job_in(const Setting& setting) {
  api::TrainingJob job = testing_support::make_job(kNodes);
  job.spec.num_proc_per_node = kRanksPerNode;
  job.spec.failure_policy.restart_strategy = setting.strategy;
  job.spec.failure_policy.backoff = {seconds(1), seconds(2)};
  job.spec.spares.count = setting.spares;
  return job;
}

class World {
  testing_support::ManualClock clock_;

 public:
  explicit World(const Setting& setting = {})
      : cluster(clock_, job_in(setting)), setting_(setting) {
    judge.written = [this] { return cluster.truth().status.membership.generation; };
    lead();
  }

  /// Another process of the operator leads from now on; it knows nothing. Agents may be back before
  /// it looks at the job, which it does `rounds` later.
  void lead(int rounds = 0) {
    rounds_to_look_ = rounds;
    transport_.set_reachable(false);
    reconciler_.reset();
    coordinator_.reset();
    transport_.take(Duration::zero());
    transport_.set_reachable(true);
    cluster.reconnect();
    coordinator_ = std::make_unique<control::Coordinator>(
        control::Coordinator::Options{.transport = &transport_,
                                      .clock = &clock_,
                                      .logger = logger_.get(),
                                      .term = ++term_,
                                      .on_change = nullptr,
                                      .on_rank_exit = nullptr});
    reconciler_ = std::make_unique<control::Reconciler>(control::Reconciler::Options{
        &cluster, &clock_, coordinator_.get(), coordinator_.get(), {}, {}});
  }

  /// All streams end; agents come back.
  void cut_streams() {
    transport_.set_reachable(false);
    transport_.set_reachable(true);
  }

  /// One of the job's ranks dies, if any lives.
  bool kill_rank(int rank) {
    for (auto& [uid, node] : nodes_) {
      for (Ranks::Rank& process : node.ranks->ranks) {
        if (process.launch.rank != rank || !process.alive) continue;
        node.ranks->die(process, {0, SIGKILL, false});
        return true;
      }
    }
    return false;
  }

  /// One of the job's ranks fails by itself, if it lives, and cleans up for so many rounds.
  bool fail_rank(int rank, int exit_code, int rounds = 0) {
    for (auto& [uid, node] : nodes_) {
      for (Ranks::Rank& process : node.ranks->ranks) {
        if (process.launch.rank != rank || !process.alive) continue;
        process.fails_with = exit_code;
        process.rounds_to_clean = rounds;
        return true;
      }
    }
    return false;
  }

  /// The pod of one of the job's ranks is lost with all that runs in it, if any does.
  bool kill_pod(int rank) {
    for (auto& [uid, node] : nodes_) {
      auto& ranks = node.ranks->ranks;
      const bool has_it = std::any_of(ranks.begin(), ranks.end(), [&](const Ranks::Rank& process) {
        return process.launch.rank == rank && process.alive;
      });
      if (!has_it) continue;
      for (Ranks::Rank& process : ranks)
        node.ranks->die(process, {0, SIGKILL, false});
      control::ContainerExit exit;
      exit.exit_code = 128 + SIGKILL;
      exit.finished_at = clock_.now();
      cluster.finish_pod(node.pod_name, exit);
      node.lost = true;
      return true;
    }
    return false;
  }

  bool has_ended() const {
    const auto status = cluster.truth().status;
    return control::is_true(status, api::ConditionType::kComplete) ||
           control::is_true(status, api::ConditionType::kFailed);
  }

  using Strike = std::function<void(World&, int64_t action)>;

  /// Runs the job to its end; before each action `strike` is asked with its number.
  void run(const Strike& strike) {
    for (int round = 0; round < kMostRounds && !has_ended(); ++round)
      turn(round, strike);
  }

  /// What is over goes on for some rounds.
  void run_on(int rounds) {
    for (int round = 0; round < rounds; ++round)
      turn(kMostRounds + round, [](World&, int64_t) {});
  }

  MemoryCluster cluster;
  Judge judge;
  int64_t actions = 0;

 private:
  void turn(int round, const Strike& strike) {
    const bool may_end = round >= setting_.training_rounds;
    act(strike, [&] { keep_nodes(); });
    for (auto& [uid, node] : nodes_) {
      Node* const kept = &node;
      const auto hear = [&] {
        if (!kept->lost) kept->agent->on_channel();
      };
      // What ranks do may come before what the coordinator has said.
      if (round % 2 == 0) act(strike, hear);
      act(strike, [&] {
        if (kept->lost) return;
        kept->agent->on_timer();
        if (!kept->agent->finished()) kept->ranks->live(*kept->agent, may_end);
      });
      if (round % 2 != 0) act(strike, hear);
    }
    act(strike, [&] { coordinator_->poll(Duration::zero()); });
    act(strike, [&] {
      if (rounds_to_look_-- <= 0) static_cast<void>(reconciler_->reconcile(cluster.key()));
    });
    if (cluster.crashed()) lead();
    cluster.step();
    clock_.advance(kRound);
  }

  void act(const Strike& strike, const std::function<void()>& action) {
    strike(*this, actions++);
    action();
  }

  /// Agents of running pods run; those of pods that are to end are asked to; their ends are theirs.
  void keep_nodes() {
    std::map<std::string, control::ObservedPod> pods;
    for (const control::ObservedPod& pod : cluster.truth().pods) {
      if (pod.phase == control::PodPhase::kRunning) pods.emplace(pod.uid, pod);
    }
    std::erase_if(nodes_, [&](const auto& entry) { return !pods.contains(entry.first); });
    for (const auto& [uid, pod] : pods) {
      Node& node = nodes_[uid];
      if (node.agent == nullptr) start(node, pod);
      if (pod.terminating) node.agent->on_terminate();
      if (!node.agent->finished()) continue;
      control::ContainerExit exit;
      exit.exit_code = node.agent->finished()->exit_code;
      exit.finished_at = clock_.now();
      cluster.finish_pod(pod.name, exit);
    }
  }

  void start(Node& node, const control::ObservedPod& pod) {
    const auto job = job_in({.strategy = setting_.strategy});
    agent::AgentOptions options;
    options.job_uid = cluster.truth().metadata.uid;
    options.pod_name = pod.name;
    options.pod_uid = pod.uid;
    options.node_index = pod.spare ? kNodes : pod.node_index;
    options.generation = pod.created_generation;
    options.stays = control::make_pod_spec(job.metadata, job.spec, 0, 1, kNodes)
                        .environment.contains(control::kEnvStays);
    node.pod_name = pod.name;
    node.channel = transport_.make_channel();
    node.ranks = std::make_unique<Ranks>(judge);
    node.agent = std::make_unique<agent::Supervisor>(std::move(options), *node.channel, *node.ranks,
                                                     clock_, *logger_, 7);
    node.agent->begin();
  }

  const Setting setting_;
  const std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  control::MemoryTransport transport_;
  int64_t term_ = 0;
  int rounds_to_look_ = 0;
  std::unique_ptr<control::Coordinator> coordinator_;
  std::unique_ptr<control::Reconciler> reconciler_;
  std::map<std::string, Node> nodes_;
};

/// What every play comes to: the job is complete in the pods that it began with, and was restarted
/// as often as ranks were killed while they ran.
void check(const World& world, int64_t kills, const std::string& what) {
  for (const std::string& violation : world.judge.violations)
    ADD_FAILURE() << what << ": " << violation;
  const auto status = world.cluster.truth().status;
  EXPECT_TRUE(control::is_true(status, api::ConditionType::kComplete)) << what;
  EXPECT_EQ(status.restarts.total, kills) << what;
  EXPECT_EQ(status.restarts.in_place, kills) << what;
  EXPECT_EQ(status.membership.pods_since, 1) << what;
  EXPECT_EQ(world.judge.processes, (1 + kills) * kNodes * kRanksPerNode) << what;
  int64_t created = 0;
  for (const MemoryCluster::Write& write : world.cluster.writes())
    created += write.kind == MemoryCluster::Write::Kind::kCreate ? 1 : 0;
  EXPECT_EQ(created, kNodes) << what;
}

constexpr int kRankThatDies = 2;
/// Actions of a calm start, and some of training.
constexpr int64_t kKilledUntil = 160;
/// In training.
constexpr int64_t kKilledAt = 150;
/// Actions of a recovery, and more.
constexpr int64_t kRecovery = 160;

TEST(InPlaceSimulation, HealthyJobsAreNotRestarted) {
  World world;
  world.run([](World&, int64_t) {});
  check(world, 0, "undisturbed");
  EXPECT_GT(world.actions, kKilledUntil);
}

TEST(InPlaceSimulation, ARankMayDieAtAnyPoint) {
  int64_t struck = 0;
  for (int64_t at = 0; at < kKilledUntil; ++at) {
    World world;
    int64_t kills = 0;
    world.run([&](World& now, int64_t action) {
      if (action == at && now.kill_rank(kRankThatDies)) ++kills;
    });
    struck += kills;
    check(world, kills, "killed at action " + std::to_string(at));
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(struck, kKilledUntil / 2);
}

using Trouble = std::function<void(World&)>;

/// A rank dies, and at each action of its recovery there is further trouble.
void disturb_recovery(const std::string& name, const Trouble& trouble) {
  for (int64_t after = 0; after < kRecovery; ++after) {
    World world;
    int64_t kills = 0;
    world.run([&](World& now, int64_t action) {
      if (action == kKilledAt && now.kill_rank(kRankThatDies)) ++kills;
      if (action == kKilledAt + after) trouble(now);
    });
    ASSERT_EQ(kills, 1);
    check(world, kills, name + " " + std::to_string(after) + " actions after the kill");
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(InPlaceSimulation, TheLeaderMayChangeAtAnyPointOfARecovery) {
  for (const int rounds : {0, kRoundsToComeBack})
    disturb_recovery("leader", [&](World& world) { world.lead(rounds); });
}

TEST(InPlaceSimulation, StreamsMayEndAtAnyPointOfARecovery) {
  disturb_recovery("streams", [](World& world) { world.cut_streams(); });
}

TEST(InPlaceSimulation, TheLeaderMayDieAroundAnyWriteOfARecovery) {
  for (const auto point : {MemoryCluster::CrashPoint::kBefore, MemoryCluster::CrashPoint::kAfter}) {
    for (int64_t write = 0; write < 6; ++write) {
      World world;
      int64_t kills = 0;
      world.run([&](World& now, int64_t action) {
        if (action != kKilledAt) return;
        if (now.kill_rank(kRankThatDies)) ++kills;
        now.cluster.crash_at(write, point);
      });
      check(world, kills, "dead around write " + std::to_string(write));
    }
  }
}

TEST(InPlaceSimulation, AnotherRankMayDieAtAnyPointOfARecovery) {
  for (int64_t after = 0; after < kRecovery; ++after) {
    World world;
    world.run([&](World& now, int64_t action) {
      if (action == kKilledAt) now.kill_rank(kRankThatDies);
      if (action == kKilledAt + after) now.kill_rank(0);
    });
    const std::string what = "second kill " + std::to_string(after) + " actions later";
    for (const std::string& violation : world.judge.violations)
      ADD_FAILURE() << what << ": " << violation;
    const auto status = world.cluster.truth().status;
    EXPECT_TRUE(control::is_true(status, api::ConditionType::kComplete)) << what;
    EXPECT_GE(status.restarts.total, 1) << what;
    EXPECT_LE(status.restarts.total, 2) << what;
    EXPECT_EQ(status.restarts.in_place, status.restarts.total) << what;
    if (::testing::Test::HasFailure()) return;
  }
}

/// Longer than any wait for a verdict.
constexpr int kRoundsToClearUp = 240;

/// Pods of the job that ended with this code and are still there.
int64_t count_ended(const World& world, int exit_code) {
  const auto pods = world.cluster.truth().pods;
  return std::count_if(pods.begin(), pods.end(), [&](const control::ObservedPod& pod) {
    return pod.exit && pod.exit->exit_code == exit_code && !pod.terminating;
  });
}

/// A rank failed for good, and the job with it: its pod tells why, for as long as the job is there.
void check_failed(World& world, int64_t restarts, const std::string& what) {
  for (const std::string& violation : world.judge.violations)
    ADD_FAILURE() << what << ": " << violation;
  const auto status = world.cluster.truth().status;
  const api::Condition* const failed = control::find_condition(status, api::ConditionType::kFailed);
  ASSERT_NE(failed, nullptr) << what;
  EXPECT_EQ(failed->reason, api::reason::kFatalExitCode) << what;
  EXPECT_EQ(status.restarts.total, restarts) << what;
  const api::Attempt* const last = control::newest_ended_attempt(status);
  ASSERT_NE(last, nullptr) << what;
  EXPECT_EQ(last->exit_code, contract::kExitBadData) << what;
  world.run_on(kRoundsToClearUp);
  const auto pods = world.cluster.truth().pods;
  const auto blamed = std::find_if(pods.begin(), pods.end(), [&](const control::ObservedPod& pod) {
    return pod.uid == last->pod_uid;
  });
  ASSERT_NE(blamed, pods.end()) << what << ": the pod to blame is gone";
  EXPECT_EQ(blamed->phase, control::PodPhase::kFailed) << what;
  EXPECT_EQ(blamed->node_index, kRankThatDies / kRanksPerNode) << what;
  ASSERT_TRUE(blamed->exit) << what;
  EXPECT_EQ(blamed->exit->exit_code, contract::kExitBadData) << what;
}

/// In training, after as many restarts in place.
constexpr int64_t kFailsAt[] = {150, 450, 900};

class FatalFailureSimulation : public testing::TestWithParam<api::RestartStrategy> {
 protected:
  /// Ranks die, then one fails for good `after` actions after it could, and cleans up for `rounds`;
  /// then there may be trouble.
  void fail(int64_t kills, int64_t after, int rounds, int64_t trouble_after,
            const Trouble& trouble) const {
    World world({.strategy = GetParam(), .training_rounds = 400});
    const int64_t at = kFailsAt[kills] + after;
    bool failed = false;
    int64_t killed = 0;
    world.run([&](World& now, int64_t action) {
      for (int64_t kill = 0; kill < kills; ++kill) {
        if (action == kFailsAt[kill] && now.kill_rank(0)) ++killed;
      }
      if (action == at) failed = now.fail_rank(kRankThatDies, contract::kExitBadData, rounds);
      if (action == at + trouble_after) trouble(now);
    });
    ASSERT_TRUE(failed);
    ASSERT_EQ(killed, kills);
    check_failed(world, kills,
                 std::to_string(after) + " actions into the time after " + std::to_string(kills) +
                     " restarts, trouble " + std::to_string(trouble_after) + " later");
  }
};

TEST_P(FatalFailureSimulation, ThePodToBlameTellsWhyWheneverItComes) {
  for (int64_t kills = 0; kills <= 2; ++kills) {
    for (int64_t after = 0; after < 14; ++after) {
      for (const int rounds : {0, 30}) {
        fail(kills, after, rounds, -1, [](World&) {});
        if (HasFatalFailure() || HasNonfatalFailure()) return;
      }
    }
  }
}

TEST_P(FatalFailureSimulation, TheLeaderMayChangeAtAnyPoint) {
  for (const int rounds : {0, kRoundsToComeBack}) {
    for (int64_t later = 0; later < kRecovery; later += 2) {
      fail(1, 0, 0, later, [&](World& world) { world.lead(rounds); });
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
  }
}

TEST_P(FatalFailureSimulation, StreamsMayEndAtAnyPoint) {
  for (int64_t later = 0; later < kRecovery; later += 2) {
    fail(1, 0, 0, later, [](World& world) { world.cut_streams(); });
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

/// One that ends with a generation that is over already fails nothing.
TEST_P(FatalFailureSimulation, ItMayComeAtAnyPointOfARecovery) {
  int64_t failures = 0;
  for (int64_t after = 0; after < kRecovery; ++after) {
    World world({.strategy = GetParam()});
    world.run([&](World& now, int64_t action) {
      if (action == kKilledAt) now.kill_rank(0);
      if (action == kKilledAt + after) now.fail_rank(kRankThatDies, contract::kExitBadData);
    });
    const auto status = world.cluster.truth().status;
    if (control::is_true(status, api::ConditionType::kFailed)) {
      ++failures;
      check_failed(world, status.restarts.total, std::to_string(after) + " actions after a kill");
    } else {
      EXPECT_TRUE(control::is_true(status, api::ConditionType::kComplete)) << after;
      world.run_on(kRoundsToClearUp);
      EXPECT_EQ(count_ended(world, 0), kNodes) << after;
    }
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  EXPECT_GE(failures, 10) << "before and after the back-off, in which no ranks run";
}

TEST_P(FatalFailureSimulation, ACompleteJobKeepsItsPods) {
  World world({.strategy = GetParam()});
  world.run([](World& now, int64_t action) {
    if (action == kKilledAt) now.kill_rank(kRankThatDies);
  });
  EXPECT_EQ(world.cluster.truth().status.restarts.total, 1);
  EXPECT_TRUE(control::is_true(world.cluster.truth().status, api::ConditionType::kComplete));
  world.run_on(kRoundsToClearUp);
  EXPECT_EQ(count_ended(world, 0), kNodes);
}

INSTANTIATE_TEST_SUITE_P(Strategies, FatalFailureSimulation,
                         testing::Values(api::RestartStrategy::kRecreateAll,
                                         api::RestartStrategy::kReplacePod,
                                         api::RestartStrategy::kInPlace));

/// Actions by which a spare has a stream, and ranks train.
constexpr int64_t kPodLostAt = 400;
/// Actions of a promotion, and more.
constexpr int64_t kPromotion = 120;

/// The pod of a rank was lost once: whoever took its index, it happened once, and nothing was made
/// beyond it. `promoted`: a spare must have taken it.
void check_promoted(const World& world, bool promoted, const std::string& what) {
  for (const std::string& violation : world.judge.violations)
    ADD_FAILURE() << what << ": " << violation;
  EXPECT_EQ(world.cluster.unannounced(), 0) << what;
  const auto status = world.cluster.truth().status;
  EXPECT_TRUE(control::is_true(status, api::ConditionType::kComplete)) << what;
  EXPECT_EQ(status.restarts.total, 1) << what;
  EXPECT_EQ(status.restarts.pod_replacements, 1) << what;
  EXPECT_EQ(world.judge.processes, 2 * kNodes * kRanksPerNode) << what;
  if (promoted) {
    EXPECT_EQ(status.restarts.promotions, 1) << what;
  }
  int64_t created = 0;
  for (const MemoryCluster::Write& write : world.cluster.writes())
    created += write.kind == MemoryCluster::Write::Kind::kCreate ? 1 : 0;
  EXPECT_EQ(created, kNodes + 1 + (1 - status.restarts.promotions)) << what;
}

/// A pod is lost, and at each action after that there is trouble.
void disturb_promotion(const std::string& name, const Trouble& trouble) {
  for (int64_t after = 0; after < kPromotion; ++after) {
    World world({.spares = 1});
    bool lost = false;
    world.run([&](World& now, int64_t action) {
      if (action == kPodLostAt) lost = now.kill_pod(kRankThatDies);
      if (action == kPodLostAt + after) trouble(now);
    });
    ASSERT_TRUE(lost);
    check_promoted(world, false, name + " " + std::to_string(after) + " actions after the loss");
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(PromotionSimulation, ASpareTakesTheIndexOfAPodThatIsLost) {
  World world({.spares = 1});
  bool lost = false;
  world.run([&](World& now, int64_t action) {
    if (action == kPodLostAt) lost = now.kill_pod(kRankThatDies);
  });
  ASSERT_TRUE(lost);
  check_promoted(world, true, "nothing else");
}

TEST(PromotionSimulation, TwoPodsThatAreLostTogetherAreOneGeneration) {
  World world({.spares = 1});
  int lost = 0;
  world.run([&](World& now, int64_t action) {
    if (action != kPodLostAt) return;
    for (const int rank : {0, kRankThatDies})
      lost += now.kill_pod(rank) ? 1 : 0;
  });
  ASSERT_EQ(lost, 2);
  for (const std::string& violation : world.judge.violations)
    ADD_FAILURE() << violation;
  const auto status = world.cluster.truth().status;
  EXPECT_TRUE(control::is_true(status, api::ConditionType::kComplete));
  EXPECT_EQ(status.restarts.total, 1) << "one is promoted, one is made anew";
  EXPECT_EQ(status.restarts.promotions, 1);
  EXPECT_EQ(status.restarts.pod_replacements, 2);
  EXPECT_EQ(world.judge.processes, 2 * kNodes * kRanksPerNode);
}

TEST(PromotionSimulation, AnotherPodMayBeLostAtAnyPoint) {
  int twice = 0;  // while rank 0 starts anew there is nothing of it to lose
  for (int64_t after = 0; after < kPromotion; after += 3) {
    World world({.spares = 1});
    int lost = 0;
    world.run([&](World& now, int64_t action) {
      if (action == kPodLostAt) lost += now.kill_pod(kRankThatDies) ? 1 : 0;
      if (action == kPodLostAt + after) lost += now.kill_pod(0) ? 1 : 0;
    });
    ASSERT_GE(lost, 1);
    twice += lost == 2 ? 1 : 0;
    const std::string what = "second loss " + std::to_string(after) + " actions later";
    for (const std::string& violation : world.judge.violations)
      ADD_FAILURE() << what << ": " << violation;
    const auto status = world.cluster.truth().status;
    EXPECT_TRUE(control::is_true(status, api::ConditionType::kComplete)) << what;
    EXPECT_GE(status.restarts.total, 1) << what;
    EXPECT_LE(status.restarts.total, 2) << what;
    EXPECT_LE(status.restarts.promotions, 1) << what;
    EXPECT_EQ(status.restarts.pod_replacements, lost) << what;
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GE(twice, 4);
}

TEST(PromotionSimulation, TheLeaderMayChangeAtAnyPoint) {
  // One that does not know yet that the spare waits makes a new pod.
  for (const int rounds : {0, kRoundsToComeBack})
    disturb_promotion("leader", [&](World& world) { world.lead(rounds); });
}

TEST(PromotionSimulation, StreamsMayEndAtAnyPoint) {
  disturb_promotion("streams", [](World& world) { world.cut_streams(); });
}

TEST(PromotionSimulation, TheLeaderMayDieAroundAnyWrite) {
  for (const auto point : {MemoryCluster::CrashPoint::kBefore, MemoryCluster::CrashPoint::kAfter}) {
    for (int64_t write = 0; write < 8; ++write) {
      World world({.spares = 1});
      world.run([&](World& now, int64_t action) {
        if (action != kPodLostAt) return;
        now.kill_pod(kRankThatDies);
        now.cluster.crash_at(write, point);
      });
      check_promoted(world, write > 0 || point == MemoryCluster::CrashPoint::kAfter,
                     "dead around write " + std::to_string(write));
    }
  }
}

}  // namespace
}  // namespace trainyard::sim
