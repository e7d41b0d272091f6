#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/time.h"
#include "control/coordinator/control_transport.h"
#include "control/coordinator/timeline.h"
#include "control/facts.h"

namespace trainyard::coordination {
class Fence;
class Hello;
class RankProgress;
class RanksListening;
class Heartbeat;
class PeerLost;
class RankExited;
class RunResult;
}  // namespace trainyard::coordination

namespace trainyard::control {

/// Everything a rank last reported, for people to look at; RankFact is what plan needs of it.
struct RankReading : contract::Figures<double> {
  int64_t generation = 0;
  int rank = -1;
  int node_index = 0;
  contract::Phase phase = contract::Phase::kStarting;
  int64_t step = 0;
  std::string instruction;  ///< "GATHER u2"; empty: not known
  bool stopped = false;     ///< somebody has stopped the process
  int64_t total_steps = 0;
  int64_t samples_consumed = 0;
  int64_t tokens_consumed = 0;
  double work_seconds = 0;  ///< its own part of a step, waits for others left out
  int64_t checkpoint_step = -1;
  int64_t restored_step = -1;
  uint32_t instruction_id = 0;  ///< of the step program, now running
  contract::RankCountersReading counters;
  contract::CheckpointFigures checkpoints;
};

/// What a message says; counters are zero where it has none.
RankReading reading_of(const coordination::RankProgress& progress, int node_index);

/// What of a rank's figures means something: those of steps once it has made one since it restored
/// its state; nothing that is no finite number.
contract::KnownFigures known_figures(const RankReading& reading);

/// An agent that beats every 150 ms (agent/supervisor.h) has missed some thirty beats then.
inline constexpr std::chrono::seconds kSilenceLimit{5};

/// Of the secret that ranks of one generation prove to each other to have.
inline constexpr size_t kTableKeyBytes = 32;

/// Whether a fact is worth a look of the brain before its next regular one.
enum class Worth { kNothing, kALook };

/// What is known of one job and what is to be told to its agents: the coordinator's logic without
/// transport, clock or threads. Not thread-safe.
class JobRun {
 public:
  /// A message and the stream it goes to.
  struct Decision {
    ConnectionId connection = 0;
    std::unique_ptr<coordination::ToAgent> message;
    /// What follows the message, as it is sent (ControlTransport::send); null: nothing.
    std::shared_ptr<const std::string> tail;
  };

  JobRun(std::string job_uid, int64_t term, bool same_machine = false);
  ~JobRun();

  /// The term of decisions from now on.
  void set_term(int64_t term) { term_ = term; }

  /// The membership that status holds. Orders of an older generation are ignored. A new generation
  /// forgets the facts of the one before, the checkpoint excepted.
  void set_order(const MembershipOrder& order);
  const std::optional<MembershipOrder>& order() const { return order_; }

  /// An agent introduced itself on this connection; an older one of the same pod is superseded.
  Worth hello(ConnectionId connection, const coordination::Fence& fence,
              const coordination::Hello& hello, Time now);
  /// Whether what an agent says of this generation is of what it does now: one that has been told
  /// to join a newer one may still tell of the old.
  bool is_of_now(ConnectionId connection, int64_t generation) const;
  /// Anything came on this connection: its agent is not silent.
  Worth heard(ConnectionId connection, Time now);
  /// `listened` more of listening has passed, all that came in it handled. An agent that has
  /// ranks tells of them several times a second; one that tells nothing for kSilenceLimit is
  /// as good as without a stream, until it is heard again. What the job as a whole did is looked
  /// at here too: once for all that came, as it needs every rank.
  Worth pass(Duration listened, Time now);
  /// Notices once that ranks of the generation before have had their time to yield, and that
  /// nobody is waited for any more.
  Worth end_yield(Time now);
  /// Notices once that the back-off before the order's generation is over.
  Worth end_back_off(Time now);
  /// The stream is gone. One that was silent before has been so since then.
  Worth closed(ConnectionId connection, Time now);
  /// Ignored where it has an address that none can be.
  Worth listening(ConnectionId connection, const coordination::RanksListening& fact);
  Worth heartbeat(ConnectionId connection, const coordination::Heartbeat& fact, Time now);
  Worth peer_lost(ConnectionId connection, const coordination::PeerLost& fact, Time now);
  Worth exited(ConnectionId connection, const coordination::RankExited& fact, Time now);
  Worth result(ConnectionId connection, const coordination::RunResult& fact);
  /// The agent has told something of the generation that it was told to join: it has joined it.
  Worth joined(ConnectionId connection);

  /// What to send now, given order and facts: ranks to start once all members have streams and the
  /// back-off is over, the rank table once all ranks listen; of agents of older generations,
  /// JoinGeneration for members that stay and Fenced for the others; StopRanks for agents that wait
  /// with failed ranks in a membership that is being stopped. Each once a stream.
  std::vector<Decision> decide(Time now);

