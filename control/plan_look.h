#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "control/goodput/settle.h"
#include "control/membership.h"
#include "control/plan.h"
#include "control/plan_status.h"
#include "control/policies/liveness.h"
#include "control/policies/progress.h"
#include "control/policies/restart.h"
#include "control/policies/schedule.h"
#include "control/policies/scope.h"
#include "control/status_edit.h"

/// The inside of plan(): one look at one job. The life of the job is in plan.cc, the decisions
/// about a running generation in plan_generation.cc, its losses in plan_losses.cc, its spares in
/// plan_spares.cc.
namespace trainyard::control {

/// Works on a copy of the status (`next_`); what it decides is carried by the Plan. Used once.
class Planner {
 public:
  /// `observed` outlives this.
  Planner(const Observed& observed, Time now)
      : observed_(observed), spec_(observed.spec), now_(now), next_(observed.status) {}

  Plan run();

 private:
  // The life of the job (plan.cc).
  void recover_status(int64_t last_generation);
  void decide();
  void plan_finished();
  void plan_ending();
  bool gives_verdict(const ObservedPod& pod, const policies::MembersByPod& told);
  void refuse_spec();
  void plan_invalid();
  void plan_refused();
  void plan_stopping();
  void plan_next_life();
  bool end_if_over();
  bool is_stopping() const;
  bool stopped_early() const;
  std::string early_stop_text() const;
  void complete_progress();
  void fail(std::string_view reason, const std::string& message);
  bool is_refused() const;
  void accept(const policies::Gang* gang);
  void condemn(const std::vector<const ObservedPod*>& pods,
               std::optional<Duration> grace = std::nullopt);
  void finish();
  bool awaits_ranks() const;
  api::TrainingJobStatus with_fields_of_before(api::TrainingJobStatus status) const;
  bool says_nothing_new(bool due) const;
  bool may_wait(const api::TrainingJobStatus& quiet);
  api::GoodputStatus counted_goodput() const;
  /// The present generation is over: how its uncounted time is to be counted.
  void close_books(goodput::Category category);

  // A generation that is to run (plan_generation.cc). The bool ones say whether they decided.
  void plan_running();
  bool restart_if_lost(const policies::Gang& gang);
  bool restart_if_stalled(const policies::Gang& gang);
  bool resize_if_wanted(const policies::Gang& gang);
  bool renew_if_edited(const policies::Gang& gang);
  bool let_go_if_partial(const policies::Gang& gang);
  bool is_edited() const;
  void tell_of_trouble(std::string_view reason);
  void learn_worker_image();
  void renew_worker_image(bool always);
  bool any_succeeded() const;
  void create_missing(const policies::Gang& gang);
  /// A new pod with what no index and no spec says: the configuration, nodes to keep away from.
  PodSpec as_of_now(PodSpec pod) const;

  /// When the ranks of this generation could start: its gang was placed, and the back-off was over;
  /// nullopt: not placed yet.
  std::optional<Time> scheduled_at() const;
  void restart(const policies::Loss& cause, const std::vector<policies::Loss>& losses);
  void avoid_nodes(const std::vector<policies::Loss>& losses);
  void tell_of_lost_memory(const policies::RestartScope& scope, policies::MemoryBacking backing);
  void end_attempts(const policies::Loss& cause, const policies::RestartScope& scope);
  policies::Loss stalled_loss(const policies::Stall& stall) const;
  bool agents_stay(const std::vector<policies::Loss>& losses) const;
  bool keeps_pods() const;
  bool ranks_run() const;
  PodUids without_ranks() const;
  void tell_whether_running();
  bool was_running() const;
  void resize(int64_t target, std::string_view reason, bool requested);

  // What the generation has lost (plan_losses.cc).
  std::vector<policies::Loss> find_losses(const policies::Gang& gang);
  std::optional<Duration> time_to_save(const ObservedPod& pod,
                                       const policies::MembersByPod& told) const;
  void add_failed_ranks(const policies::MembersByPod& told,
                        std::vector<policies::Loss>& losses) const;
  bool ended_too_early(const ObservedPod& pod) const;
  policies::Loss judge_missing(int index, const ObservedPod* last) const;
  void add_reported(std::vector<policies::Loss>& losses) const;
  void add_late(const std::vector<const ObservedPod*>& alive, policies::Liveness& liveness) const;
  void add_silent(std::vector<policies::Loss>& losses);
  void add_mixed_builds(std::vector<policies::Loss>& losses) const;
  bool may_wait_for_root_cause(const std::vector<policies::Loss>& losses);
  bool more_nodes_may_be_lost(const std::vector<policies::Loss>& losses) const;

  // Spares (plan_spares.cc).
  void promote_spares(const std::vector<policies::Loss>& losses);
  bool may_be_promoted(const ObservedPod& spare) const;
  std::vector<api::Promotion> promotions_that_last(const policies::RestartScope& scope) const;
  void keep_spares();
  void drop_lost_spares();
  void park_new_spares();
  void create_parked();
  void give_up_spares();
  bool spares_are_exhausted();

  policies::Gang look_at_gang() const {
    return policies::look_at_gang(sets_.members, next_.nodes.target, sets_.completed);
  }
  void sort() { sets_ = sort_pods(observed_.pods, spec_, next_); }
  void set(api::ConditionType type, api::ConditionStatus status, std::string_view reason,
           const std::string& message) {
    set_condition(next_, {type, status, reason, message}, now_);
  }
  void look_in(std::optional<Duration> wait) {
    if (!wait) return;
    const Duration bounded = std::max<Duration>(*wait, std::chrono::milliseconds(1));
    plan_.requeue_after = std::min(plan_.requeue_after.value_or(Duration::max()), bounded);
  }
  void tell(EventType type, std::string reason, const std::string& message) {
    plan_.events.push_back(
        {type, std::move(reason), bounded_text(message, api::kMaxNewestAttemptMessage)});
  }
  bool facts_are_current() const {
    return observed_.facts.hosted && observed_.facts.generation == next_.membership.generation;
  }
  /// The newest step that the present generation is known to have done, or went on from; nullopt
  /// before it had a state.
  std::optional<int64_t> last_step() const;
  void end_attempt(const policies::Loss* cause, const std::string& reason, bool requested = false);
  bool any_not_gone() const {
    return std::any_of(observed_.pods.begin(), observed_.pods.end(),
                       [](const ObservedPod& pod) { return !is_finished(pod); });
  }

  const Observed& observed_;
  const api::TrainingJobSpec& spec_;
  const Time now_;
  api::TrainingJobStatus next_;
  PodSets sets_;
  bool recovers_ = false;  ///< from a status that somebody has emptied or changed
  bool ahead_ = false;     ///< next_ holds a decision: it is written before it is carried out
  std::optional<goodput::Close> close_;  ///< of the generation that was observed
  bool truce_ = false;                   ///< too many streams went silent at once to blame a member
  bool waits_ = false;                   ///< members that are lost wait for others that may be
  Plan plan_;
};

}  // namespace trainyard::control
