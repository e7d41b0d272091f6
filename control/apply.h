#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/api/training_job.h"
#include "common/base/error.h"
#include "common/base/time.h"
#include "control/cluster.h"
#include "control/observed.h"
#include "control/plan.h"

namespace trainyard::control {

/// What applying a plan left behind, also when it was cut short.
struct Applied {
  std::optional<Error> error;     ///< what stopped it; nullopt: all is done
  api::TrainingJobStatus status;  ///< as last written, else as observed
  bool wrote_status = false;
  std::string resource_version;  ///< of the status last written, else as observed
  /// Why pods could not be made though the cluster answered: a name that somebody else's pod has, a
  /// quota; the condition Accepted says so.
  std::optional<Refusal> refusal;
  /// The same of spares, without which the job goes on.
  std::optional<Refusal> spare_refusal;
  /// There was more to create or to delete than one application does (kMaxPodCalls).
  bool unfinished = false;
};

/// Pods that one application creates, and deletes, at most: a huge job takes its turns among the
/// others.
inline constexpr int64_t kMaxPodCalls = 500;

/// Carries a plan out, written ahead: (a) the intent, one status write with the observed resource
/// version; (b) member labels off, deletions, spares to their indexes; (c) what stands beside the
/// pods, then creations; (d) the outcome; (e) events; last the job's own deletion. Stops at the
/// first error, so that nothing is done that is not written down; whoever plans next finishes it.
/// What explains an intent that is written is told all the same. A pod that is gone already, or
/// whose name another UID has, counts as deleted. Its error is the cluster's; kConflict when the
/// status was changed since `observed`. `on_intent` is called with the intent as soon as it is
/// written, before anything else is done: what follows may take a large gang half a minute.
Applied apply(Cluster& cluster, const Observed& observed, const Plan& plan, Time now,
              const std::function<void(const api::TrainingJobStatus&)>& on_intent = {});

}  // namespace trainyard::control
