#include "operator/cluster/standing.h"

#include "control/status_edit.h"

namespace trainyard::cluster {

bool is_over(const api::TrainingJobStatus& status) {
  using api::ConditionType;
  const api::Condition* suspended = control::find_condition(status, ConditionType::kSuspended);
  const bool stopping = suspended != nullptr && suspended->reason == api::reason::kSuspended;
  return stopping || control::is_true(status, ConditionType::kFailureTarget) ||
         control::is_true(status, ConditionType::kSuccessCriteriaMet) ||
         control::is_true(status, ConditionType::kComplete) ||
         control::is_true(status, ConditionType::kFailed);
}

bool stand_already(const api::TrainingJobStatus& status) {
  return status.membership.generation > 1 ||
         control::is_true(status, api::ConditionType::kScheduled);
}

}  // namespace trainyard::cluster
