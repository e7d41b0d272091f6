#include "agent/supervisor.h"

#include <algorithm>
#include <csignal>
#include <unistd.h>
#include <utility>

#include "agent/host_id.h"
#include "common/log/text.h"
#include "common/proto/coordination.pb.h"
#include "common/worker_contract.h"
#include "control/coordinator/rank_counters_proto.h"

namespace trainyard::agent {
namespace {

using contract::kExitDone;
using contract::kExitTerminatedAfterCheckpoint;
using control::ChannelEvent;
using coordination::FromAgent;
using coordination::ToAgent;

// The wait before a reconnect is drawn between the floor and a ceiling that doubles (full jitter).
constexpr double kReconnectFloorS = 0.2;
constexpr double kReconnectCeilingS = 5.0;
/// With an orphan limit the time is short, and the coordinator is on this machine.
constexpr double kLocalReconnectCeilingS = 1.0;
constexpr int kMaxDoublings = 5;
/// A stream that has lasted so long, or on which a decision came, was a good one: after it the
/// first attempt comes soon. Before an agent is let in its stream is open, too.
constexpr std::chrono::seconds kGoodStream{5};
/// Heartbeats are left out while the stream has this many messages to send.
constexpr int64_t kMaxUnsentForHeartbeat = 4;
/// on_timer is wanted at least this often, whatever happens.
constexpr std::chrono::seconds kLongestSleep{1};
/// Longer graces are cut to this.
constexpr std::chrono::milliseconds kLongestGrace = std::chrono::hours(24 * 365);
constexpr size_t kMaxMessageBytes = 2048;
constexpr size_t kMaxHashBytes = 128;
}  // namespace

Supervisor::Supervisor(AgentOptions options, control::ControlChannel& channel, RankHost& host,
                       const Clock& clock, Logger& logger, uint64_t seed)
    : options_(std::move(options)),
      channel_(channel),
      host_(host),
      clock_(clock),
      logger_(logger),
      jitter_(seed),
      generation_(options_.generation),
      node_index_(options_.node_index) {}

Supervisor::~Supervisor() = default;

void Supervisor::begin() {
  stream_lost_at_ = clock_.mono();
  good_stream_lost_at_ = stream_lost_at_;
  channel_.open();
}

void Supervisor::on_channel() {
  for (ChannelEvent& event : channel_.take()) {
    switch (event.kind) {
      case ChannelEvent::Kind::kOpened:
        opened();
        break;
      case ChannelEvent::Kind::kMessage:
        obey(*event.message);
        break;
      case ChannelEvent::Kind::kClosed:
        closed(event.reason);
        break;
    }
  }
}

void Supervisor::opened() {
  stream_open_ = true;
  ++streams_opened_;
  stream_opened_at_ = clock_.mono();
  decision_came_ = false;
  FromAgent message;
  coordination::Hello& hello = *message.mutable_hello();
  hello.set_job_uid(options_.job_uid);
  hello.set_pod_name(options_.pod_name);
  hello.set_node_index(node_index_);
  hello.set_agent_version(TRAINYARD_VERSION);
  hello.set_agent_pid(::getpid());
  hello.set_host_id(host_id());
  hello.set_ranks_started(!ranks_.empty());
  hello.set_table_delivered(table_delivered_);
  hello.set_takes_table_key(true);
  hello.set_table_key(table_key_);
  hello.set_stays(options_.stays);
  hello.set_says_joined(options_.stays);
  hello.set_build(options_.build);
  send(message);
  tell_listening();
  tell_result();
  tell_failures();
}

void Supervisor::closed(const std::string& reason) {
  if (stream_open_) {
    logger_.warning("control stream lost", {{"reason", reason}});
    stream_lost_at_ = clock_.mono();
    const bool was_good = decision_came_ || stream_lost_at_ - stream_opened_at_ >= kGoodStream;
    if (was_good) {
      good_stream_lost_at_ = stream_lost_at_;
      connect_attempts_ = 0;
    }
  }
  stream_open_ = false;
  schedule_reconnect();
}

void Supervisor::schedule_reconnect() {
  const double ceiling_s = options_.orphan_limit ? kLocalReconnectCeilingS : kReconnectCeilingS;
  const double doubled_s = kReconnectFloorS * (2 << std::min(connect_attempts_, kMaxDoublings));
  std::uniform_real_distribution<double> delay_s(kReconnectFloorS, std::min(ceiling_s, doubled_s));
  ++connect_attempts_;
  reconnect_at_ = clock_.mono() + std::chrono::duration_cast<Duration>(
                                      std::chrono::duration<double>(delay_s(jitter_)));
}

void Supervisor::obey(const ToAgent& message) {
  connect_attempts_ = 0;
  decision_came_ = true;
  const coordination::Fence& fence = message.fence();
  const bool for_another = !fence.pod_uid().empty() && fence.pod_uid() != options_.pod_uid;
  if (for_another || fence.term() < highest_term_ || fence.generation() < generation()) {
    logger_.warning(
        "refusing a decision that is outdated or for another pod",
        {{"term", fence.term()}, {"generation", fence.generation()}, {"pod_uid", fence.pod_uid()}});
    return;
  }
  highest_term_ = fence.term();
  if (message.has_join_generation() && options_.stays) {
    return join(fence.generation(), message.join_generation());
  }
  if (message.has_fenced() || fence.generation() > generation()) {
    ending_reason_ = "fenced: " + message.fenced().reason();
    return end_with(Ending::kFenced, Escalation::kKilled, Duration::zero());
  }
  if (message.has_start_generation() && joins_) {
    start_when_joined_ =
        std::make_unique<coordination::StartGeneration>(message.start_generation());
  } else if (message.has_start_generation()) {
    start_ranks(message.start_generation());
  } else if (message.has_rank_table()) {
    deliver_table(message.rank_table());
  } else if (message.has_dump_stacks()) {
    dump_stacks(message.dump_stacks().reason());
  } else if (message.has_stop_ranks()) {
    if (waits_for_order()) return wait_no_longer();
    ending_reason_ = "stopped: " + message.stop_ranks().reason();
    if (joins_) return end_with(Ending::kFenced, Escalation::kKilled, Duration::zero());
    const bool checkpoint = message.stop_ranks().checkpoint();
    end_with(Ending::kStopped, checkpoint ? Escalation::kStopAsked : Escalation::kTermSent,
             std::chrono::milliseconds(
                 std::clamp<int64_t>(message.stop_ranks().grace_ms(), 0, kLongestGrace.count())));
  }
}

void Supervisor::start_ranks(const coordination::StartGeneration& start) {
  if (!ranks_.empty() || ending_ != Ending::kNone || start.ranks().empty()) return;
  if (start.has_node_index()) node_index_ = start.node_index();
  logger_.info("starting ranks", {{"generation", start.generation()},
                                  {"first_rank", start.ranks(0)},
                                  {"ranks", start.ranks_size()},
                                  {"world_size", start.world_size()}});
  for (const int rank : start.ranks()) {
    RankLaunch launch;
    launch.rank = rank;
    launch.world_size = start.world_size();
    launch.local_rank = static_cast<int>(ranks_.size());
    launch.local_world_size = start.ranks_size();
    launch.node_rank = start.node_rank();
    launch.node_index = node_index_;
    launch.node_count = start.node_count();
    launch.generation = start.generation();
    if (const Status started = host_.start(launch); !started) {
      logger_.error("rank not started", {{"rank", rank}, {"error", started.error().message}});
      AgentExit exit{contract::exit_code_of(started.error().code), std::nullopt, rank, "Error",
                     "rank " + std::to_string(rank) + ": " + started.error().message};
      signal_running(SIGKILL);
      finished_ = std::move(exit);
      return;
    }
    Rank started;
    started.rank = rank;
    started.listening = !options_.is_engine();
    ranks_.push_back(std::move(started));
    ++rank_starts_;
  }
  next_heartbeat_ = clock_.mono() + kHeartbeatInterval;
  tell_listening();
}

void Supervisor::deliver_table(const coordination::RankTable& table) {
  // Ranks that were asked to stop before give up waiting; which of the two they saw is not to
  // matter.
  if (table_delivered_ || ranks_.empty() || ending_ != Ending::kNone) return;
  table_delivered_ = true;
  table_key_ = table.key();
  if (!options_.is_engine()) return;
  contract::Start start;
  start.generation = table.generation();
  start.resume.generation = table.resume().generation();
  if (table.resume().has_parent_generation()) {
    start.resume.parent_generation = table.resume().parent_generation();
  }
  if (table.resume().has_committed_step()) {
    start.resume.committed_step = table.resume().committed_step();
  }
  for (const coordination::RankTableEntry& entry : table.ranks()) {
    start.ranks.push_back({entry.rank(), entry.node_index(), entry.host_id(), entry.address()});
  }
  const auto key = std::as_bytes(std::span(table_key_));
  start.key.assign(key.begin(), key.end());
  const std::string line = contract::encode(start);
  for (size_t i = 0; i < ranks_.size(); ++i)
    host_.send(static_cast<int>(i), line);
}

void Supervisor::on_rank_line(int local_rank, const std::string& line) {
  Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  const Result<std::string> type = contract::message_type(line);
  FromAgent message;
  std::string fault = type ? "" : type.error().message;
  if (type && *type == "listening") {
    const auto listening = contract::decode_listening(line);
    if (listening) {
      rank.address = listening->address;
      rank.listening = true;
      return tell_listening();
    }
    fault = listening.error().message;
  } else if (type && *type == "peerLost") {
    const auto lost = contract::decode_peer_lost(line);
    if (lost) {
      message.mutable_peer_lost()->set_reporter(rank.rank);
      message.mutable_peer_lost()->set_rank(lost->rank);
      message.mutable_peer_lost()->set_message(printable_text(lost->message, kMaxMessageBytes));
      return send(message);
    }
    fault = lost.error().message;
  } else if (type && *type == "failing") {
    const auto failing = contract::decode_failing(line);
    if (failing) {
      if (rank.failing) return;
      rank.failing = {failing->exit_code, printable_text(failing->message, kMaxMessageBytes)};
      rank.end_order = ends_seen_++;
      return end_with(Ending::kFailed, Escalation::kNone, kPeerSettleTime);
    }
    fault = failing.error().message;
  } else if (type && *type == "askedToEnd") {
    rank.asked = true;
    return;
  } else if (type && *type == "warning") {
    const auto warning = contract::decode_warning(line);
    if (warning) {
      message.mutable_rank_warning()->set_rank(rank.rank);
      message.mutable_rank_warning()->set_message(
          printable_text(warning->message, kMaxMessageBytes));
      return send(message);
    }
    fault = warning.error().message;
  } else if (type && *type == "result") {
    const auto result = contract::decode_run_result(line);
    if (result) {
      result_ = *result;
      return tell_result();
    }
    fault = result.error().message;
  }
  // Types we do not know come from newer ranks; what is malformed is worth a line.
  if (!fault.empty())
    logger_.warning("rank sent an invalid message", {{"rank", rank.rank}, {"error", fault}});
}

void Supervisor::on_rank_end(int local_rank, RankEnd end) {
  Rank& rank = ranks_[static_cast<size_t>(local_rank)];
  rank.end = end;
  if (!rank.failing) rank.end_order = ends_seen_++;
  rank.killed_by_us =
      escalation_ == Escalation::kKilled && end.signal == SIGKILL && !end.out_of_memory;
  const bool explains = ending_ == Ending::kNone ||
                        (ending_ == Ending::kFailed && (&rank == first_failing() || rank.asked));
  // The rank that failed may end after a rank that only followed it: tell_primary_failure tells
  // which.
  const bool followed =
      end.signal == 0 &&
      (end.exit_code == contract::kExitPeerLost ||
       (options_.is_engine() && !rank.asked && end.exit_code == kExitTerminatedAfterCheckpoint));
  const bool may_follow = options_.stays && followed && any_running();
  tell_heartbeat(Counters::kNow);  // the last reading: a short run may end between two heartbeats
  const bool has_verdict = explains && !may_follow && !rank.explained;
  tell_exit(rank, has_verdict ? Verdict::kTold : Verdict::kNone);
  const bool done = end.signal == 0 && end.exit_code == kExitDone;
  if (ending_ == Ending::kNone && !done) {
    // A signal is nobody's answer to a lost peer, so there is nothing to find out. The others would
    // notice at their next collective, which costs a recovery most of a step.
    const bool explained = options_.is_engine() && end.signal != 0;
    end_with(Ending::kFailed, explained ? Escalation::kKilled : Escalation::kNone, kPeerSettleTime);
  }
  finish_if_done();
}

void Supervisor::on_terminate() {
  asked_ = true;
  if (waits_for_order()) return wait_no_longer();
  if (ending_ != Ending::kNone && !joins_) return;
  ending_reason_ = "stopped by a signal";
  // What is left of the old generation has been killed already.
  if (joins_) return end_with(Ending::kFenced, Escalation::kKilled, Duration::zero());
  end_with(Ending::kStopped, Escalation::kStopAsked, options_.stop_grace);
}

void Supervisor::end_with(Ending ending, Escalation first_step, Duration grace) {
  const bool stronger = (ending == Ending::kFenced && ending_ != Ending::kFenced) ||
                        (ending == Ending::kJoining && ending_ == Ending::kFailed);
  if (finished_ || (ending_ != Ending::kNone && !stronger)) return;
  if (stronger && ending_ == Ending::kFailed) failed_before_fence_ = own_failure();
  if (ending == Ending::kFenced) joins_.reset();
  ending_ = ending;
  if (!ending_reason_.empty()) logger_.info("ending", {{"reason", ending_reason_}});
  escalation_ = first_step;
  const MonoTime now = clock_.mono();
  switch (first_step) {
    case Escalation::kNone:
      escalate_at_ = now + grace;
      break;
    case Escalation::kStopAsked:
      // A rank of the engine takes the message and SIGTERM for the same; others know the signal.
      for (size_t i = 0; options_.is_engine() && i < ranks_.size(); ++i)
        host_.send(static_cast<int>(i), contract::encode(contract::Stop{}));
      if (!options_.is_engine()) signal_running(SIGTERM);
      escalate_at_ = now + grace;
      break;
    case Escalation::kTermSent:
      signal_running(SIGTERM);
      escalate_at_ = now + std::max<Duration>(grace, kTermToKill);
      break;
    case Escalation::kKilled:
      signal_running(SIGKILL);
      escalate_at_.reset();
      break;
  }
  finish_if_done();
}

void Supervisor::escalate() {
  if (escalation_ == Escalation::kStopAsked) {
    logger_.warning("ranks did not end within their grace; sending SIGTERM");
    escalation_ = Escalation::kTermSent;
    signal_running(SIGTERM);
    escalate_at_ = clock_.mono() + kTermToKill;
    return;
  }
  escalation_ = Escalation::kKilled;
  escalate_at_.reset();
  signal_running(SIGKILL);
  // They may take long to end, and nobody is to be blamed for others meanwhile.
  if (ending_ == Ending::kFailed) tell_primary_failure();
}

void Supervisor::on_timer() {
  if (finished_) return;
  const MonoTime now = clock_.mono();
  if (escalate_at_ && now >= *escalate_at_) escalate();
  if (reconnect_at_ && now >= *reconnect_at_) {
    reconnect_at_.reset();
    channel_.open();
  }
  if (clear_again_at_ && now >= *clear_again_at_) {
    clear_again_at_.reset();
    finish_if_done();
  }
  if (joins_ && now - joins_since_ >= join_limit_) return give_up_joining();
  if (!ranks_.empty() && now >= next_heartbeat_) {
    next_heartbeat_ = now + kHeartbeatInterval;
    tell_heartbeat(Counters::kWhenDue);
  }
  if (order_is_overdue()) return wait_no_longer();
  const bool orphaned =
      options_.orphan_limit && !stream_open_ && now - stream_lost_at_ >= *options_.orphan_limit;
  if (orphaned && ending_ == Ending::kNone) {
    ending_reason_ = "no control stream for " + std::to_string(options_.orphan_limit->count()) +
                     " s: the run is gone";
    end_with(Ending::kOrphaned, Escalation::kStopAsked, options_.stop_grace);
  }
}

MonoTime Supervisor::next_timer() const {
  const MonoTime now = clock_.mono();
  MonoTime next = now + kLongestSleep;
  if (escalate_at_) next = std::min(next, *escalate_at_);
  if (reconnect_at_) next = std::min(next, *reconnect_at_);
  if (clear_again_at_) next = std::min(next, *clear_again_at_);
  if (joins_) next = std::min<MonoTime>(next, joins_since_ + join_limit_);
  if (!ranks_.empty()) next = std::min(next, next_heartbeat_);
  if (options_.orphan_limit && !stream_open_ && ending_ == Ending::kNone) {
    next = std::min<MonoTime>(next, stream_lost_at_ + *options_.orphan_limit);
  }
  return next;
}

void Supervisor::dump_stacks(const std::string& reason) {
  if (!options_.is_engine()) {
    logger_.warning("no stacks: the ranks are foreign programs", {{"reason", reason}});
    return;
  }
  logger_.info("asking the ranks for their stacks", {{"reason", reason}});
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].end) host_.send(static_cast<int>(i), contract::encode(contract::DumpStacks{}));
  }
}

