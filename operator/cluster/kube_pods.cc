#include <vector>

#include <nlohmann/json.hpp>

#include "control/membership.h"
#include "operator/cluster/kube_cluster_impl.h"
#include "operator/cluster/refusals.h"
#include "operator/cluster/storage.h"
#include "operator/render/names.h"
#include "operator/render/pod.h"

namespace trainyard::cluster {
namespace {

using control::CreateReply;
using nlohmann::json;

/// The pod that the job's spec makes, whatever the job is called.
std::string shape_of(const api::TrainingJob& job, const render::PodDefaults& defaults) {
  api::ObjectMeta nobody;
  nobody.name = "job";
  nobody.namespace_name = job.metadata.namespace_name;
  return render::render_pod(nobody, job.spec, control::make_pod_spec(nobody, job.spec, 0, 1, 1),
                            defaults)
      .dump();
}

/// Whether the spec was edited since that pod was planned, so that it would be made from another
/// configuration than the others of its gang.
bool is_edited(const api::TrainingJob& job, const control::PodSpec& pod) {
  if (pod.configuration.empty() || job.metadata.generation == pod.spec_generation) return false;
  return control::configuration_of(job.spec) != pod.configuration;
}

std::string called(const char* verb, const std::string& ns, const std::string& name) {
  return std::string(verb) + " pod " + ns + "/" + name;
}

}  // namespace

/// The newest state, by the label that every pod of ours carries and by the owner that decides.
Result<std::vector<control::ObservedPod>> KubeCluster::Impl::list_pods(
    const control::Observed& observed) {
  kube::ListOptions options;
  options.label_selector = std::string(render::kLabelJobUid) + "=" + observed.metadata.uid;
  ListedPods::List list{.ns = observed.key.namespace_name, .asked = options_.clock->mono()};
  std::vector<control::ObservedPod> pods;
  do {
    const auto page = options_.client->list(kube::kPods, observed.key.namespace_name, options);
    if (!page) return page.error().to_error("list the pods of TrainingJob " + observed.key.name);
    for (const json& object : page->items) {
      TRAINYARD_ASSIGN(PodView view, view_of_pod(object));
      if (view.job_uid != observed.metadata.uid) continue;
      look_at_node(view.seen);
      pods.push_back(std::move(view.seen));
    }
    if (list.version.empty()) list.version = page->resource_version;
    options.next = page->next;
  } while (!options.next.empty());
  list.pods = std::make_shared<const std::vector<control::ObservedPod>>(pods);
  listed_pods_.keep(observed.metadata.uid, std::move(list));
  return pods;
}

/// Whether all of the job's pods will be able to write to its checkpoints. A claim that is not
/// there (yet), or that may not be looked at, is the scheduler's to judge.
Result<std::optional<control::Refusal>> KubeCluster::Impl::try_storage(
    const std::string& ns, const api::TrainingJobSpec& spec) const {
  using Reply = std::optional<control::Refusal>;
  if (!needs_shared_storage(spec)) return Reply();
  const std::string& name = spec.checkpoint_policy.storage->persistent_volume_claim.claim_name;
  const auto claim = options_.client->get(kube::kPersistentVolumeClaims, {ns, name});
  if (claim) return judge_claim(*claim, spec);
  const kube::Reason why = claim.error().reason;
  if (why == kube::Reason::kNotFound || why == kube::Reason::kForbidden) return Reply();
  return claim.error().to_error("get PersistentVolumeClaim " + ns + "/" + name);
}

/// Whether the server would take the pod: its schema, strictly, and everything that admits pods.
/// What was asked a moment ago of another job's pod of the same shape is not asked again.
Result<std::optional<control::Refusal>> KubeCluster::Impl::try_pod(const control::PodSpec& spec) {
  using Reply = std::optional<control::Refusal>;
  const control::JobKey key{spec.namespace_name, spec.job_name};
  const Job job = find_job(key);
  if (!job || job->meta.uid != spec.job_uid) {
    return Error{ErrorCode::kConflict, "TrainingJob " + key.name + " is another one by now"};
  }
  const PacedCalls::Precedence first = calls_.precede(job->job.spec.num_nodes);
  TRAINYARD_ASSIGN(const Reply unshared, try_storage(spec.namespace_name, job->job.spec));
  if (unshared) return unshared;
  const std::string shape = shape_of(job->job, options_.pod_defaults);
  if (taken_pods_.has(spec.namespace_name, shape)) return Reply();
  const json pod =
      render::render_pod(job->job.metadata, job->job.spec, spec, options_.pod_defaults);
  const auto reply = options_.client->create(
      kube::kPods, spec.namespace_name, pod,
      {.dry_run = kube::DryRun::kServer, .field_validation = kube::FieldValidation::kStrict});
  // A taken name says nothing about the template; the creation will tell whose it is.
  if (reply) taken_pods_.add(spec.namespace_name, shape);
  if (reply || reply.error().reason == kube::Reason::kAlreadyExists) return Reply();
  Reply refusal = refusal_of(reply.error());
  if (!refusal) return reply.error().to_error(called("try", spec.namespace_name, spec.name));
  if (!job->job.spec.pod_template) return refusal;
  const std::string& pod_template = job->job.spec.pod_template->json;
  name_indexes(pod, json::parse(pod_template, nullptr, /*allow_exceptions=*/false), *refusal);
  name_quantity(pod_template, *refusal);
  return refusal;
}

Result<CreateReply> KubeCluster::Impl::create_pod(const control::PodSpec& spec) {
  const Job job = find_job({spec.namespace_name, spec.job_name});
  // Of a job that is not there any more nothing is made; but its name may be held.
  if (!job || job->meta.uid != spec.job_uid) return look_at_holder(spec);
  if (is_edited(job->job, spec)) {
    return Error{ErrorCode::kConflict,
                 "TrainingJob " + spec.job_name + " was edited before its pods were made"};
  }
  const json pod =
      render::render_pod(job->job.metadata, job->job.spec, spec, options_.pod_defaults);
  own_writes(spec.namespace_name).creating(spec);
  const auto reply = options_.client->create(kube::kPods, spec.namespace_name, pod);
  if (reply) {
    TRAINYARD_ASSIGN(const cache::Meta meta, cache::read_meta(*reply));
    own_writes(spec.namespace_name).created(spec, meta.uid);
    forget_if_gone({spec.namespace_name, spec.job_name}, spec.job_uid);
    return CreateReply{CreateReply::Outcome::kCreated, meta.uid, {}, {}};
  }
  const kube::ApiError& error = reply.error();
  if (error.reason == kube::Reason::kAlreadyExists) return look_at_holder(spec);
  // Without an answer it may have been made all the same: the expectation stands.
  if (error.reason != kube::Reason::kNoAnswer) own_writes(spec.namespace_name).not_created(spec);
  if (auto refusal = refusal_of(error)) {
    calls_.refused();
    taken_pods_.forget(spec.namespace_name);
    return CreateReply{CreateReply::Outcome::kRefused, {}, {}, std::move(refusal)};
  }
  return error.to_error(called("create", spec.namespace_name, spec.name));
}

/// The name is taken: ours and alive is as good as created, anything else a conflict.
Result<CreateReply> KubeCluster::Impl::look_at_holder(const control::PodSpec& spec) {
  const std::string what = called("get", spec.namespace_name, spec.name);
  const auto found = options_.client->get(kube::kPods, {spec.namespace_name, spec.name});
  if (!found) {
    own_writes(spec.namespace_name).not_created(spec);
    if (found.error().reason == kube::Reason::kNotFound) {
      return Error{ErrorCode::kUnavailable, what + ": the name was held a moment ago; try again"};
    }
    return found.error().to_error(what);
  }
  TRAINYARD_ASSIGN(const PodView holder, view_of_pod(*found));
  if (holder.job_uid == spec.job_uid && !holder.seen.terminating) {
    own_writes(spec.namespace_name).created(spec, holder.meta.uid);
    return CreateReply{CreateReply::Outcome::kExists, holder.meta.uid, {}, {}};
  }
  own_writes(spec.namespace_name).not_created(spec);
  return CreateReply{CreateReply::Outcome::kNameConflict, holder.meta.uid, holder.job_uid, {}};
}

/// What the server's answer to a change of `pod` means. Another object under the name is kConflict;
/// a 409 about this one, which changed while the server worked on it, is to be tried again.
Status KubeCluster::Impl::done(const control::PodRef& pod, const kube::ApiResult<json>& reply,
                               const std::string& what) const {
  if (reply) return {};
  Error error = reply.error().to_error(what);
  if (reply.error().reason != kube::Reason::kConflict) return error;
  const auto there = options_.client->get(kube::kPods, {pod.namespace_name, pod.name});
  if (!there) return there.error().to_error(what);
  TRAINYARD_ASSIGN(const PodView holder, view_of_pod(*there));
  if (holder.meta.uid == pod.uid) error.code = ErrorCode::kUnavailable;
  return error;
}

Status KubeCluster::Impl::delete_pod(const control::PodRef& pod, Duration grace) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(grace);
  const auto reply = options_.client->remove(
      kube::kPods, {pod.namespace_name, pod.name},
      {.preconditions = {.uid = pod.uid}, .grace_seconds = seconds.count()});
  TRAINYARD_TRY(done(pod, reply, called("delete", pod.namespace_name, pod.name)));
  own_writes(pod.namespace_name).deleted_pod(pod.uid);
  return {};
}

