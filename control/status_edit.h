#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/api/training_job.h"
#include "common/base/time.h"

/// Small edits of a status that keep its limits and transition times. Pure.
namespace trainyard::control {

/// `text` with control characters and those that turn its direction escaped (\n, \t, \xNN), cut to
/// `limit_bytes` at a character's start and ended by "..." where it was longer.
std::string bounded_text(std::string_view text, int64_t limit_bytes);

/// The same, but cut in its middle, with "..." there: the end of a program's words tells most,
/// their beginning where they are from.
std::string shortened_text(std::string_view text, int64_t limit_bytes);

/// The condition of this type; nullptr when there is none.
const api::Condition* find_condition(const api::TrainingJobStatus& status, api::ConditionType type);

bool is_true(const api::TrainingJobStatus& status, api::ConditionType type);

/// Whether it says that no spare stands ready.
bool lacks_spares(const api::TrainingJobStatus& status);

/// What set_condition writes.
struct ConditionEdit {
  api::ConditionType type;
  api::ConditionStatus status;
  std::string_view reason;
  std::string_view message;  ///< bounded by the edit
};

/// Adds or changes a condition; lastTransitionTime moves only with the condition's status. A
/// terminal condition that is True stays as it is.
void set_condition(api::TrainingJobStatus& status, const ConditionEdit& edit, Time now);

/// Sets a condition that is True to False; one that is absent or False stays as it is.
void clear_condition(api::TrainingJobStatus& status, api::ConditionType type,
                     std::string_view reason, std::string_view message, Time now);

/// The phase that the conditions amount to, for humans.
api::JobPhase phase_of(const api::TrainingJobStatus& status);

/// The condition that makes that phase; null where none is set yet.
const api::Condition* cause_of_phase(const api::TrainingJobStatus& status);

/// Sets phase, reason and message.
void describe_phase(api::TrainingJobStatus& status);

/// Appends an attempt and keeps the limits: kMaxAttempts entries, only the newest message long.
void push_attempt(api::TrainingJobStatus& status, api::Attempt attempt);

/// Puts attempts back that push_attempt has dropped, in place of the oldest others.
void keep_attempts(api::TrainingJobStatus& status, const std::vector<api::Attempt>& kept);

/// Keeps the whole within kMaxStatusBytes where names and texts are as long as they may be: first
/// messages of older attempts go, then those of conditions are cut to kMaxCrowdedMessage, then the
/// oldest attempts go, never the newest two, those that condemn a pod last; at last the oldest
/// restarts remembered of a class go, down to policies::kCrowdedRecentRestarts.
void fit_status(api::TrainingJobStatus& status);

/// The attempt of the current generation that has not ended; nullptr when there is none.
const api::Attempt* open_attempt(const api::TrainingJobStatus& status);

/// The attempt that ended last; where a restart ended several, that of its cause. nullptr: none.
const api::Attempt* newest_ended_attempt(const api::TrainingJobStatus& status);

}  // namespace trainyard::control
