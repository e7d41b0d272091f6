// What a job's coordinator tells its agents: whom to fence, when to start, whom to meet.
#include <algorithm>
#include <sys/random.h>

#include "common/base/check.h"
#include "common/proto/coordination.pb.h"
#include "control/coordinator/job_run.h"

namespace trainyard::control {
namespace {

using coordination::ToAgent;

void fill(coordination::ResumePlan& plan, const MembershipOrder& order) {
  plan.set_generation(order.generation);
  if (order.previous_generation) plan.set_parent_generation(*order.previous_generation);
  if (order.committed_step) plan.set_committed_step(*order.committed_step);
}

}  // namespace

/// Their ranks could compute different bits. The planner restarts all pods.
bool JobRun::has_two_builds(const std::vector<Seat>& seats) {
  return std::any_of(seats.begin(), seats.end(), [&](const Seat& seat) {
    return seat.member->fact.build != seats.front().member->fact.build;
  });
}

std::vector<JobRun::Decision> JobRun::decide(Time now) {
  std::vector<Decision> decisions;
  backs_off_ = order_ && order_->starts_at && now < *order_->starts_at;
  waits_for_yield_ = order_ && anybody_yields(now);
  if (!order_ || waits_for_yield_) return decisions;
  leave_behind(decisions, now);
  if (order_->stopping) {
    stop_broken(decisions);
    return decisions;
  }
  ask_stacks(decisions);
  if (backs_off_) return decisions;
  const std::optional<std::vector<Seat>> all = seats();
  if (!all || has_two_builds(*all)) return decisions;
  start_ranks(*all, decisions);
  send_table(*all, decisions, now);
  return decisions;
}

/// Ends the ranks of older generations: agents of members start those of the new one in their
/// place, others are fenced.
void JobRun::leave_behind(std::vector<Decision>& decisions, Time now) {
  for (auto& [uid, member] : members_) {
    if (member.connection == 0 || member.fenced) continue;
    if (member.fact.generation >= order_->generation || spare_pods_.contains(uid)) continue;
    auto message = message_to(member);
    message->mutable_fence()->set_generation(order_->generation);
    if (member.fact.stays && member.fact.says_joined && known_pods_.contains(uid)) {
      coordination::JoinGeneration& join = *message->mutable_join_generation();
      join.set_generation(order_->generation);
      join.set_reason("its pod is a member of it");
      join.set_within_ms(std::chrono::milliseconds(order_->join_timeout).count());
      begin_anew(member, now);
    } else {
      member.fenced = true;
      message->mutable_fenced()->set_reason("generation " + std::to_string(order_->generation) +
                                            " has taken over");
    }
    decisions.push_back({member.connection, std::move(message), nullptr});
  }
}

/// What the agent told of the generation before is no fact of this one.
void JobRun::begin_anew(Member& member, Time now) const {
  member.fact.generation = order_->generation;
  // A new stream does not give it more time.
  if (!member.ordered || member.ordered->first != order_->generation) {
    member.ordered = {order_->generation, now};
  }
  member.fact.joins_since = member.ordered->second;
  member.fact.failure.reset();
  member.fact.ranks.clear();
  member.silent = Duration::zero();
  member.ranks_started = false;
  member.table_delivered = false;
  member.table_key.clear();
  member.stacks_asked.reset();
  member.addresses.clear();
  member.ranks.clear();
}

/// Nobody starts their ranks again: agents end with the verdict that they have told.
void JobRun::stop_broken(std::vector<Decision>& decisions) {
  for (auto& [uid, member] : members_) {
    if (member.connection == 0 || member.stopped || !member.fact.failure) continue;
    if (!member.fact.stays || !is_current(member)) continue;
    member.stopped = true;
    auto message = message_to(member);
    message->mutable_stop_ranks()->set_reason("the job is being stopped");
    decisions.push_back({member.connection, std::move(message), nullptr});
  }
}

/// Whether ranks of an older generation are heard of that may still write a checkpoint, or may be
/// heard of soon.
bool JobRun::anybody_yields(Time now) const {
  if (!order_->yields_until || now >= *order_->yields_until) return false;
  if (anybody_may_come_back()) return true;
  return std::any_of(members_.begin(), members_.end(), [&](const auto& entry) {
    const Member& member = entry.second;
    return member.fact.connected && member.ranks_started && !member.fenced &&
           member.fact.generation < order_->generation;
  });
}

/// Whoever has just begun has heard of nobody: agents that have lost the one before come back later
/// than those of new pods come.
bool JobRun::anybody_may_come_back() const {
  if (listened_ >= time_to_come_back()) return false;
  return std::any_of(order_->yielding_pods.begin(), order_->yielding_pods.end(),
                     [&](const std::string& uid) { return !heard_pods_.contains(uid); });
}

Duration JobRun::time_to_come_back() const {
  return same_machine_ ? kLocalReconnectTime : kReconnectTime;
}

std::optional<std::vector<JobRun::Seat>> JobRun::seats() {
  if (order_->members.empty() ||
      static_cast<int64_t>(order_->members.size()) != order_->num_nodes) {
    return std::nullopt;
  }
  std::vector<Seat> found;
  for (const MemberRef& ref : order_->members) {
    const auto it = members_.find(ref.pod_uid);
    if (ref.pod_uid.empty() || it == members_.end() || !is_current(it->second)) return std::nullopt;
    // One that has the table runs on without a stream; the others must be reachable.
    if (it->second.connection == 0 && !it->second.table_delivered) return std::nullopt;
    it->second.fact.node_index = ref.node_index;
    found.push_back({&it->second, 0, 0});
  }
  std::sort(found.begin(), found.end(), [](const Seat& a, const Seat& b) {
    return a.member->fact.node_index < b.member->fact.node_index;
  });
  int next_rank = 0;
  for (Seat& seat : found) {
    seat.first_rank = next_rank;
    seat.rank_count = static_cast<int>(order_->num_proc_per_node);
    next_rank += seat.rank_count;
  }
  return found;
}

void JobRun::ask_stacks(std::vector<Decision>& decisions) {
  if (!order_->stall || !order_->stall->dumps_stacks) return;
  for (auto& [uid, member] : members_) {
    if (member.connection == 0 || !is_current(member)) continue;
    if (member.stacks_asked == order_->stall->since) continue;
    member.stacks_asked = order_->stall->since;
    auto message = message_to(member);
    message->mutable_dump_stacks()->set_reason(order_->stall->message);
    decisions.push_back({member.connection, std::move(message), nullptr});
  }
}

void JobRun::start_ranks(const std::vector<Seat>& seats, std::vector<Decision>& decisions) {
  const Seat& last = seats.back();
  const int world_size = last.first_rank + last.rank_count;
  for (size_t node_rank = 0; node_rank < seats.size(); ++node_rank) {
    const Seat& seat = seats[node_rank];
    if (seat.member->ranks_started || seat.member->connection == 0) continue;
    seat.member->ranks_started = true;
    auto message = message_to(*seat.member);
    coordination::StartGeneration& start = *message->mutable_start_generation();
    start.set_generation(order_->generation);
    start.set_world_size(world_size);
    start.set_node_count(static_cast<int>(seats.size()));
    start.set_node_rank(static_cast<int>(node_rank));
    start.set_node_index(seat.member->fact.node_index);
    for (int i = 0; i < seat.rank_count; ++i)
      start.add_ranks(seat.first_rank + i);
    fill(*start.mutable_resume(), *order_);
    decisions.push_back({seat.member->connection, std::move(message), nullptr});
  }
}

std::string JobRun::table_key(const std::vector<Seat>& seats) {
  for (const Seat& seat : seats) {
    if (seat.member->table_delivered) return seat.member->table_key;
  }
  const bool all_take_one = std::all_of(
      seats.begin(), seats.end(), [](const Seat& seat) { return seat.member->takes_table_key; });
  if (!all_take_one) return {};
  std::string key(kTableKeyBytes, '\0');
  // Asked for so few bytes it gives all of them, at the latest once the machine has booted.
  TRAINYARD_CHECK(::getrandom(key.data(), key.size(), 0) == static_cast<ssize_t>(key.size()));
  return key;
}

void JobRun::send_table(const std::vector<Seat>& seats, std::vector<Decision>& decisions,
                        Time now) {
  const bool delivered = std::all_of(seats.begin(), seats.end(),
                                     [](const Seat& seat) { return seat.member->table_delivered; });
  if (delivered) {
    if (!table_ready_at_) table_ready_at_ = now;
    return;
  }
  coordination::RankTable table;
  table.set_generation(order_->generation);
  fill(*table.mutable_resume(), *order_);
  for (const Seat& seat : seats) {
    const auto& addresses = seat.member->addresses;
    if (static_cast<int>(addresses.size()) != seat.rank_count) return;
    for (int i = 0; i < seat.rank_count; ++i) {
      const auto& [rank, address] = addresses[static_cast<size_t>(i)];
      if (rank != seat.first_rank + i) return;  // ranks of another membership: never mix
      coordination::RankTableEntry& entry = *table.add_ranks();
      entry.set_rank(rank);
      entry.set_node_index(seat.member->fact.node_index);
      entry.set_host_id(seat.member->host_id);
      entry.set_address(address);
    }
  }
  table.set_key(table_key(seats));
  // All get the same one: a copy for each would take memory by the square of their number.
  ToAgent whole;
  const std::string key = table.key();
  *whole.mutable_rank_table() = std::move(table);
  const auto tail = std::make_shared<const std::string>(whole.SerializeAsString());
  for (const Seat& seat : seats) {
    if (seat.member->table_delivered || seat.member->connection == 0) continue;
    seat.member->table_delivered = true;
    seat.member->table_key = key;
    decisions.push_back({seat.member->connection, message_to(*seat.member), tail});
  }
  table_ready_at_ = now;
}

std::unique_ptr<ToAgent> JobRun::message_to(const Member& member) const {
  auto message = std::make_unique<ToAgent>();
  message->mutable_fence()->set_term(term_);
  message->mutable_fence()->set_generation(member.fact.generation);
  message->mutable_fence()->set_pod_uid(member.fact.pod_uid);
  return message;
}

}  // namespace trainyard::control