Status KubeCluster::Impl::remove_member_label(const control::PodRef& pod) {
  const auto reply = options_.client->merge_patch(
      kube::kPods, {pod.namespace_name, pod.name},
      {{"metadata", {{"labels", {{render::kLabelMember, nullptr}}}}}}, {.uid = pod.uid});
  TRAINYARD_TRY(done(pod, reply, called("patch", pod.namespace_name, pod.name)));
  own_writes(pod.namespace_name).unlabelled_pod(pod.uid);
  return {};
}

/// Not by its UID alone: whoever stood still would bring a pod back that another has condemned
/// since then.
Status KubeCluster::Impl::promote_pod(const control::PodRef& pod, int node_index) {
  const std::string what = called("promote", pod.namespace_name, pod.name);
  const auto found = options_.client->get(kube::kPods, {pod.namespace_name, pod.name});
  TRAINYARD_TRY(done(pod, found, what));
  TRAINYARD_ASSIGN(const PodView now, view_of_pod(*found));
  if (now.meta.uid != pod.uid) {
    return Error{ErrorCode::kConflict, what + ": the name is another pod's by now"};
  }
  if (now.seen.node_index >= 0 || now.seen.terminating) return {};
  const auto reply =
      options_.client->merge_patch(kube::kPods, {pod.namespace_name, pod.name},
                                   {{"metadata", {{"labels", render::member_labels(node_index)}}}},
                                   {.uid = pod.uid, .resource_version = now.meta.resource_version});
  TRAINYARD_TRY(done(pod, reply, what));
  own_writes(pod.namespace_name).promoted_pod(pod.uid, node_index);
  return {};
}

}  // namespace trainyard::cluster
