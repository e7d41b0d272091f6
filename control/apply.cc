#include "control/apply.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "control/status_edit.h"

namespace trainyard::control {
namespace {

using OnIntent = std::function<void(const api::TrainingJobStatus&)>;

/// The pod that was meant is gone: that is what was wanted.
Status unless_gone(Status status) {
  const bool gone = !status && (status.error().code == ErrorCode::kNotFound ||
                                status.error().code == ErrorCode::kConflict);
  return gone ? Status() : status;
}

/// How many of `count` calls this application makes.
int64_t bounded(int64_t count, bool& unfinished) {
  if (count > kMaxPodCalls) unfinished = true;
  return std::min(count, kMaxPodCalls);
}

/// Labels off first, all of them: a name that resolves to a pod on its way out helps nobody.
Status condemn(Cluster& cluster, const Plan& plan, Duration grace, bool& unfinished) {
  std::vector<const Condemnation*> labelled;
  std::vector<const Condemnation*> removed;
  for (const Condemnation& condemnation : plan.condemn) {
    if (condemnation.remove_member_label) labelled.push_back(&condemnation);
    if (condemnation.remove) removed.push_back(&condemnation);
  }
  TRAINYARD_TRY(cluster.for_each(bounded(std::ssize(labelled), unfinished), [&](int64_t i) {
    return unless_gone(cluster.remove_member_label(labelled[static_cast<size_t>(i)]->pod));
  }));
  return cluster.for_each(bounded(std::ssize(removed), unfinished), [&](int64_t i) {
    const Condemnation& condemnation = *removed[static_cast<size_t>(i)];
    return unless_gone(cluster.delete_pod(condemnation.pod, condemnation.grace.value_or(grace)));
  });
}

std::optional<Refusal> refusal_of(const PodSpec& spec, CreateReply reply) {
  if (reply.outcome == CreateReply::Outcome::kRefused) return std::move(reply.refusal);
  if (reply.outcome != CreateReply::Outcome::kNameConflict) return std::nullopt;
  return Refusal{api::reason::kNameConflict,
                 "pod " + spec.name + " exists and is not this job's; delete it or rename the job"};
}

/// Creates what is planned; returns the first refusal. One refusal tells for all of them.
Result<std::optional<Refusal>> create(Cluster& cluster, const std::vector<PodSpec>& planned,
                                      bool& unfinished) {
  std::mutex mutex;
  std::optional<Refusal> first;
  TRAINYARD_TRY(
      cluster.for_each(bounded(std::ssize(planned), unfinished), [&](int64_t i) -> Status {
        {
          const std::lock_guard lock(mutex);
          if (first && first->reason != api::reason::kNameConflict) return {};
        }
        const PodSpec& spec = planned[static_cast<size_t>(i)];
        TRAINYARD_ASSIGN(CreateReply reply, cluster.create_pod(spec));
        std::optional<Refusal> refusal = refusal_of(spec, std::move(reply));
        const std::lock_guard lock(mutex);
        if (refusal && !first) first = std::move(refusal);
        return {};
      }));
  return first;
}

/// One job's plan on its way into the cluster.
class Application {
 public:
  Application(Cluster& cluster, const Observed& observed, const Plan& plan, Time now,
              const OnIntent& on_intent)
      : cluster_(cluster),
        observed_(observed),
        plan_(plan),
        now_(now),
        on_intent_(on_intent),
        version_(observed.metadata.resource_version) {
    applied_.status = observed.status;
    applied_.resource_version = version_;
  }

  Applied run() {
    if (Status done = carry_out(); !done) {
      applied_.error = std::move(done).error();
      tell_of_intent();
    }
    return std::move(applied_);
  }

