#pragma once

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

/// Brain, coordinator and agents together in one thread, each step of each of them by choice.
namespace trainyard::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::MemoryCluster;

inline constexpr int kNodes = 2;
inline constexpr int kRanksPerNode = 2;
inline constexpr milliseconds kRound{50};
/// A minute and more of the job's time.
inline constexpr int kMostRounds = 1500;
/// Rounds after which ranks end well.
inline constexpr int kTrainingRounds = 60;
/// Rounds after which a rank misses a peer that is dead.
inline constexpr int kRoundsToMissAPeer = 8;

/// Within which agents have streams again: the first wait before a reconnect is 0.4 s at most.
inline constexpr int kRoundsToComeBack = 12;

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
  std::string left() const override { return ""; }
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

  void report_peer(agent::Supervisor& agent, int local_rank) const {
    const Rank& rank = ranks.at(static_cast<size_t>(local_rank));
    const auto dead = std::find_if(rank.peers.begin(), rank.peers.end(),
                                   [&](const auto& peer) { return !judge_.is_alive[peer]; });
    agent.on_rank_line(
        local_rank, contract::encode(contract::PeerLost{static_cast<int>(dead - rank.peers.begin()),
                                                        "all_reduce is overdue"}));
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
      if (!alone || ++rank.rounds_alone <= kRoundsToMissAPeer) continue;
      if (rank.alive) report_peer(agent, static_cast<int>(i));
      die(rank, {69, 0, false});
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
  bool lost = false;    ///< nothing in it runs any more
  bool silent = false;  ///< nothing in it moves any more
  std::unique_ptr<control::ControlChannel> channel;
  std::unique_ptr<Ranks> ranks;
  std::unique_ptr<agent::Supervisor> agent;
};

/// How a play's job differs from others.
struct Setting {
  int64_t spares = 0;
  api::RestartStrategy strategy = api::RestartStrategy::kInPlace;
  int training_rounds = kTrainingRounds;
  bool older_agents = false;  ///< those of the first generation do not say that they have joined
};

/// Carries messages as an agent of the version before would send them.
class OlderChannel final : public control::ControlChannel {
 public:
  explicit OlderChannel(std::unique_ptr<control::ControlChannel> channel)
      : channel_(std::move(channel)) {}

  void open() override { channel_->open(); }
  std::vector<control::ChannelEvent> take() override { return channel_->take(); }
  int wake_fd() const override { return channel_->wake_fd(); }
  int64_t unsent() const override { return channel_->unsent(); }
  void finish(Duration timeout) override { channel_->finish(timeout); }
  Status send(const coordination::FromAgent& message) override {
    if (!message.has_hello()) return channel_->send(message);
    coordination::FromAgent older = message;
    older.mutable_hello()->clear_says_joined();
    return channel_->send(older);
  }

 private:
  const std::unique_ptr<control::ControlChannel> channel_;
};

inline api::TrainingJob job_in(const Setting& setting) {
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

  /// A drain: somebody else deletes the pod of a node index, if there is one.
  void drain(int index, Duration grace) {
    for (const control::ObservedPod& pod : cluster.truth().pods) {
      const bool runs = pod.phase == control::PodPhase::kRunning && !pod.terminating;
      if (pod.node_index == index && runs) cluster.delete_from_outside(pod.name, grace);
    }
  }

  /// All in the pod of a node index stands still from now on; its stream ends, or stays open.
  void freeze(int index, bool ends_stream) {
    for (const control::ObservedPod& pod : cluster.truth().pods) {
      const auto found = nodes_.find(pod.uid);
      if (pod.node_index != index || found == nodes_.end()) continue;
      Node& node = found->second;
      node.silent = true;
      for (const Ranks::Rank& rank : node.ranks->ranks)
        judge.is_alive[rank.address] = false;
      if (ends_stream) node.channel->finish(Duration::zero());
    }
  }

  bool has_ended() const {
    if (!cluster.job_exists()) return true;
    const auto status = cluster.truth().status;
    return control::is_true(status, api::ConditionType::kComplete) ||
           control::is_true(status, api::ConditionType::kFailed);
  }

  /// Pods that were made for it.
  int64_t created() const {
    const auto writes = cluster.writes();
    return std::count_if(writes.begin(), writes.end(), [](const MemoryCluster::Write& write) {
      return write.kind == MemoryCluster::Write::Kind::kCreate;
    });
  }

  using Strike = std::function<void(World&, int64_t action)>;

  /// Runs the job to its end; before each action `strike` is asked with its number.
  void run(const Strike& strike) {
    const int most = setting_.training_rounds + kMostRounds;
    for (int round = 0; round < most && !has_ended(); ++round)
      turn(round, strike);
  }

  /// What is over goes on for some rounds.
  void run_on(int rounds) {
    for (int round = 0; round < rounds; ++round)
      turn(setting_.training_rounds + kMostRounds + round, [](World&, int64_t) {});
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
        if (!kept->lost && !kept->silent) kept->agent->on_channel();
      };
      // What ranks do may come before what the coordinator has said.
      if (round % 2 == 0) act(strike, hear);
      act(strike, [&] {
        if (kept->lost || kept->silent) return;
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
    std::erase_if(nodes_, [&](const auto& entry) {
      if (pods.contains(entry.first)) return false;
      for (const Ranks::Rank& rank : entry.second.ranks->ranks)
        judge.is_alive[rank.address] = false;
      return true;
    });
    for (const auto& [uid, pod] : pods) {
      Node& node = nodes_[uid];
      if (node.agent == nullptr) start(node, pod);
      if (node.silent) continue;
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
    if (setting_.older_agents && pod.created_generation == 1) {
      node.channel = std::make_unique<OlderChannel>(std::move(node.channel));
    }
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

inline constexpr int kRankThatDies = 2;
/// Actions of a calm start, and some of training.
inline constexpr int64_t kKilledUntil = 160;
/// In training.
inline constexpr int64_t kKilledAt = 150;
/// Actions of a recovery, and more.
inline constexpr int64_t kRecovery = 160;

using Trouble = std::function<void(World&)>;

}  // namespace trainyard::sim
