#include "control/goodput/settle.h"

#include <algorithm>
#include <span>

namespace trainyard::control::goodput {
namespace {

using contract::Phase;

const api::Condition* find(const api::TrainingJobStatus& status, api::ConditionType type) {
  const auto found = std::find_if(status.conditions.begin(), status.conditions.end(),
                                  [&](const auto& condition) { return condition.type == type; });
  return found == status.conditions.end() ? nullptr : &*found;
}

bool holds(const api::TrainingJobStatus& status, api::ConditionType type) {
  const api::Condition* condition = find(status, type);
  return condition != nullptr && condition->status == api::ConditionStatus::kTrue;
}

/// Asked to stop or suspended, pods left or not.
bool is_stopping(const api::TrainingJobStatus& status) {
  const api::Condition* suspended = find(status, api::ConditionType::kSuspended);
  return suspended != nullptr && suspended->reason == api::reason::kSuspended;
}

/// Its generation has reported where it resumed: what it does since then is known from its ranks.
bool has_resumed(const api::TrainingJobStatus& status) {
  return std::any_of(status.attempts.begin(), status.attempts.end(), [&](const auto& attempt) {
    return attempt.generation == status.membership.generation && attempt.start_step.has_value();
  });
}

/// What a job does whose ranks have told nothing yet.
Category before_ranks(const Look& look) {
  using api::ConditionType;
  const api::TrainingJobStatus& status = *look.status;
  const bool again =
      holds(status, ConditionType::kRestarting) || holds(status, ConditionType::kResizing);
  if (again && status.nodes.active == 0) return Category::kInfra;  // back-off, removal
  if (!holds(status, ConditionType::kScheduled)) return Category::kQueue;
  if (!look.reports_steps && holds(status, ConditionType::kRunning)) return Category::kProductive;
  return Category::kStartup;
}

/// Of phases in which no steps are made.
Category category_of(Phase phase) {
  switch (phase) {
    case Phase::kStarting:
      return Category::kStartup;
    case Phase::kRendezvous:
      return Category::kRendezvous;
    case Phase::kRestoring:
      return Category::kRestore;
    case Phase::kCheckpointing:
      return Category::kCheckpoint;
    case Phase::kDone:
      return Category::kStartup;  // its processes end
    case Phase::kTraining:
    case Phase::kEvaluating:
      break;
  }
  return Category::kInfra;
}

/// Evaluation is work the user asked for: it counts as the step after which it comes.
bool is_training(Phase phase) { return phase == Phase::kTraining || phase == Phase::kEvaluating; }

/// Whether it turns out only later that the time since its beginning was a stall.
bool may_stall(Phase phase) { return is_training(phase) || phase == Phase::kCheckpointing; }

bool tells_nothing(const JobPoint& point) {
  return point.phase == Phase::kStarting && point.step == 0;
}

class Settlement {
 public:
  Settlement(Ledger& ledger, const Look& look, Time until)
      : ledger_(ledger), look_(look), until_(until) {
    const bool current =
        look.facts->hosted && look.facts->generation == look.status->membership.generation;
    if (current) points_ = look.facts->timeline;
    // The agent of a program that does not use its progress page reports an empty one.
    while (!look.reports_steps && !points_.empty() && tells_nothing(points_.front()))
      points_ = points_.subspan(1);
  }

  /// `is_closing`: nothing comes any more that could tell what the phase under way was.
  void count_known(bool is_closing) {
    if (holds(*look_.status, api::ConditionType::kSuspended)) {
      return ledger_.spend(look_.now, Category::kStopped);
    }
    if (points_.empty()) return count_without_ranks();
    count_until_first_point(points_.front());
    for (size_t i = 0; i + 1 < points_.size(); ++i)
      count_between(points_[i], points_[i + 1]);
    const JobPoint& last = points_.back();
    if (look_.stalled) {
      ledger_.spend(until_, Category::kStall);
    } else if (!may_stall(last.phase) || (is_closing && !is_training(last.phase))) {
      ledger_.spend(until_, category_of(last.phase));
    }
  }

  void count_rest(const Close& close) {
    const bool watched = !points_.empty();
    if (!watched && close.ended_at) {
      // Nobody watched it end; its own record tells how far it came.
      const int64_t from = ledger_.goodput().counted.step;
      const int64_t to = std::max(from, close.last_step.value_or(from));
      if (to > from) ledger_.spend_training({*close.ended_at, from, to});
    }
    if (close.last_step) ledger_.reach_step(*close.last_step);
    const bool found_later = !watched && close.ended_at;
    ledger_.spend(look_.now, found_later ? Category::kInfra : close.category);
  }

 private:
  void count_without_ranks() {
    if (is_stopping(*look_.status)) return ledger_.spend(until_, Category::kStopped);
    // After a change of the controller ranks that trained are about to tell how far they came.
    if (!has_resumed(*look_.status)) spend_before_ranks(until_);
  }

  /// Pods that a restart has kept stand by during its back-off: nothing starts in them yet.
  void spend_before_ranks(Time until) {
    if (look_.back_off_ends) {
      ledger_.spend(std::min(until, *look_.back_off_ends), Category::kInfra);
    }
    ledger_.spend(until, before_ranks(look_));
  }

  void count_until_first_point(const JobPoint& first) {
    if (first.at <= ledger_.counted_until()) return;
    if (!has_resumed(*look_.status)) {
      spend_before_ranks(first.at);
      return ledger_.set_step(first.step);
    }
    const int64_t from = ledger_.goodput().counted.step;
    if (is_training(first.phase) || first.step > from) {
      ledger_.spend_training({first.at, from, std::max(from, first.step)});
    } else {
      ledger_.spend(first.at, category_of(first.phase));
    }
  }

  void count_between(const JobPoint& from, const JobPoint& to) {
    if (to.at <= ledger_.counted_until()) return;
    // The beginning of this span has been counted as a stall: its end belongs to that.
    if (may_stall(from.phase) && from.at < ledger_.counted_until() &&
        holds(*look_.status, api::ConditionType::kStalled)) {
      ledger_.spend(to.at, Category::kStall);
      ledger_.reach_step(to.step);
      ledger_.set_step(to.step);
    } else if (is_training(from.phase)) {
      ledger_.spend_training({to.at, from.step, to.step});
    } else {
      ledger_.spend(to.at, category_of(from.phase));
      ledger_.set_step(to.step);
    }
  }

  Ledger& ledger_;
  const Look& look_;
  const Time until_;
  std::span<const JobPoint> points_;
};

}  // namespace

void settle(Ledger& ledger, const Look& look, const std::optional<Close>& close) {
  if (!ledger.is_open()) return;
  // What a generation did is over with its processes, though it shows later.
  const Time until = close && close->ended_at ? std::min(look.now, *close->ended_at) : look.now;
  Settlement settlement(ledger, look, until);
  settlement.count_known(close.has_value());
  if (close) settlement.count_rest(*close);
}

}  // namespace trainyard::control::goodput