void Supervisor::tell_listening() {
  const bool all =
      std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.listening; });
  if (ranks_.empty() || !all) return;
  FromAgent message;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    coordination::RankAddress& address = *message.mutable_ranks_listening()->add_ranks();
    address.set_rank(ranks_[i].rank);
    address.set_address(printable_text(ranks_[i].address, kMaxMessageBytes));
    address.set_pid(host_.pid(static_cast<int>(i)));
  }
  send(message);
}

void Supervisor::tell_heartbeat(Counters counters) {
  if (!stream_open_ || channel_.unsent() > kMaxUnsentForHeartbeat) return;
  const MonoTime now = clock_.mono();
  const bool with_counters = counters == Counters::kNow || now >= next_counters_;
  if (with_counters) next_counters_ = now + kCountersInterval;
  FromAgent message;
  coordination::Heartbeat& heartbeat = *message.mutable_heartbeat();
  // Of foreign programs nothing is known but that their agent lives.
  for (size_t i = 0; options_.is_engine() && i < ranks_.size(); ++i) {
    coordination::RankProgress& progress = *heartbeat.add_ranks();
    progress.set_rank(ranks_[i].rank);
    host_.read_progress(static_cast<int>(i), progress);
    if (with_counters) {
      control::store(host_.read_counters(static_cast<int>(i)), *progress.mutable_counters());
    }
  }
  send(message);
}

