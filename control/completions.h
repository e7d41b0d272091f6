#pragma once

#include <set>
#include <vector>

#include "common/api/training_job.h"
#include "control/observed.h"

/// Which nodes of the present generation have ended well. A pod that has ended may be deleted, by
/// hand or by a garbage collector, before the others end: its success stands in status. Pure.
/// Source: completedIndexes of batch/v1's Indexed Jobs, KEP-2214.
namespace trainyard::control {

/// The indexes below nodes.target that status remembers.
std::set<int> completed_indexes(const api::TrainingJobStatus& status);

/// Remembers the members that have succeeded. Not one that is being deleted: asked to end, a
/// program may end well with its work undone. Where more are scattered than fit into
/// kMaxCompletedIndexes bytes, some of the lowest are added and none is forgotten.
void note_completions(api::TrainingJobStatus& status,
                      const std::vector<const ObservedPod*>& members);

}  // namespace trainyard::control
