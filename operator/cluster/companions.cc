#include "operator/cluster/companions.h"

#include <chrono>
#include <utility>

#include <nlohmann/json.hpp>

#include "operator/cluster/members.h"
#include "operator/cluster/refusals.h"
#include "operator/cluster/standing.h"
#include "operator/cluster/views.h"
#include "operator/render/companions.h"
#include "operator/render/environment.h"
#include "operator/render/names.h"

namespace trainyard::cluster {
namespace {

using nlohmann::json;

/// For what has the name to go, which nothing tells of.
constexpr std::chrono::seconds kLateBudgetPause{5};
constexpr std::chrono::seconds kLossPause{1};

kube::ObjectName name_of(const api::ObjectMeta& job) {
  return {job.namespace_name, render::service_name(job)};
}

std::string uid_of(const json& object) {
  const auto meta = cache::read_meta(object);
  return meta ? meta->uid : std::string();
}

/// The object as it was read. By its UID alone a request of a leader of yesterday that arrives late
/// would undo what the leader of today has made of it, who would not look again.
kube::Preconditions unchanged(const json& object) {
  const auto meta = cache::read_meta(object);
  return meta ? kube::Preconditions{meta->uid, meta->resource_version} : kube::Preconditions{};
}

/// Whether the object belonged to a job that had this job's name: as it has the name now, that one
/// is gone. A garbage collector that does not know the kind TrainingJob yet (the custom resource
/// definition is young: it looks every 30 s) or that lags leaves such objects for a while. One that
/// was orphaned on purpose names no owner.
bool is_left_by_namesake(const json& object, const api::ObjectMeta& job) {
  const std::string owner = controlling_job(object);
  if (owner.empty() || owner == job.uid) return false;
  for (const json& reference : object["metadata"]["ownerReferences"]) {
    if (reference.value("uid", "") == owner) return reference.value("name", "") == job.name;
  }
  return false;
}

}  // namespace

Companions::Companions(const kube::Client& client, Logger& logger,
                       std::function<std::string()> authorities)
    : client_(client), logger_(logger), authorities_(std::move(authorities)) {}

Companions::Kept Companions::recall(const std::string& job_uid) {
  const std::lock_guard lock(mutex_);
  Kept& kept = kept_[job_uid];
  const auto lost = lost_.find(job_uid);
  if (lost == lost_.end()) return kept;
  if (lost->second.service) kept.generation = 0;
  if (lost->second.budget && kept.budgeted > 0) kept.budgeted = kUnknown;
  lost_.erase(lost);
  return kept;
}

bool Companions::lost(const kube::Resource& resource, const std::string& job_uid) {
  const std::lock_guard lock(mutex_);
  const auto kept = kept_.find(job_uid);
  if (kept == kept_.end()) return false;  // whoever looks first finds out
  // What this process itself takes away is known when the job is looked at next; so is whether one
  // that is being made was meant.
  Lost& lost = lost_[job_uid];
  (resource.plural == kube::kServices.plural ? lost.service : lost.budget) = true;
  return lost.matters_to(kept->second);
}

void Companions::remember(const std::string& job_uid, const Kept& kept) {
  const std::lock_guard lock(mutex_);
  kept_[job_uid] = kept;
}

std::optional<Duration> Companions::due_in(const std::string& job_uid) {
  const std::lock_guard lock(mutex_);
  const auto kept = kept_.find(job_uid);
  if (kept == kept_.end()) return std::nullopt;
  const auto lost = lost_.find(job_uid);
  if (lost != lost_.end() && lost->second.matters_to(kept->second)) return kLossPause;
  if (kept->second.budget_is_late) return kLateBudgetPause;
  return std::nullopt;
}

void Companions::forget(const std::string& job_uid) {
  const std::lock_guard lock(mutex_);
  kept_.erase(job_uid);
  lost_.erase(job_uid);
}

Result<std::optional<control::Refusal>> Companions::keep(const api::ObjectMeta& job,
                                                         const api::TrainingJobSpec& spec,
                                                         const api::TrainingJobStatus& status) {
  std::optional<control::Refusal> refusal;
  const int64_t generation = status.membership.generation;
  if (generation == 0) return refusal;
  Kept kept = recall(job.uid);
  if (generation < kept.generation) return refusal;  // an old view
  const bool over = is_over(status);
  const Before before = stand_already(status) ? Before::kThere : Before::kUnknown;
  if (!over) {
    TRAINYARD_ASSIGN(refusal, keep_objects(job, spec, generation, before, kept));
    if (refusal) return refusal;
  }
  if (!over && render::runs_agent(spec)) {
    TRAINYARD_ASSIGN(refusal, keep_authorities(job, before, kept));
    remember(job.uid, kept);
    if (refusal) return refusal;
  }
  const bool budgeted = !over && status.nodes.target > 1;
  // A job of one node never had any, nor had a gang that was never whole; of another one it is to
  // be found out. So it is at the end of such a gang: a new leader may see it first as it was
  // before its predecessor made the budget.
  const bool gathers = budgeted && before == Before::kUnknown;
  if (kept.budgeted == kUnknown && (spec.num_nodes <= 1 || gathers)) {
    kept.budgeted = 0;
    kept.presumed_none = gathers;
  }
  // Before the gang is up a budget would protect nothing, as it lets pods go that are not ready;
  // but the disruption controller would write its status for every pod that becomes ready, which is
  // much of what the start of a large gang costs the API server.
  const bool starting = kept.budgeted == 0 && status.nodes.ready < status.nodes.target;
  if (budgeted && starting) {
    remember(job.uid, kept);
    return refusal;
  }
  TRAINYARD_TRY(keep_budget(job, budgeted ? status.nodes.target : 0, before, kept));
  remember(job.uid, kept);
  return refusal;
}

/// Service and engine's configuration. A generation's pods are made of the newest spec, which may
/// change while it waits (for its back-off, say); a changed engine is an object of another name.
Result<std::optional<control::Refusal>> Companions::keep_objects(const api::ObjectMeta& job,
                                                                 const api::TrainingJobSpec& spec,
                                                                 int64_t generation, Before before,
                                                                 Kept& kept) {
  const bool same_generation = kept.generation == generation;
  if (same_generation && kept.spec == job.generation) return std::optional<control::Refusal>();
  Ensured ensured;
  if (!same_generation) {
    TRAINYARD_ASSIGN(ensured,
                     ensure(kube::kServices, render::render_service(job, spec), job, before));
    if (ensured.refusal && spec.num_nodes > 1) add_foreign_budget(job, *ensured.refusal);
  }
  if (!ensured.refusal && spec.engine) {
    TRAINYARD_ASSIGN(
        ensured, ensure(kube::kConfigMaps, render::render_engine_config(job, spec), job, before));
  }
  if (ensured.refusal) return std::move(ensured.refusal);
  kept.generation = generation;
  kept.spec = job.generation;
  remember(job.uid, kept);
  return std::optional<control::Refusal>();
}

/// Makes the object unless the job has it; somebody else's object of the name is a refusal, but
/// what a deleted job of the same name has left makes room. What is thought to stand is looked for
/// first: a creation that is refused is a write that the server has worked on.
Result<Companions::Ensured> Companions::ensure(const kube::Resource& resource, const json& object,
                                               const api::ObjectMeta& job, Before before) {
  const json& metadata = object["metadata"];
  const kube::ObjectName name{metadata["namespace"], metadata["name"]};
  const std::string what = std::string(resource.kind) + " " + name.name;
  if (before == Before::kThere) {
    auto found = client_.get(resource, name);
    if (found) return settle(resource, name, object, *std::move(found), job);
    if (found.error().reason != kube::Reason::kNotFound) {
      return found.error().to_error("get " + what);
    }
  }
  auto made = client_.create(resource, name.ns, object);
  if (made) return Ensured{std::nullopt, *std::move(made)};
  if (made.error().reason != kube::Reason::kAlreadyExists) {
    std::optional<control::Refusal> refusal = refusal_of(made.error());
    if (!refusal) return made.error().to_error("create " + what);
    refusal->reason = api::reason::kAdmissionRefused;
    return Ensured{std::move(refusal), {}};
  }
  auto found = client_.get(resource, name);
  if (!found) return found.error().to_error("get " + what);
  return settle(resource, name, object, *std::move(found), job);
}

/// What stands under the name is the job's, or goes, or is in the way.
Result<Companions::Ensured> Companions::settle(const kube::Resource& resource,
                                               const kube::ObjectName& name, const json& object,
                                               json found, const api::ObjectMeta& job) {
  const std::string what = std::string(resource.kind) + " " + name.name;
  if (controlling_job(found) == job.uid) return Ensured{std::nullopt, std::move(found)};
  if (!is_left_by_namesake(found, job)) {
    return Ensured{
        control::Refusal{api::reason::kNameConflict,
                         what + " exists and is not this job's; delete it or rename the job"},
        {}};
  }
  TRAINYARD_TRY(remove_leftover(resource, name, found));
  auto again = client_.create(resource, name.ns, object);
  if (again) return Ensured{std::nullopt, *std::move(again)};
  if (again.error().reason != kube::Reason::kAlreadyExists) {
    return again.error().to_error("create " + what);
  }
  return Ensured{
      control::Refusal{
          api::reason::kNameConflict,
          what +
              " still belongs to a deleted job of the same name, which a finalizer holds; waiting",
          true},
      {}};
}

/// A job may leave both behind (`kubectl delete --cascade=orphan`). The budget is in nobody's way
/// until the gang is up, which would then go without one: so it is told of while somebody cleans
/// up.
void Companions::add_foreign_budget(const api::ObjectMeta& job, control::Refusal& refusal) const {
  if (refusal.reason != api::reason::kNameConflict || refusal.passing) return;
  const auto found = client_.get(kube::kPodDisruptionBudgets, name_of(job));
  if (!found || controlling_job(*found) == job.uid || is_left_by_namesake(*found, job)) return;
  const std::string name = name_of(job).name;
  refusal.message = "Service " + name + " and PodDisruptionBudget " + name +
                    " exist and are not this job's; delete both or rename the job";
}

/// They may change while pods run: what is mounted follows within a minute or two.
Result<std::optional<control::Refusal>> Companions::keep_authorities(const api::ObjectMeta& job,
                                                                     Before before, Kept& kept) {
  using Reply = std::optional<control::Refusal>;
  const std::string authorities = authorities_ ? authorities_() : std::string();
  if (authorities == kept.authorities && !authorities.empty()) return Reply();
  if (authorities.empty()) {
    if (!kept.authorities.empty()) return Reply();
    return Reply(control::Refusal{api::reason::kAdmissionRefused,
                                  "the operator does not serve the control stream yet, which the "
                                  "ranks need to meet; its log says why",
                                  true});
  }
  const json wanted = render::render_control_config(job, authorities);
  if (!kept.authorities.empty()) before = Before::kThere;
  TRAINYARD_ASSIGN(const Ensured ensured, ensure(kube::kConfigMaps, wanted, job, before));
  if (ensured.refusal) return ensured.refusal;
  if (at(ensured.object, "data") != wanted["data"]) {
    const kube::ObjectName name{job.namespace_name, render::control_config_name(job)};
    const auto patched = client_.merge_patch(kube::kConfigMaps, name, {{"data", wanted["data"]}},
                                             unchanged(ensured.object));
    if (!patched) return patched.error().to_error("patch ConfigMap " + name.name);
  }
  kept.authorities = authorities;
  return Reply();
}

Status Companions::remove_leftover(const kube::Resource& resource, const kube::ObjectName& name,
                                   const json& object) {
  const auto removed = client_.remove(resource, name, {.preconditions = {.uid = uid_of(object)}});
  const bool gone = removed || removed.error().reason == kube::Reason::kNotFound ||
                    removed.error().reason == kube::Reason::kConflict;
  if (!gone) {
    return removed.error().to_error("delete " + std::string(resource.kind) + " " + name.name);
  }
  logger_.info("removed an object that a deleted job of the same name left behind",
               {{"namespace", name.ns}, {"name", name.name}, {"resource", resource.plural}});
  return {};
}

/// A budget protects from evictions; a cluster that does not take it still runs the job.
Status Companions::keep_budget(const api::ObjectMeta& job, int64_t members, Before before,
                               Kept& kept) {
  if (members == 0) kept.budget_is_late = false;
  if (kept.budgeted == members && !kept.presumed_none) return {};
  kept.presumed_none = false;
  if (members == 0) {
    TRAINYARD_TRY(remove_budget(job));
    kept.budgeted = 0;
    return {};
  }
  // Where there was none, a gang of one or a suspended one had none.
  const bool there = kept.budgeted == kUnknown ? before == Before::kThere : kept.budgeted > 0;
  TRAINYARD_ASSIGN(const bool settled,
                   there ? settle_budget(job, members) : make_budget(job, members));
  if (settled) kept.budgeted = members;
  kept.budget_is_late = !settled;
  return {};
}

Result<bool> Companions::make_budget(const api::ObjectMeta& job, int64_t members) {
  TRAINYARD_ASSIGN(const bool made, put_budget(job, members));
  return made ? Result<bool>(true) : settle_budget(job, members);
}

/// False: there is one of the name.
Result<bool> Companions::put_budget(const api::ObjectMeta& job, int64_t members) {
  const auto made = client_.create(kube::kPodDisruptionBudgets, job.namespace_name,
                                   render::render_disruption_budget(job, members));
  if (made) return true;
  if (made.error().reason == kube::Reason::kAlreadyExists) return false;
  const Error error = made.error().to_error("create PodDisruptionBudget " + job.name);
  if (!refusal_of(made.error())) return error;
  logger_.warning("disruption budget refused",
                  {{"namespace", job.namespace_name}, {"job", job.name}, {"error", error.message}});
  return true;
}

/// One that should be there. Where it has gone meanwhile there is another try.
Result<bool> Companions::settle_budget(const api::ObjectMeta& job, int64_t members) {
  const kube::ObjectName name = name_of(job);
  const auto found = client_.get(kube::kPodDisruptionBudgets, name);
  if (found) return adjust_budget(job, *found, members);
  if (found.error().reason != kube::Reason::kNotFound) {
    return found.error().to_error("get PodDisruptionBudget " + name.name);
  }
  return put_budget(job, members);
}

Result<bool> Companions::adjust_budget(const api::ObjectMeta& job, const json& budget,
                                       int64_t members) {
  const kube::ObjectName name = name_of(job);
  if (is_left_by_namesake(budget, job)) {
    TRAINYARD_TRY(remove_leftover(kube::kPodDisruptionBudgets, name, budget));
    return put_budget(job, members);
  }
  if (controlling_job(budget) != job.uid) {
    logger_.warning("disruption budget belongs to another owner",
                    {{"namespace", name.ns}, {"name", name.name}});
    return true;
  }
  if (at(at(budget, "spec"), "minAvailable") == members - 1) return true;
  const auto patched =
      client_.merge_patch(kube::kPodDisruptionBudgets, name,
                          {{"spec", {{"minAvailable", members - 1}}}}, unchanged(budget));
  if (!patched) return patched.error().to_error("patch PodDisruptionBudget " + name.name);
  return true;
}

Status Companions::remove_budget(const api::ObjectMeta& job) {
  const kube::ObjectName name = name_of(job);
  const auto found = client_.get(kube::kPodDisruptionBudgets, name);
  if (!found && found.error().reason == kube::Reason::kNotFound) return {};
  if (!found) return found.error().to_error("get PodDisruptionBudget " + name.name);
  if (controlling_job(*found) != job.uid) return {};
  const auto removed =
      client_.remove(kube::kPodDisruptionBudgets, name, {.preconditions = unchanged(*found)});
  if (removed || removed.error().reason == kube::Reason::kNotFound) return {};
  return removed.error().to_error("delete PodDisruptionBudget " + name.name);
}

}  // namespace trainyard::cluster
