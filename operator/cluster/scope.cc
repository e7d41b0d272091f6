#include "operator/cluster/scope.h"

#include <set>
#include <utility>

#include "operator/cluster/standing.h"
#include "operator/render/names.h"

namespace trainyard::cluster {
namespace {

std::vector<std::string> unless_empty(const std::string& value) {
  if (value.empty()) return {};
  return {value};
}

control::JobKey key_of(const JobView& job) { return {job.meta.ns, job.meta.name}; }
control::JobKey key_of(const PodView& pod) { return {pod.meta.ns, pod.job_name}; }
control::JobKey key_of(const CompanionView& companion) {
  return {companion.meta.ns, companion.job_name};
}

cache::Reflector::Options reflector_options(const ScopeContext& context, const Watched& watched) {
  cache::Reflector::Options options;
  options.resource = watched.resource;
  options.ns = watched.ns;
  options.label_selector = watched.label_selector;
  options.right = watched.right;
  options.parts = watched.parts;
  options.random = context.random;
  return options;
}

}  // namespace

Watching::Watching(const ScopeContext& context, cache::Sink& sink, const Watched& watched)
    : runner_(*context.runner),
      reflector_(*context.client, sink, *context.clock, *context.logger,
                 reflector_options(context, watched)) {}

Beside::Beside(const ScopeContext& context, const std::string& ns, const kube::Resource& resource,
               const cache::Store<JobView>& jobs)
    : context_(context),
      resource_(resource),
      jobs_(jobs),
      objects_(view_of_companion, {}, handler()),
      watching_(context, objects_,
                {.resource = resource,
                 .ns = ns,
                 .label_selector = render::kLabelJobName,
                 .right = cache::Right::kWelcome,
                 .parts = kube::Parts::kMetadata}) {}

cache::Handler<CompanionView> Beside::handler() {
  cache::Handler<CompanionView> handler;
  handler.removed = [this](const cache::Handler<CompanionView>::Object& object) {
    context_.companion_gone(resource_, key_of(*object), object->job_uid);
  };
  handler.listed = [this](MonoTime) {
    // What was made and taken away between two lists is in no event.
    std::set<std::string> shown;
    for (const auto& object : objects_.all())
      shown.insert(object->job_uid);
    for (const auto& job : jobs_.all()) {
      if (!shown.contains(job->meta.uid)) {
        context_.companion_gone(resource_, key_of(*job), job->meta.uid);
      }
    }
  };
  return handler;
}

Scope::Scope(const ScopeContext& context, const std::string& ns)
    : context_(context),
      ns_(ns),
      own_writes_(*context.clock),
      jobs_(view_of_job, {}, job_handler()),
      pods_(view_of_pod,
            {{kPodsByJob, [](const PodView& pod) { return unless_empty(pod.job_uid); }},
             {kPodsByNode, [](const PodView& pod) { return unless_empty(pod.seen.node); }}},
            pod_handler()),
      job_watching_(context, jobs_, {.resource = kube::kTrainingJobs, .ns = ns}),
      pod_watching_(context, pods_,
                    {.resource = kube::kPods, .ns = ns, .label_selector = render::kLabelJobName}),
      beside_{Beside(context, ns, kube::kServices, jobs_),
              Beside(context, ns, kube::kEndpointSlices, jobs_),
              Beside(context, ns, kube::kPodDisruptionBudgets, jobs_)} {}

std::vector<Watching*> Scope::watchings() {
  std::vector<Watching*> all{&job_watching_, &pod_watching_};
  for (Beside& beside : beside_)
    all.push_back(&beside.watching());
  return all;
}

cache::Handler<JobView> Scope::job_handler() {
  using Job = cache::Handler<JobView>::Object;
  cache::Handler<JobView> handler;
  handler.added = [this](const Job& job) { context_.changed(key_of(*job)); };
  handler.updated = [this](const Job&, const Job& job) { context_.changed(key_of(*job)); };
  handler.removed = [this](const Job& job) {
    own_writes_.shows_no_more(*job);
    context_.job_gone(*job);
    context_.changed(key_of(*job));
  };
  handler.listed = [this](MonoTime started) { own_writes_.lists_jobs(started); };
  handler.refused = [this](const std::string& key, const Error& error) {
    context_.logger->warning("TrainingJob cannot be read",
                             {{"job", key}, {"error", error.message}});
  };
  return handler;
}

/// Of a job that goes on: what it has lost.
void Scope::note_gone(const PodView& pod) const {
  if (!pod.seen.member) return;
  const auto job = jobs_.find(cache::key_of(pod.meta.ns, pod.job_name));
  if (!job || job->meta.uid != pod.job_uid || is_over(job->job.status)) return;
  context_.gone_pods->went(pod.job_uid, pod.seen);
}

cache::Handler<PodView> Scope::pod_handler() {
  using Pod = cache::Handler<PodView>::Object;
  cache::Handler<PodView> handler;
  handler.added = [this](const Pod& pod) {
    own_writes_.shows(*pod);
    context_.changed(key_of(*pod));
  };
  handler.updated = [this](const Pod& before, const Pod& pod) {
    own_writes_.shows(*pod);
    if (!same_to_plan(*before, *pod)) context_.changed(key_of(*pod));
  };
  handler.removed = [this](const Pod& pod) {
    own_writes_.shows_no_more(*pod);
    note_gone(*pod);
    context_.changed(key_of(*pod));
  };
  handler.listed = [this](MonoTime started) {
    context_.listed_pods->cache_listed(ns_, started);
    const std::set<std::string> lacking = own_writes_.lists_pods(started);
    if (lacking.empty()) return;
    // A pod that was made and went between two lists: the job counts on it, and no event comes.
    for (const auto& job : jobs_.all()) {
      if (lacking.contains(job->meta.uid)) context_.changed(key_of(*job));
    }
  };
  handler.refused = [this](const std::string& key, const Error& error) {
    context_.logger->warning("pod cannot be read", {{"pod", key}, {"error", error.message}});
  };
  return handler;
}

}  // namespace trainyard::cluster
