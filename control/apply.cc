#include "control/apply.h"

#include <utility>

#include "control/status_edit.h"

namespace trainyard::control {
namespace {

/// The pod that was meant is gone: that is what was wanted.
Status unless_gone(Status status) {
  const bool gone = !status && (status.error().code == ErrorCode::kNotFound ||
                                status.error().code == ErrorCode::kConflict);
  return gone ? Status() : status;
}

Status condemn(Cluster& cluster, const Plan& plan, Duration grace) {
  for (const Condemnation& condemnation : plan.condemn) {
    if (!condemnation.remove_member_label) continue;
    TRAINYARD_TRY(unless_gone(cluster.remove_member_label(condemnation.pod)));
  }
  for (const Condemnation& condemnation : plan.condemn) {
    if (!condemnation.remove) continue;
    TRAINYARD_TRY(
        unless_gone(cluster.delete_pod(condemnation.pod, condemnation.grace.value_or(grace))));
  }
  return {};
}

/// Creates what is planned; returns the names that were taken.
Result<std::vector<std::string>> create(Cluster& cluster, const Plan& plan) {
  std::vector<std::string> conflicts;
  for (const PodSpec& spec : plan.create) {
    TRAINYARD_ASSIGN(const CreateReply reply, cluster.create_pod(spec));
    if (reply.outcome == CreateReply::Outcome::kNameConflict) conflicts.push_back(spec.name);
  }
  return conflicts;
}

/// One job's plan on its way into the cluster.
class Application {
 public:
  Application(Cluster& cluster, const Observed& observed, const Plan& plan, Time now)
      : cluster_(cluster),
        observed_(observed),
        plan_(plan),
        now_(now),
        version_(observed.metadata.resource_version) {
    applied_.status = observed.status;
  }

  Applied run() {
    if (Status done = carry_out(); !done) applied_.error = std::move(done).error();
    return std::move(applied_);
  }

 private:
  Status carry_out() {
    if (plan_.intent) TRAINYARD_TRY(write(*plan_.intent));
    TRAINYARD_TRY(condemn(cluster_, plan_, grace_of(observed_.spec)));
    TRAINYARD_ASSIGN(applied_.name_conflicts, create(cluster_, plan_));
    TRAINYARD_TRY(write_outcome());
    for (const Event& event : plan_.events) {
      TRAINYARD_TRY(cluster_.emit_event(observed_.key, event));
    }
    if (!plan_.delete_job) return {};
    return unless_gone(cluster_.delete_job(observed_.key, observed_.metadata.uid));
  }

  Status write(const api::TrainingJobStatus& status) {
    TRAINYARD_ASSIGN(version_,
                     cluster_.put_status(observed_.key, observed_.metadata.uid, status, version_));
    applied_.status = status;
    applied_.wrote_status = true;
    return {};
  }

  Status write_outcome() {
    api::TrainingJobStatus outcome = plan_.outcome.value_or(applied_.status);
    if (!applied_.name_conflicts.empty()) {
      set_condition(
          outcome,
          {api::ConditionType::kAccepted, api::ConditionStatus::kFalse, api::reason::kNameConflict,
           "pod " + applied_.name_conflicts.front() +
               " exists and is not this job's; delete or rename it"},
          now_);
    }
    if (outcome == applied_.status) return {};
    return write(outcome);
  }

  Cluster& cluster_;
  const Observed& observed_;
  const Plan& plan_;
  const Time now_;
  std::string version_;
  Applied applied_;
};

}  // namespace

Applied apply(Cluster& cluster, const Observed& observed, const Plan& plan, Time now) {
  return Application(cluster, observed, plan, now).run();
}

}  // namespace trainyard::control
