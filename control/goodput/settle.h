#pragma once

#include <optional>

#include "common/api/training_job.h"
#include "common/base/time.h"
#include "control/facts.h"
#include "control/goodput/ledger.h"

namespace trainyard::control::goodput {

/// What one look at a job tells of the time since the last.
struct Look {
  /// As it stood before this look decides anything: says what the job was waiting for.
  const api::TrainingJobStatus* status = nullptr;
  /// Of that status' generation, else without effect.
  const StreamFacts* facts = nullptr;
  /// The ranks are sure to report their steps. A foreign program may, by its progress page; while
  /// it has not, it counts as productive when it runs.
  bool reports_steps = true;
  bool stalled = false;  ///< by this look: what is not yet counted is the stall
  Time now;
  /// End of the back-off before that status' generation; nullopt: none.
  std::optional<Time> back_off_ends = std::nullopt;
};

/// A generation that this look ends (or that has ended before it).
struct Close {
  Category category = Category::kInfra;  ///< of what is not yet counted
  /// When its processes ended, where somebody knows; where nobody watched, what follows is kInfra.
  std::optional<Time> ended_at;
  /// The last step that their own records name.
  std::optional<int64_t> last_step;
};

/// Counts what is certain by now. The step or checkpoint under way stays uncounted until it is done
/// or lost, or a stall, so that no second is counted twice or as what it was not. With `close`
/// nothing stays uncounted.
void settle(Ledger& ledger, const Look& look, const std::optional<Close>& close);

}  // namespace trainyard::control::goodput
