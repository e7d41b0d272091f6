#pragma once

#include <csignal>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "agent/agent_metrics.h"
#include "agent/agent_options.h"
#include "agent/rank_host.h"
#include "common/base/clock.h"
#include "common/log/log.h"
#include "common/worker_contract.h"
#include "control/coordinator/control_transport.h"

namespace trainyard::coordination {
class FromAgent;
class JoinGeneration;
class RankProgress;
class RankTable;
class StartGeneration;
}  // namespace trainyard::coordination

namespace trainyard::agent {

/// How the agent ends, and why.
struct AgentExit {
  int exit_code = 0;                 ///< 128 + signal where a signal ended the deciding rank
  std::optional<int> signal;         ///< of the deciding rank
  std::optional<int> rank;           ///< the deciding rank
  std::string reason = "Completed";  ///< or "Error"
  std::string message;               ///< the deciding rank's last lines, or what went wrong
  /// Set for a rank of the engine that ended as it was asked to. True: somebody outside sent
  /// SIGTERM to it or its pod. False: it followed a rank that was asked.
  std::optional<bool> asked;
  /// Newest step that any of the node's ranks had done; nullopt where none had a state.
  std::optional<int64_t> last_step;
};

/// The agent's logic: turns what the coordinator, the ranks and the machine say into what to do
/// with the ranks. Its effects go through ControlChannel, RankHost and Clock only, and it never
/// waits, so that tests drive it step by step. Not thread-safe.
///
/// Life: connect and say hello; start the ranks that StartGeneration names; tell the coordinator
/// their addresses; hand them the rank table; then report progress until all have ended. When one
/// fails, the others get kPeerSettleTime to find out by themselves (and to show whether the first
/// one only followed a peer), then they are killed: nobody waits in a dead world. Where the
/// engine's rank died of a signal that is known already, and they are killed at once.
///
/// An agent that stays (AgentOptions) does not end with its ranks. It tells how they failed and
/// waits for an order: JoinGeneration, which makes it as if it had just begun in that generation,
/// also while its ranks run; StopRanks or Fenced, by which it ends as it would have ended at once.
class Supervisor {
 public:
  /// All but `options` outlive the supervisor; `seed` is for the jitter of reconnects.
  Supervisor(AgentOptions options, control::ControlChannel& channel, RankHost& host,
             const Clock& clock, Logger& logger, uint64_t seed);
  ~Supervisor();

  /// Opens the stream. Once, before anything else.
  void begin();
  /// The channel's wake_fd is readable.
  void on_channel();
  /// A rank wrote a line on its socket.
  void on_rank_line(int local_rank, const std::string& line);
  /// A rank has ended; everything it wrote has been handed over before.
  void on_rank_end(int local_rank, RankEnd end);
  /// SIGTERM or SIGINT arrived; more than one is as one.
  void on_terminate();
  /// The time of next_timer() has come (an early call does no harm).
  void on_timer();

  /// When on_timer wants to be called next.
  MonoTime next_timer() const;
  /// Set once nothing is left to do: the agent is to exit so.
  const std::optional<AgentExit>& finished() const { return finished_; }

  /// What there is to see; reads the pages of all ranks.
  AgentSnapshot snapshot() const;
  /// What rank 0 told of a complete run, where it is one of these ranks.
  const std::optional<contract::RunResult>& result() const { return result_; }

  static constexpr std::chrono::milliseconds kHeartbeatInterval{150};
  /// Counters are many and nothing is decided on them: not in every heartbeat.
  static constexpr std::chrono::milliseconds kCountersInterval{1000};
  static constexpr std::chrono::milliseconds kPeerSettleTime{1000};
  /// Between SIGTERM and SIGKILL for a rank that has used up its grace.
  static constexpr std::chrono::milliseconds kTermToKill{2000};
  /// How long it waits for an order without a stream on which the coordinator speaks or that lasts:
  /// longer than a change of leaders takes. With one the coordinator owes an order.
  static constexpr std::chrono::seconds kOrderLimit{60};
  /// How long it waits for killed ranks, and what they left behind, to be gone, and how often it
  /// looks: at first soon, then ever more rarely.
  static constexpr std::chrono::seconds kClearLimit{30};
  /// Longer limits that a coordinator orders are cut to this.
  static constexpr std::chrono::hours kLongestClearLimit{1};
  static constexpr std::chrono::milliseconds kFirstClearInterval{5};
  static constexpr std::chrono::milliseconds kClearInterval{500};

 private:
  enum class Ending { kNone, kFailed, kJoining, kStopped, kOrphaned, kFenced };
  enum class Escalation { kNone, kStopAsked, kTermSent, kKilled };