void Supervisor::tell_result() {
  if (!result_) return;
  FromAgent message;
  message.mutable_result()->set_state_hash(printable_text(result_->state_hash, kMaxHashBytes));
  message.mutable_result()->set_step(result_->step);
  message.mutable_result()->set_skipped_steps(result_->skipped_steps);
  message.mutable_result()->set_final_loss(result_->final_loss);
  message.mutable_result()->set_validation_loss(result_->validation_loss);
  if (result_->peak_memory) {
    coordination::PeakMemory& peak = *message.mutable_result()->mutable_peak_memory();
    peak.set_rank(result_->peak_memory->rank);
    peak.set_planned_bytes(result_->peak_memory->planned_bytes);
    peak.set_measured_bytes(result_->peak_memory->measured_bytes);
  }
  if (result_->best) {
    coordination::BestModel& best = *message.mutable_result()->mutable_best();
    best.set_step(result_->best->step);
    best.set_validation_loss(result_->best->validation_loss);
    best.set_checkpoint(printable_text(result_->best->checkpoint, kMaxHashBytes));
  }
  message.mutable_result()->set_stopped_early(result_->stopped_early);
  for (const std::string& warning : result_->warnings)
    message.mutable_result()->add_warnings(printable_text(warning, kMaxMessageBytes));
  send(message);
}

