#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

#include "common/api/training_job_status.h"
#include "common/base/time.h"

/// Where a job's time goes: docs/concepts/goodput.md. Pure.
namespace trainyard::control::goodput {

using std::chrono::milliseconds;

/// What a moment of a job's life is counted as; each is in exactly one.
enum class Category {
  kProductive,
  kQueue,
  kStartup,  ///< processes start, or end after they did what was asked of them
  kRendezvous,
  kRestore,
  kCheckpoint,
  kRecompute,
  kStall,
  kInfra,
  kStopped,  ///< suspended or stopped on request: not part of the wall time
};

/// Time between two looks at a job that trained.
struct TrainedSpan {
  Time until;
  int64_t from_step = 0;  ///< steps done when the span began
  int64_t to_step = 0;    ///< steps done at `until`
};

/// The books of one job: a cursor that moves forward through time and leaves every millisecond in
/// one category. Sums are whole milliseconds, so nothing is lost to rounding: after each call
/// productive + badput == wall and wall + stopped == time of the cursor - time of opening.
class Ledger {
 public:
  /// Goes on with `goodput`. One that was never opened counts nothing until open().
  explicit Ledger(api::GoodputStatus goodput) : goodput_(std::move(goodput)) {}

  /// Begins counting at `start`, unless it has begun.
  void open(Time start);
  bool is_open() const { return goodput_.counted.time.has_value(); }
  /// Until when everything is counted; only of an open ledger.
  Time counted_until() const { return *goodput_.counted.time; }

  /// Counts the time up to `until`; nothing happens where that is counted already (or where the
  /// machine's clock was set back).
  void spend(Time until, Category category);
  /// Counts training: in proportion, steps below the highest ever done as recompute and the rest as
  /// productive. Moves the highest step.
  void spend_training(const TrainedSpan& span);

  /// A step seen otherwise, such as in the record of a process that ended.
  void reach_step(int64_t step);
  /// The step of the present generation at the cursor.
  void set_step(int64_t step) { goodput_.counted.step = step; }

  const api::GoodputStatus& goodput() const { return goodput_; }

 private:
  milliseconds advance(Time until);
  void add(milliseconds amount, Category category);
  void update_ratio();

  api::GoodputStatus goodput_;
};

/// Sum of all badput.
milliseconds total(const api::Badput& badput);

}  // namespace trainyard::control::goodput