  StreamFacts facts() const;
  /// By rank, of the order's generation.
  std::vector<RankReading> readings() const;
  /// Name of the pod behind a connection; empty when unknown.
  std::string pod_name_of(ConnectionId connection) const;
  std::vector<ConnectionId> connections() const;

 private:
  struct Rank {
    RankFact fact;
    RankReading reading;
    int64_t beats = -1;
    int64_t checkpoint_failures = 0;
  };
  struct Member {
    MemberFact fact;
    ConnectionId connection = 0;  ///< 0: none
    std::string host_id;
    Duration silent{0};            ///< time listened to it in vain
    bool ranks_started = false;    ///< the agent says so, or has been told on this stream
    bool table_delivered = false;  ///< likewise
    bool takes_table_key = false;  ///< older agents do not
    std::string table_key;         ///< of the table delivered
    /// The generation that it was told to join last, and when it was told first. Outlives streams.
    std::optional<std::pair<int64_t, Time>> ordered;
    bool fenced = false;               ///< told on this stream
    bool stopped = false;              ///< likewise: StopRanks, as its ranks have failed
    std::optional<Time> stacks_asked;  ///< for the stall that began then, on this stream
    std::vector<std::pair<int, std::string>> addresses;  ///< rank, address; all of the node
    std::map<int, Rank> ranks;
  };
  /// A member of the order with its share of the ranks.
  struct Seat {
    Member* member;
    int first_rank;
    int rank_count;
  };

  Member* find(ConnectionId connection);
  const Member* find(ConnectionId connection) const;
  /// Whether the world of the order has such a rank; agents may say anything.
  bool is_rank(int rank) const;
  /// Of the order's generation, and not a stranger.
  bool is_current(const Member& member) const;
  /// A spare; or speaks for the order's generation, whose pods are all known, without being one of
  /// them.
  bool is_stranger(const Member& member) const;
  /// It is no member of the order's generation and will be none.
  bool is_over(const Member& member) const;
  /// The order's members by node index; nullopt until all are known and have streamed.
  std::optional<std::vector<Seat>> seats();
  bool anybody_yields(Time now) const;
  bool anybody_may_come_back() const;
  Duration time_to_come_back() const;
  void leave_behind(std::vector<Decision>& decisions, Time now);
  void begin_anew(Member& member, Time now) const;
  void stop_broken(std::vector<Decision>& decisions);
  void ask_stacks(std::vector<Decision>& decisions);
  static bool has_two_builds(const std::vector<Seat>& seats);
  void start_ranks(const std::vector<Seat>& seats, std::vector<Decision>& decisions);
  void send_table(const std::vector<Seat>& seats, std::vector<Decision>& decisions, Time now);
  /// The key of the order's rank table: that of members who have the table already, otherwise a new
  /// one; empty where a member does not take one.
  static std::string table_key(const std::vector<Seat>& seats);
  /// The facts of all ranks of the order; empty until every one has reported.
  std::vector<const RankFact*> all_ranks() const;
  bool update(Rank& rank, const coordination::RankProgress& progress, Time now);
  bool note_checkpoint(int64_t step, Time now);
  void note_step_time(const RankFact& before, const RankFact& after, Time now);
  std::unique_ptr<coordination::ToAgent> message_to(const Member& member) const;

  const std::string job_uid_;
  int64_t term_;
  const bool same_machine_;
  std::optional<MembershipOrder> order_;
  std::set<std::string> known_pods_;  ///< UIDs of the order's members; complete when all are known
  std::set<std::string> spare_pods_;  ///< those of its spares
  std::map<std::string, Member> members_;              ///< by pod UID
  std::map<ConnectionId, std::string> by_connection_;  ///< pod UIDs of open streams
  std::optional<Time> table_ready_at_;
  bool yield_over_ = false;       ///< of the order's generation, and noticed
  bool backs_off_ = false;        ///< nothing starts before order_->starts_at
  bool waits_for_yield_ = false;  ///< decisions wait for ranks that yield
  Duration listened_{0};          ///< since this was made
  /// Pods whose agents have been heard while those of before may still come back.
  std::set<std::string> heard_pods_;
  std::vector<PeerReport> peer_reports_;
  Timeline timeline_;
  bool moved_ = false;               ///< heartbeats came since the timeline was looked at
  std::deque<double> step_seconds_;  ///< newest steps of the lowest rank
  bool told_as_stall_ = false;       ///< the newest of its steps
  std::optional<CheckpointFact> checkpoint_;
  std::optional<contract::RunResult> result_;
};

}  // namespace trainyard::control
