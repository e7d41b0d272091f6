#include "control/coordinator/job_run.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/proto/coordination.pb.h"
#include "control/coordinator/figure_fields.h"
#include "control/coordinator/rank_counters_proto.h"

namespace trainyard::control {
namespace {

/// Reports kept of one generation: the first ones tell who was lost, later ones are echoes.
constexpr size_t kMaxPeerReports = 64;
/// Steps whose 99th percentile the stall bound is made from.
constexpr size_t kStepTimesKept = 256;
/// Ranks one agent may have; a larger share can only be a damaged message.
constexpr int kMaxRanksPerNode = 1024;
/// Bytes that are kept of a name, an address or an instruction, and of a text for people: a message
/// may have 4 MiB, and a job has many ranks.
constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxTextBytes = 4096;
constexpr int kMaxWarnings = 64;
/// A job restarts once a second for longer than anybody lives.
constexpr int64_t kMaxGeneration = int64_t{1} << 32;

/// At most `limit` bytes of it, no character cut in two.
std::string clamped(const std::string& text, size_t limit) {
  if (text.size() <= limit) return text;
  const auto continues = [&](size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
  };
  while (limit > 0 && continues(limit))
    --limit;
  return text.substr(0, limit);
}

ContainerExit end_of(const coordination::RankExited& exited, Time now) {
  const coordination::RankVerdict& verdict = exited.verdict();
  ContainerExit end;
  end.rank = exited.rank();
  end.exit_code = verdict.exit_code();
  if (verdict.signal() > 0) end.signal = verdict.signal();
  if (verdict.has_last_step()) end.last_step = verdict.last_step();
  if (verdict.has_asked()) end.asked = verdict.asked();
  end.reason = clamped(verdict.reason(), kMaxNameBytes);
  end.message = clamped(verdict.message(), kMaxTextBytes);
  end.finished_at = now;
  return end;
}

std::optional<double> finite(double value) {
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

contract::Phase phase_of(uint32_t number) {
  return static_cast<contract::Phase>(
      std::min(number, static_cast<uint32_t>(contract::Phase::kDone)));
}

contract::CheckpointFigures figures_of(const coordination::CheckpointProgress& progress) {
  return {.commits = progress.commits(),
          .failures = progress.failures(),
          .failed_step = progress.failed_step(),
          .bytes = progress.bytes(),
          .bytes_total = progress.bytes_total(),
          .committed_unix_s = progress.committed_unix_seconds(),
          .commit_s = progress.commit_seconds(),
          .write_s = progress.write_seconds(),
          .write_cpu_s = progress.write_cpu_seconds(),
          .stall_s = progress.stall_seconds(),
          .stall_total_s = progress.stall_total_seconds(),
          .failure = clamped(progress.failure(), kMaxTextBytes)};
}

Worth worth(bool a_look) { return a_look ? Worth::kALook : Worth::kNothing; }

}  // namespace

RankReading reading_of(const coordination::RankProgress& progress, int node_index) {
  RankReading reading;
  reading.rank = progress.rank();
  reading.node_index = node_index;
  reading.phase = phase_of(progress.phase());
  reading.step = progress.step();
  reading.instruction = clamped(progress.instruction(), kMaxNameBytes);
  reading.stopped = progress.stopped();
  reading.work_seconds = progress.work_seconds();
  reading.total_steps = progress.total_steps();
  reading.samples_consumed = progress.samples_consumed();
  reading.tokens_consumed = progress.tokens_consumed();
  contract::visit_figures([&](const contract::Figure& figure,
                              double& value) { value = figure_of(progress, figure.slot); },
                          reading);
  reading.checkpoint_step = progress.checkpoint_step();
  reading.restored_step = progress.restored_step();
  reading.instruction_id = progress.instruction_id();
  if (progress.has_counters()) reading.counters = load(progress.counters());
  reading.checkpoints = figures_of(progress.checkpoints());
  return reading;
}

contract::KnownFigures known_figures(const RankReading& reading) {
  const bool stepped = reading.restored_step >= 0 && reading.step > reading.restored_step;
  std::array<std::optional<double>, contract::kFigureSlots> known;
  contract::visit_figures(
      [&](const contract::Figure& figure, double value) {
        const bool made = figure.source != contract::FigureSource::kStep || stepped;
        const bool means = !figure.zero_is_unknown || value > 0;
        if (made && means) known[figure.slot] = finite(value);
      },
      reading);
  contract::KnownFigures figures;
  contract::visit_figures([&](const contract::Figure& figure,
                              std::optional<double>& value) { value = known[figure.slot]; },
                          figures);
  return figures;
}

JobRun::JobRun(std::string job_uid, int64_t term, bool same_machine)
    : job_uid_(std::move(job_uid)), term_(term), same_machine_(same_machine) {}
JobRun::~JobRun() = default;

void JobRun::set_order(const MembershipOrder& order) {
  if (order_ && order.generation < order_->generation) return;
  if (order_ && order.generation > order_->generation) {
    table_ready_at_.reset();
    yield_over_ = false;
    peer_reports_.clear();
    step_seconds_.clear();
    timeline_.clear();
    result_.reset();
  }
  order_ = order;
  spare_pods_ = {order.spares.begin(), order.spares.end()};
  known_pods_.clear();
  for (const MemberRef& ref : order.members)
    if (!ref.pod_uid.empty()) known_pods_.insert(ref.pod_uid);
  std::erase_if(members_, [&](const auto& entry) {
    if (spare_pods_.contains(entry.first)) return false;  // it comes back
    return entry.second.connection == 0 && is_over(entry.second);
  });
}

Worth JobRun::hello(ConnectionId connection, const coordination::Fence& fence,
                    const coordination::Hello& hello, Time now) {
  Member& member = members_[fence.pod_uid()];
  by_connection_.erase(member.connection);
  by_connection_[connection] = fence.pod_uid();
  if (member.fact.generation != fence.generation()) {
    const auto ordered = member.ordered;
    member = Member{};
    member.ordered = ordered;
  }
  member.fact.pod_uid = fence.pod_uid();
  member.fact.pod_name = clamped(hello.pod_name(), kMaxNameBytes);
  member.fact.node_index = hello.node_index();
  member.fact.generation = fence.generation();
  member.fact.connected = true;
  member.fact.since = now;
  member.connection = connection;
  member.host_id = clamped(hello.host_id(), kMaxNameBytes);
  member.ranks_started = hello.ranks_started();
  member.table_delivered = hello.table_delivered();
  member.takes_table_key = hello.takes_table_key();
  member.fact.build = clamped(hello.build(), kMaxNameBytes);
  member.fact.stays = hello.stays();
  member.fact.says_joined = hello.says_joined();
  member.fact.joins_since.reset();
  if (member.table_delivered && hello.table_key().size() <= kTableKeyBytes) {
    member.table_key = hello.table_key();
  }
  member.fenced = false;
  member.stopped = false;
  member.stacks_asked.reset();
  member.silent = Duration::zero();
  if (listened_ < time_to_come_back()) heard_pods_.insert(fence.pod_uid());
  return Worth::kALook;
}

bool JobRun::is_of_now(ConnectionId connection, int64_t generation) const {
  const Member* member = find(connection);
  return member != nullptr && member->fact.generation == generation;
}

Worth JobRun::heard(ConnectionId connection, Time now) {
  Member* member = find(connection);
  if (member == nullptr) return Worth::kNothing;
  member->silent = Duration::zero();
  if (member->fact.connected) return Worth::kNothing;
  member->fact.connected = true;
  member->fact.since = now;
  return Worth::kALook;
}

Worth JobRun::pass(Duration listened, Time now) {
  if (std::exchange(moved_, false)) timeline_.look(all_ranks(), now);
  listened_ += listened;
  bool a_look = false;
  for (auto& [uid, member] : members_) {
    // Before it is told to start ranks an agent has nothing to tell; without a stream it is silent
    // anyway.
    if (member.connection == 0 || !member.ranks_started) continue;
    member.silent += listened;
    if (!member.fact.connected || member.silent < kSilenceLimit) continue;
    member.fact.connected = false;
    member.fact.since = now - member.silent;
    a_look = true;
  }
  return worth(a_look);
}

Worth JobRun::end_yield(Time now) {
  if (!order_ || !order_->yields_until) return Worth::kNothing;
  const bool goes_on = waits_for_yield_ && !anybody_yields(now);
  const bool ends_now = !yield_over_ && now >= *order_->yields_until;
  if (goes_on) waits_for_yield_ = false;
  if (ends_now) yield_over_ = true;
  return worth(goes_on || ends_now);
}

Worth JobRun::end_back_off(Time now) {
  if (!order_ || !backs_off_) return Worth::kNothing;
  if (order_->starts_at && now < *order_->starts_at) return Worth::kNothing;
  backs_off_ = false;
  return Worth::kALook;
}

Worth JobRun::closed(ConnectionId connection, Time now) {
  Member* member = find(connection);
  if (member == nullptr) return Worth::kNothing;
  by_connection_.erase(connection);
  member->connection = 0;
  // Of one that was silent already the stream's end is no news.
  if (member->fact.connected) member->fact.since = now;
  member->fact.connected = false;
  if (is_over(*member)) {
    members_.erase(std::string(member->fact.pod_uid));
  }
  return Worth::kALook;
}

bool JobRun::is_rank(int rank) const {
  if (!order_ || order_->num_nodes <= 0) return rank >= 0;
  return rank >= 0 && rank < order_->num_nodes * order_->num_proc_per_node;
}

Worth JobRun::listening(ConnectionId connection, const coordination::RanksListening& fact) {
  Member* member = find(connection);
  if (member == nullptr || fact.ranks_size() > kMaxRanksPerNode) return Worth::kNothing;
  // Half an address leads nowhere.
  const bool too_long = std::any_of(fact.ranks().begin(), fact.ranks().end(), [](const auto& rank) {
    return rank.address().size() > kMaxNameBytes;
  });
  if (too_long) return Worth::kNothing;
  member->addresses.clear();
  for (const coordination::RankAddress& rank : fact.ranks()) {
    if (!is_rank(rank.rank())) continue;
    member->addresses.emplace_back(rank.rank(), rank.address());
  }
  std::sort(member->addresses.begin(), member->addresses.end());
  return Worth::kALook;
}

Worth JobRun::heartbeat(ConnectionId connection, const coordination::Heartbeat& fact, Time now) {
  Member* member = find(connection);
  if (member == nullptr || fact.ranks_size() > kMaxRanksPerNode) return Worth::kNothing;
  bool a_look = false;
  for (const coordination::RankProgress& progress : fact.ranks()) {
    if (!is_rank(progress.rank())) continue;
    const bool known = member->ranks.contains(progress.rank());
    if (!known && member->ranks.size() >= static_cast<size_t>(kMaxRanksPerNode)) continue;
    Rank& rank = member->ranks[progress.rank()];
    const RankFact before = rank.fact;
    const contract::RankCountersReading counted = rank.reading.counters;
    rank.reading = reading_of(progress, member->fact.node_index);
    if (!progress.has_counters()) rank.reading.counters = counted;
    a_look |= update(rank, progress, now) || !known;
    if (known && is_current(*member)) note_step_time(before, rank.fact, now);
    if (is_current(*member)) a_look |= note_checkpoint(progress.checkpoint_step(), now);
  }
  moved_ |= is_current(*member);
  return worth(a_look);
}

/// Of the order's generation. It may have fallen back past one that cannot be read: then its own
/// are of lower steps. Returns whether it is newer than what was known.
bool JobRun::note_checkpoint(int64_t step, Time now) {
  const int64_t generation = order_->generation;
  if (step < 0) return false;
  const bool newer = !checkpoint_ || std::pair(generation, step) >
                                         std::pair(checkpoint_->generation, checkpoint_->step);
  if (newer) checkpoint_ = CheckpointFact{step, "", "", now, generation};
  return newer;
}

std::vector<const RankFact*> JobRun::all_ranks() const {
  std::vector<const RankFact*> ranks;
  int64_t expected = 0;
  int64_t nodes = 0;
  for (const auto& [uid, member] : members_) {
    if (!is_current(member)) continue;
    ++nodes;
    expected += order_->num_proc_per_node;
    for (const auto& [number, rank] : member.ranks)
      ranks.push_back(&rank.fact);
  }
  const bool whole = nodes == order_->num_nodes && static_cast<int64_t>(ranks.size()) == expected;
  return whole ? ranks : std::vector<const RankFact*>();
}

/// Returns whether something changed that the brain decides on.
bool JobRun::update(Rank& rank, const coordination::RankProgress& progress, Time now) {
  RankFact& fact = rank.fact;
  const contract::Phase phase = phase_of(progress.phase());
  const bool first_reading = fact.rank < 0;
  const bool phase_changed = first_reading || phase != fact.phase;
  // A reading that is the first (after a reconnect) tells of a step when it is past its start.
  const bool moved =
      first_reading ? progress.restored_step() >= 0 && progress.step() > progress.restored_step()
                    : progress.step() > fact.step;
  const bool first_step = moved && !fact.last_step_at;
  fact.rank = progress.rank();
  fact.phase = phase;
  fact.step = progress.step();
  fact.total_steps = progress.total_steps();
  fact.arrivals = progress.arrivals();
  fact.instruction_id = progress.instruction_id();
  fact.instruction = clamped(progress.instruction(), kMaxNameBytes);
  const bool stop_changed = progress.stopped() != fact.stopped;
  fact.stopped = progress.stopped();
  if (!fact.stopped) fact.stopped_since.reset();
  if (fact.stopped && !fact.stopped_since) fact.stopped_since = now;
  // A checkpoint that fails again is written again: nothing hangs.
  const int64_t failures = progress.checkpoints().failures();
  if (phase_changed || failures > rank.checkpoint_failures) fact.phase_since = now;
  rank.checkpoint_failures = failures;
  if (moved) fact.last_step_at = now;
  if (progress.beats() != rank.beats) fact.last_heartbeat_at = now;
  rank.beats = progress.beats();
  fact.loss = progress.step() > 0 ? finite(progress.loss()) : std::nullopt;
  fact.tokens_per_second = finite(progress.tokens_per_second());
  fact.step_seconds = finite(progress.step_seconds());
  fact.work_seconds = progress.work_seconds() > 0 ? finite(progress.work_seconds()) : std::nullopt;
  return phase_changed || first_step || stop_changed;
}

/// One sample per look at the lowest rank, from looks between which it only trained: evaluations
/// and checkpoints have limits of their own. What was told as a stall says nothing of how long
/// steps take, unless the step before was one, too.
void JobRun::note_step_time(const RankFact& before, const RankFact& after, Time now) {
  if (after.rank != 0 || after.step <= before.step || !before.last_step_at) return;
  if (before.phase != contract::Phase::kTraining || after.phase != contract::Phase::kTraining) {
    return;
  }
  if (after.phase_since && *after.phase_since > *before.last_step_at) return;
  const bool told = order_->stall.has_value();
  const bool told_before = std::exchange(told_as_stall_, told);
  if (told && !told_before) return;
  const std::chrono::duration<double> elapsed = now - *before.last_step_at;
  step_seconds_.push_back(elapsed.count() / static_cast<double>(after.step - before.step));
  if (step_seconds_.size() > kStepTimesKept) step_seconds_.pop_front();
}

Worth JobRun::peer_lost(ConnectionId connection, const coordination::PeerLost& fact, Time now) {
  const Member* reporter = find(connection);
  if (reporter == nullptr || !is_current(*reporter) || peer_reports_.size() >= kMaxPeerReports) {
    return Worth::kNothing;
  }
  PeerReport report{reporter->fact.generation,
                    fact.reporter(),
                    fact.rank(),
                    "",
                    clamped(fact.message(), kMaxTextBytes),
                    now};
  for (const auto& [uid, member] : members_) {
    if (!is_current(member)) continue;
    for (const auto& [rank, address] : member.addresses) {
      if (rank == fact.rank()) report.lost_pod_uid = uid;
    }
  }
  peer_reports_.push_back(std::move(report));
  return Worth::kALook;
}

/// If several ranks fail, the first failure explains the others, unless that rank only followed
/// another. An agent reports a failure once per stream: the report is kept when it arrives before
/// the order of its generation.
Worth JobRun::exited(ConnectionId connection, const coordination::RankExited& fact, Time now) {
  Member* member = find(connection);
  if (member == nullptr || !is_rank(fact.rank())) return Worth::kNothing;
  const bool is_past = order_ && member->fact.generation < order_->generation;
  if (is_past || is_stranger(*member)) return Worth::kNothing;
  // An older agent gives no verdict: its pod will.
  if (fact.expected() || !fact.has_verdict()) return Worth::kNothing;
  ContainerExit end = end_of(fact, now);
  if (end.exit_code == contract::kExitDone) return Worth::kNothing;
  std::optional<ContainerExit>& known = member->fact.failure;
  if (known && (!follows_peer(*known) || follows_peer(end))) {
    return Worth::kNothing;
  }
  known = std::move(end);
  return Worth::kALook;
}

Worth JobRun::result(ConnectionId connection, const coordination::RunResult& fact) {
  const Member* member = find(connection);
  if (member == nullptr || !is_current(*member)) return Worth::kNothing;
  result_ = contract::RunResult{.state_hash = clamped(fact.state_hash(), kMaxNameBytes),
                                .step = fact.step(),
                                .final_loss = fact.final_loss(),
                                .validation_loss = fact.validation_loss(),
                                .skipped_steps = fact.skipped_steps(),
                                .stopped_early = fact.stopped_early()};
  if (fact.has_best()) {
    result_->best = {fact.best().step(), fact.best().validation_loss(),
                     clamped(fact.best().checkpoint(), kMaxNameBytes)};
  }
  for (int i = 0; i < std::min(fact.warnings_size(), kMaxWarnings); ++i)
    result_->warnings.push_back(clamped(fact.warnings(i), kMaxTextBytes));
  if (fact.has_peak_memory()) {
    result_->peak_memory = {fact.peak_memory().rank(), fact.peak_memory().planned_bytes(),
                            fact.peak_memory().measured_bytes()};
  }
  return Worth::kALook;
}

Worth JobRun::joined(ConnectionId connection) {
  Member* member = find(connection);
  if (member == nullptr || !member->fact.joins_since) return Worth::kNothing;
  member->fact.joins_since.reset();
  return Worth::kALook;
}

StreamFacts JobRun::facts() const {
  StreamFacts facts;
  for (const auto& [uid, member] : members_) {
    const int64_t told = std::min(member.fact.generation, kMaxGeneration);
    facts.newest_generation = std::max(facts.newest_generation, told);
  }
  if (!order_) return facts;
  facts.hosted = true;
  facts.same_machine = same_machine_;
  facts.generation = order_->generation;
  facts.rank_table_ready = table_ready_at_.has_value();
  facts.rank_table_ready_at = table_ready_at_;
  for (const auto& [uid, member] : members_) {
    if (spare_pods_.contains(uid)) facts.spares.push_back(member.fact);
    if (is_stranger(member)) continue;
    facts.members.push_back(member.fact);
    facts.members.back().silent = member.silent;
    for (const auto& [number, rank] : member.ranks) {
      facts.members.back().ranks.push_back(rank.fact);
      if (!is_current(member) || rank.reading.restored_step < 0) continue;
      facts.resumed_from_step =
          std::max(facts.resumed_from_step.value_or(0), rank.reading.restored_step);
    }
  }
  facts.peer_reports = peer_reports_;
  facts.checkpoint = checkpoint_;
  facts.timeline = timeline_.points();
  facts.result = result_;
  if (!step_seconds_.empty()) {
    std::vector<double> sorted(step_seconds_.begin(), step_seconds_.end());
    const size_t at = (sorted.size() * 99 + 99) / 100 - 1;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(at),
                     sorted.end());
    facts.p99_step_seconds = sorted[at];
  }
  return facts;
}

std::vector<RankReading> JobRun::readings() const {
  std::vector<RankReading> readings;
  for (const auto& [uid, member] : members_) {
    if (!order_ || !is_current(member)) continue;
    for (const auto& [number, rank] : member.ranks) {
      readings.push_back(rank.reading);
      readings.back().generation = member.fact.generation;
    }
  }
  std::sort(readings.begin(), readings.end(),
            [](const RankReading& a, const RankReading& b) { return a.rank < b.rank; });
  return readings;
}

std::string JobRun::pod_name_of(ConnectionId connection) const {
  const Member* member = find(connection);
  return member == nullptr ? "" : member->fact.pod_name;
}

std::vector<ConnectionId> JobRun::connections() const {
  std::vector<ConnectionId> open;
  for (const auto& [connection, uid] : by_connection_)
    open.push_back(connection);
  return open;
}

JobRun::Member* JobRun::find(ConnectionId connection) {
  const auto it = by_connection_.find(connection);
  return it == by_connection_.end() ? nullptr : &members_.at(it->second);
}

const JobRun::Member* JobRun::find(ConnectionId connection) const {
  return const_cast<JobRun*>(this)->find(connection);
}

bool JobRun::is_current(const Member& member) const {
  return order_ && member.fact.generation == order_->generation && !is_stranger(member);
}

bool JobRun::is_over(const Member& member) const {
  if (!order_) return false;
  const bool is_old = member.fact.generation < order_->generation;
  return is_stranger(member) || (is_old && !known_pods_.contains(member.fact.pod_uid));
}

bool JobRun::is_stranger(const Member& member) const {
  if (!order_) return false;
  if (spare_pods_.contains(member.fact.pod_uid)) return true;
  if (member.fact.generation < order_->generation) return false;
  // Asked for every heartbeat of every member: not a walk over all of them.
  const bool all_known = known_pods_.size() == order_->members.size() &&
                         static_cast<int64_t>(known_pods_.size()) >= order_->num_nodes;
  return all_known && !known_pods_.contains(member.fact.pod_uid);
}

}  // namespace trainyard::control
