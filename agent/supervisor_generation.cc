// How an agent that stays goes from one generation to the next in its pod.
#include <algorithm>
#include <utility>

#include "agent/supervisor.h"
#include "common/proto/coordination.pb.h"

namespace trainyard::agent {

using coordination::FromAgent;
using std::chrono::milliseconds;

void Supervisor::join(int64_t generation, const coordination::JoinGeneration& order) {
  if (generation == this->generation()) return;  // told again: nothing is started twice
  ending_reason_ =
      "generation " + std::to_string(generation) + " has taken over: " + order.reason();
  const bool ends = waits_no_longer_ || (ending_ != Ending::kNone && ending_ != Ending::kFailed &&
                                         ending_ != Ending::kJoining);
  // Whoever asked it to end before does not want it in another generation either.
  if (ends) return end_with(Ending::kFenced, Escalation::kKilled, Duration::zero());
  if (!joins_) joins_since_ = clock_.mono();
  const milliseconds within(order.within_ms());
  join_limit_ = within > milliseconds::zero() ? std::min<milliseconds>(within, kLongestClearLimit)
                                              : kClearLimit;
  joins_ = generation;
  start_when_joined_.reset();
  end_with(Ending::kJoining, Escalation::kKilled, Duration::zero());
}

/// As if the agent had just begun, but for its streams and what it has counted.
void Supervisor::begin_generation() {
  if (!clear_ranks()) return;
  ranks_.clear();
  generation_ = *joins_;
  joins_.reset();
  table_delivered_ = false;
  table_key_.clear();
  result_.reset();
  ends_seen_ = 0;
  ending_ = Ending::kNone;
  ending_reason_.clear();
  failed_before_fence_ = nullptr;
  escalation_ = Escalation::kNone;
  escalate_at_.reset();
  waits_since_.reset();
  FromAgent message;
  message.mutable_joined();
  send(message);
  if (const auto start = std::move(start_when_joined_)) start_ranks(*start);
}

/// New ranks never run beside processes of the old ones: their files, ports and devices would be
/// shared.
bool Supervisor::clear_ranks() {
  const Status cleared = host_.clear();
  if (cleared) {
    clear_again_at_.reset();
    clear_interval_ = kFirstClearInterval;
    return true;
  }
  clear_again_at_ = clock_.mono() + clear_interval_;
  const bool is_late = clear_interval_ == kClearInterval;
  clear_interval_ = std::min(2 * clear_interval_, kClearInterval);
  if (!is_late && clear_interval_ == kClearInterval) {
    logger_.warning("killed processes have not ended; ranks start when they have",
                    {{"generation", *joins_}, {"error", cleared.error().message}});
  }
  return false;
}

/// The failure that the next generation is for was told before, and counts once.
void Supervisor::give_up_joining() {
  const auto limit = std::chrono::duration_cast<std::chrono::seconds>(join_limit_);
  ending_reason_ = "killed processes have not ended within " + std::to_string(limit.count()) +
                   " s, no ranks can start in this pod: " + host_.left();
  logger_.error("no ranks can start in this pod", {{"error", ending_reason_}});
  joins_.reset();
  clear_again_at_.reset();
  finished_ = {contract::kExitRetry, std::nullopt, std::nullopt, "Error", ending_reason_, {}};
  finished_->last_step = newest_step();
}

bool Supervisor::waits_for_order() const {
  return options_.stays && ending_ == Ending::kFailed && !waits_no_longer_;
}

void Supervisor::wait_no_longer() {
  waits_no_longer_ = true;
  finish_if_done();
}

/// A coordinator that has just begun would wait for ranks that are dead.
void Supervisor::tell_failures() {
  if (!waits_for_order()) return;
  std::vector<Rank*> told;
  for (Rank& rank : ranks_) {
    if (rank.explained) told.push_back(&rank);
  }
  std::sort(told.begin(), told.end(),
            [](const Rank* a, const Rank* b) { return a->end_order < b->end_order; });
  for (Rank* rank : told)
    tell_exit(*rank, Verdict::kTold);
}

void Supervisor::tell_primary_failure() {
  const Rank* const failing = first_failing();
  const Rank* const decides = failing != nullptr && !failing->end ? failing : deciding_rank();
  if (decides == nullptr || decides->explained) return;
  tell_exit(ranks_[static_cast<size_t>(decides - ranks_.data())], Verdict::kTold);
}

bool Supervisor::order_is_overdue() const {
  if (!waits_for_order() || !waits_since_ || stream_open_) return false;
  const Duration limit =
      options_.orphan_limit ? std::min<Duration>(*options_.orphan_limit, kOrderLimit) : kOrderLimit;
  // Streams that end before they say anything are those of an agent that is not let in.
  return clock_.mono() - std::max(*waits_since_, good_stream_lost_at_) >= limit;
}

}  // namespace trainyard::agent
