// How an agent that stays goes from one generation to the next in its pod.
#include <algorithm>
#include <utility>

#include "agent/supervisor.h"
#include "common/proto/coordination.pb.h"

namespace trainyard::agent {

void Supervisor::join(int64_t generation, const std::string& reason) {
  if (generation == this->generation()) return;  // told again: nothing is started twice
  ending_reason_ = "generation " + std::to_string(generation) + " has taken over: " + reason;
  const bool ends = waits_no_longer_ || (ending_ != Ending::kNone && ending_ != Ending::kFailed &&
                                         ending_ != Ending::kJoining);
  // Whoever asked it to end before does not want it in another generation either.
  if (ends) return end_with(Ending::kFenced, Escalation::kKilled, Duration::zero());
  joins_ = generation;
  start_when_joined_.reset();
  end_with(Ending::kJoining, Escalation::kKilled, Duration::zero());
}

/// As if the agent had just begun, but for its streams and what it has counted.
void Supervisor::begin_generation() {
  host_.clear();
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
  if (const auto start = std::move(start_when_joined_)) start_ranks(*start);
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
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].end && !ranks_[i].expected) tell_exit(ranks_[i], static_cast<int>(i));
  }
}

bool Supervisor::order_is_overdue() const {
  if (!waits_for_order() || !waits_since_ || stream_open_) return false;
  const Duration limit =
      options_.orphan_limit ? std::min<Duration>(*options_.orphan_limit, kOrderLimit) : kOrderLimit;
  return clock_.mono() - std::max(*waits_since_, stream_lost_at_) >= limit;
}

}  // namespace trainyard::agent