void Supervisor::send(FromAgent& message) {
  if (!stream_open_) return;  // a new stream begins with everything that still matters
  message.mutable_fence()->set_term(highest_term_);
  message.mutable_fence()->set_generation(generation_);
  message.mutable_fence()->set_pod_uid(options_.pod_uid);
  const Status sent = channel_.send(message);
  if (!sent) logger_.warning("fact not sent", {{"error", sent.error().message}});
}

void Supervisor::signal_running(int signal_number) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].end) host_.signal(static_cast<int>(i), signal_number);
  }
}

bool Supervisor::any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.end; });
}

AgentSnapshot Supervisor::snapshot() const {
  AgentSnapshot snapshot{.stream_open = stream_open_,
                         .streams_opened = streams_opened_,
                         .ranks_started = !ranks_.empty(),
                         .ending = ending_ != Ending::kNone,
                         .waits_for_order = waits_for_order(),
                         .joins = joins_.has_value(),
                         .rank_starts = rank_starts_};
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].end) ++snapshot.ranks_running;
    if (!options_.is_engine()) continue;
    coordination::RankProgress progress;
    progress.set_rank(ranks_[i].rank);
    host_.read_progress(static_cast<int>(i), progress);
    control::RankReading reading = control::reading_of(progress, node_index_);
    reading.generation = generation_;
    reading.counters = host_.read_counters(static_cast<int>(i));
    snapshot.ranks.push_back(std::move(reading));
  }
  return snapshot;
}

void Supervisor::finish_if_done() {
  if (finished_ || any_running()) return;
  if (joins_) return begin_generation();
  if (ranks_.empty() && ending_ == Ending::kNone) return;
  if (waits_for_order()) {
    waits_since_ = clock_.mono();
    tell_primary_failure();
    return;
  }
  finished_ = verdict();
  finished_->last_step = newest_step();
}

}  // namespace trainyard::agent
