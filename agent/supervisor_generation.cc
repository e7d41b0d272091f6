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
  if (const auto start = std::move(start_when_joined_)) start_ranks(*start);
}

/// New ranks never run beside processes of the old ones: their files, ports and devices would be
/// shared.
bool Supervisor::clear_ranks() {
  const Status cleared = host_.clear();
  if (cleared) {
    clears_since_.reset();
    clear_again_at_.reset();
    return true;
  }
  const MonoTime now = clock_.mono();
  if (!clears_since_) {
    clears_since_ = now;
    logger_.warning("killed processes have not ended; ranks start when they have",
                    {{"generation", *joins_}, {"error", cleared.error().message}});
  }
  if (now - *clears_since_ < kClearLimit) {
    clear_again_at_ = now + kClearInterval;
    return false;
  }
  ending_reason_ = cleared.error().message + " after " + std::to_string(kClearLimit.count()) +
                   " s: no ranks can start in this pod";
  logger_.error("no ranks can start in this pod", {{"error", cleared.error().message}});
  joins_.reset();
  finish_if_done();
  return false;
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

void Supervisor::tell_primary_failure() {
  const Rank* const primary = primary_failure();
  if (primary == nullptr || !primary->expected) return;
  const auto local_rank = static_cast<size_t>(primary - ranks_.data());
  ranks_[local_rank].expected = false;
  tell_exit(ranks_[local_rank], static_cast<int>(local_rank));
}

bool Supervisor::order_is_overdue() const {
  if (!waits_for_order() || !waits_since_ || stream_open_) return false;
  const Duration limit =
      options_.orphan_limit ? std::min<Duration>(*options_.orphan_limit, kOrderLimit) : kOrderLimit;
  // Streams that end before they say anything are those of an agent that is not let in.
  return clock_.mono() - std::max(*waits_since_, good_stream_lost_at_) >= limit;
}

}  // namespace trainyard::agent