 private:
  Status carry_out() {
    if (plan_.intent) {
      TRAINYARD_TRY(write(*plan_.intent));
      if (on_intent_) on_intent_(*plan_.intent);
    }
    TRAINYARD_TRY(condemn(cluster_, plan_, grace_of(observed_.spec), applied_.unfinished));
    for (const Labelling& labelling : plan_.promote)
      TRAINYARD_TRY(unless_gone(cluster_.promote_pod(labelling.pod, labelling.node_index)));
    TRAINYARD_TRY(keep_companions());
    if (!applied_.refusal) {
      TRAINYARD_ASSIGN(applied_.refusal, create(cluster_, plan_.create, applied_.unfinished));
      TRAINYARD_ASSIGN(applied_.spare_refusal,
                       create(cluster_, plan_.create_spares, applied_.unfinished));
    }
    const bool was_told = tells(applied_.status, applied_.refusal);
    const bool lacked_spares = lacks_spares(applied_.status);
    TRAINYARD_TRY(write_outcome());
    reached_events_ = true;
    for (const Event& event : plan_.events) {
      TRAINYARD_TRY(cluster_.emit_event(observed_.key, event));
    }
    if (applied_.refusal && !was_told) {
      TRAINYARD_TRY(cluster_.emit_event(
          observed_.key,
          {EventType::kWarning, applied_.refusal->reason, applied_.refusal->message}));
    }
    if (applied_.spare_refusal && !lacked_spares) {
      TRAINYARD_TRY(
          cluster_.emit_event(observed_.key, {EventType::kWarning, applied_.spare_refusal->reason,
                                              "no spare pod: " + applied_.spare_refusal->message}));
    }
    if (!plan_.delete_job) return {};
    return unless_gone(cluster_.delete_job(observed_.key, observed_.metadata.uid));
  }

  Status write(const api::TrainingJobStatus& status) {
    TRAINYARD_ASSIGN(version_,
                     cluster_.put_status(observed_.key, observed_.metadata.uid, status, version_));
    applied_.status = status;
    applied_.wrote_status = true;
    applied_.resource_version = version_;
    return {};
  }

  /// Whoever finishes what was cut short finds a decision that is written, and nothing to tell.
  void tell_of_intent() {
    if (!plan_.intent || !applied_.wrote_status || reached_events_) return;
    for (const Event& event : plan_.events)
      static_cast<void>(cluster_.emit_event(observed_.key, event));
  }

  Status keep_companions() {
    if (!is_ours(observed_)) return {};
    TRAINYARD_ASSIGN(applied_.refusal, cluster_.keep_companions(observed_, applied_.status));
    return {};
  }

  static bool tells(const api::TrainingJobStatus& status, const std::optional<Refusal>& refusal) {
    const api::Condition* accepted = find_condition(status, api::ConditionType::kAccepted);
    return refusal && accepted != nullptr && accepted->status == api::ConditionStatus::kFalse &&
           accepted->reason == refusal->reason;
  }

  Status write_outcome() {
    api::TrainingJobStatus outcome = plan_.outcome.value_or(applied_.status);
    if (applied_.refusal) {
      set_condition(outcome,
                    {api::ConditionType::kAccepted, api::ConditionStatus::kFalse,
                     applied_.refusal->reason, applied_.refusal->message},
                    now_);
      fit_status(outcome);
    } else if (plan_.accept_if_taken) {
      set_condition(outcome,
                    {api::ConditionType::kAccepted, api::ConditionStatus::kTrue,
                     api::reason::kAccepted, kSpecIsValid},
                    now_);
    }
    if (applied_.spare_refusal && !lacks_spares(outcome)) {
      set_condition(outcome,
                    {api::ConditionType::kDegraded, api::ConditionStatus::kTrue,
                     api::reason::kSparesExhausted, applied_.spare_refusal->message},
                    now_);
      fit_status(outcome);
    }
    if (outcome.conditions != applied_.status.conditions) describe_phase(outcome);
    if (outcome == applied_.status) return {};
    TRAINYARD_TRY(write(outcome));
    // What stands beside the pods follows a job's end at once.
    const auto kept = cluster_.keep_companions(observed_, applied_.status);
    return kept ? Status() : Status(kept.error());
  }

  Cluster& cluster_;
  const Observed& observed_;
  const Plan& plan_;
  const Time now_;
  const OnIntent& on_intent_;
  std::string version_;
  Applied applied_;
  bool reached_events_ = false;
};

}  // namespace

Applied apply(Cluster& cluster, const Observed& observed, const Plan& plan, Time now,
              const OnIntent& on_intent) {
  return Application(cluster, observed, plan, now, on_intent).run();
}

}  // namespace trainyard::control
