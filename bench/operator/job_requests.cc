#include "bench/operator/job_requests.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "common/api/encode.h"
#include "common/text/rfc3339.h"
#include "control/plan.h"
#include "operator/cluster/views.h"
#include "operator/kube/resource.h"
#include "operator/render/companions.h"
#include "operator/render/pod.h"

namespace trainyard::bench {
namespace {

using nlohmann::json;

kube::Request post(const kube::Resource& resource, const std::string& ns, const json& object) {
  return {.method = kube::Method::kPost,
          .path = kube::collection_path(resource, ns),
          .query = {},
          .body = object.dump(),
          .content_type = "application/json"};
}

kube::Request post_event(const api::ObjectMeta& job, const std::string& id,
                         const std::string& reason, Time now) {
  const json event = {
      {"metadata", {{"name", job.name + "." + id}, {"namespace", job.namespace_name}}},
      {"eventTime", text::format_micro_time(now)},
      {"reportingController", "operator_loop"},
      {"reportingInstance", "operator_loop"},
      {"action", "Reconcile"},
      {"type", "Normal"},
      {"reason", reason},
      {"note", "as many as the operator tells of a job that comes to run"},
      {"regarding",
       {{"apiVersion", api::kApiVersion},
        {"kind", api::kKind},
        {"namespace", job.namespace_name},
        {"name", job.name},
        {"uid", job.uid}}}};
  return post(kube::kEvents, job.namespace_name, event);
}

}  // namespace

Result<JobRequests> requests_of(const json& job, Time now) {
  TRAINYARD_ASSIGN(cluster::JobView view, cluster::view_of_job(job));
  view.job.spec.managed_by.clear();
  control::Observed observed;
  observed.key = {view.meta.ns, view.meta.name};
  observed.metadata = view.job.metadata;
  observed.spec = view.job.spec;
  observed.status = view.job.status;
  observed.spec_faults = view.faults;
  const control::Plan plan = control::plan(observed, now);
  if (!plan.intent || plan.create.empty()) {
    return Error{ErrorCode::kInvalidData,
                 "TrainingJob " + view.meta.name + ": found one that is not to be begun (" +
                     (view.faults.empty() ? "it has a status" : view.faults.front()) +
                     "), wanted a new and valid one"};
  }
  const api::ObjectMeta& metadata = view.job.metadata;
  JobRequests made;
  made.name = metadata.name;
  made.path = kube::object_path(kube::kTrainingJobs, {view.meta.ns, view.meta.name}, "status");
  made.metadata_head = R"({"apiVersion":")" + std::string(api::kApiVersion) + R"(","kind":")" +
                       api::kKind + R"(","metadata":{"name":")" + metadata.name +
                       R"(","namespace":")" + view.meta.ns + R"(","uid":")" + view.meta.uid +
                       R"(","resourceVersion":")";
  made.status_tail = R"("},"status":)" + api::encode_status(*plan.intent) + "}";
  made.resource_version = view.meta.resource_version;
  made.before.push_back(
      post(kube::kServices, view.meta.ns, render::render_service(metadata, view.job.spec)));
  made.before.push_back(post_event(metadata, "started", "Started", now));
  made.pods.reserve(plan.create.size());
  for (const control::PodSpec& pod : plan.create) {
    made.pods.push_back(
        post(kube::kPods, view.meta.ns, render::render_pod(metadata, view.job.spec, pod, {})));
  }
  made.after.push_back(post(kube::kPodDisruptionBudgets, view.meta.ns,
                            render::render_disruption_budget(metadata, view.job.spec.num_nodes)));
  made.after.push_back(post_event(metadata, "running", "Running", now));
  return made;
}

kube::Request status_request(const JobRequests& job) {
  return {.method = kube::Method::kPut,
          .path = job.path,
          .query = {},
          .body = job.metadata_head + job.resource_version + job.status_tail,
          .content_type = "application/json"};
}

}  // namespace trainyard::bench