  struct Rank {
    int rank = 0;
    std::string address;
    bool listening = false;
    std::optional<RankEnd> end;
    bool explained = false;                    ///< it was told with a verdict
    bool killed_by_us = false;                 ///< its end tells of our impatience, not of a fault
    bool asked = false;                        ///< to end, by a SIGTERM from outside
    std::optional<contract::Failing> failing;  ///< its message, sent before it ends
    int64_t end_order = 0;                     ///< of its end, or of that message
  };

  void opened();
  void closed(const std::string& reason);
  void schedule_reconnect();
  void obey(const coordination::ToAgent& message);
  void start_ranks(const coordination::StartGeneration& start);
  void deliver_table(const coordination::RankTable& table);
  void dump_stacks(const std::string& reason);
  void tell_listening();
  enum class Counters { kWhenDue, kNow };
  void tell_heartbeat(Counters counters);
  void tell_result();
  enum class Verdict { kTold, kNone };
  /// Of one that has been killed and has not ended yet, the end to come.
  void tell_exit(Rank& rank, Verdict verdict);
  static RankEnd end_of(const Rank& rank);
  /// The first rank that said it was failing; nullptr: none has.
  const Rank* first_failing() const;
  void send(coordination::FromAgent& message);

  // Generations (supervisor_generation.cc).
  void join(int64_t generation, const coordination::JoinGeneration& order);
  void begin_generation();
  /// Ranks have failed, and what is to be done about it is for the coordinator to say.
  bool waits_for_order() const;
  void wait_no_longer();
  void tell_failures();
  /// Reports the rank that explains the ends of the others, unless that was done already.
  void tell_primary_failure();
  /// Whether the ranks that ended, and all that they left behind, are gone.
  bool clear_ranks();
  void give_up_joining();
  bool order_is_overdue() const;
  /// The generation it belongs to, or is about to.
  int64_t generation() const { return joins_.value_or(generation_); }

  void end_with(Ending ending, Escalation first_step, Duration grace);
  void escalate();
  void signal_running(int signal_number);
  bool any_running() const;
  void finish_if_done();
  AgentExit verdict() const;
  std::optional<int64_t> newest_step() const;
  GpuFailure gpu_failure(const Rank& rank) const;
  AgentExit verdict_of_rank(const Rank& rank) const;
  bool ended_as_asked(const Rank& rank) const;
  /// It was asked to end, and took longer than the ranks that ended with it.
  bool outlasted_others(const Rank& rank) const;
  coordination::RankProgress progress_of(const Rank& rank) const;
  /// The rank whose end explains the others; nullptr when all ended as wished.
  const Rank* primary_failure() const;
  /// primary_failure(), or else the rank whose requested end explains the others; nullptr when all
  /// ended with 0.
  const Rank* deciding_rank() const;
  /// primary_failure() where it did not only follow a peer.
  const Rank* own_failure() const;

  const AgentOptions options_;
  control::ControlChannel& channel_;
  RankHost& host_;
  const Clock& clock_;
  Logger& logger_;
  std::mt19937_64 jitter_;

  bool stream_open_ = false;
  int64_t streams_opened_ = 0;
  int connect_attempts_ = 0;
  MonoTime stream_opened_at_;
  MonoTime stream_lost_at_;
  bool decision_came_ = false;    ///< on the present stream
  MonoTime good_stream_lost_at_;  ///< the end of the last one that the coordinator meant
  std::optional<MonoTime> reconnect_at_;
  int64_t highest_term_ = 0;

  int64_t generation_;            ///< of ranks_; it only grows
  int node_index_;                ///< of a spare none until its ranks start
  std::optional<int64_t> joins_;  ///< when the ranks have ended
  std::unique_ptr<coordination::StartGeneration> start_when_joined_;
  MonoTime joins_since_;
  Duration join_limit_ = kClearLimit;
  std::optional<MonoTime> clear_again_at_;  ///< when to kill what ranks left behind again
  std::chrono::milliseconds clear_interval_ = kFirstClearInterval;
  std::optional<MonoTime> waits_since_;  ///< for an order
  bool waits_no_longer_ = false;
  int64_t rank_starts_ = 0;

  std::vector<Rank> ranks_;  ///< by local rank
  bool table_delivered_ = false;
  std::string table_key_;  ///< of the table delivered
  std::optional<contract::RunResult> result_;
  int64_t ends_seen_ = 0;
  MonoTime next_heartbeat_;
  MonoTime next_counters_;

  Ending ending_ = Ending::kNone;
  std::string ending_reason_;
  bool asked_ = false;                         ///< to end, by a SIGTERM of its own
  const Rank* failed_before_fence_ = nullptr;  ///< of ranks_: what the next generation is for
  Escalation escalation_ = Escalation::kNone;
  std::optional<MonoTime> escalate_at_;
  std::optional<AgentExit> finished_;
};

}  // namespace trainyard::agent
