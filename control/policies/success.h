#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "common/api/training_job.h"
#include "control/observed.h"

/// When a job has succeeded. Pure.
namespace trainyard::control::policies {

/// Whether `index` is in a list such as "0", "0-3,7". An empty list holds every index, a malformed
/// one none (validation refuses it before).
bool index_listed(std::string_view list, int64_t index);

/// The reason of SuccessCriteriaMet, if the successes of members and of `completed` indexes amount
/// to it: SuccessPolicy for a rule that holds (as batch/v1, KEP-3998), CompletionsReached when all
/// `target` succeeded.
std::optional<std::string_view> judge_success(const api::SuccessPolicy& policy,
                                              const std::vector<const ObservedPod*>& members,
                                              int64_t target, const std::set<int>& completed = {});

}  // namespace trainyard::control::policies
