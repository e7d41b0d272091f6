#include "operator/cluster/scope.h"

#include <set>
#include <utility>

#include "operator/render/names.h"

namespace trainyard::cluster {
namespace {

std::vector<std::string> unless_empty(const std::string& value) {
  if (value.empty()) return {};
  return {value};
}

control::JobKey key_of(const JobView& job) { return {job.meta.ns, job.meta.name}; }
control::JobKey key_of(const PodView& pod) { return {pod.meta.ns, pod.job_name}; }

cache::Reflector::Options reflector_options(const ScopeContext& context, const Watched& watched) {
  cache::Reflector::Options options;
  options.resource = watched.resource;
  options.ns = watched.ns;
  options.label_selector = watched.label_selector;
  options.right = watched.right;
  options.random = context.random;
  return options;
}

}  // namespace

Watching::Watching(const ScopeContext& context, cache::Sink& sink, const Watched& watched)
    : runner_(*context.runner),
      reflector_(*context.client, sink, *context.clock, *context.logger,
                 reflector_options(context, watched)) {}

Scope::Scope(const ScopeContext& context, const std::string& ns)
    : context_(context),
      ns_(ns),
      jobs_(view_of_job, {}, job_handler()),
      pods_(view_of_pod,
            {{kPodsByJob, [](const PodView& pod) { return unless_empty(pod.job_uid); }},
             {kPodsByNode, [](const PodView& pod) { return unless_empty(pod.seen.node); }}},
            pod_handler()),
      job_watching_(context, jobs_, {.resource = kube::kTrainingJobs, .ns = ns}),
      pod_watching_(context, pods_,
                    {.resource = kube::kPods, .ns = ns, .label_selector = render::kLabelJobName}) {}

cache::Handler<JobView> Scope::job_handler() {
  using Job = cache::Handler<JobView>::Object;
  cache::Handler<JobView> handler;
  handler.added = [this](const Job& job) { context_.changed(key_of(*job)); };
  handler.updated = [this](const Job&, const Job& job) { context_.changed(key_of(*job)); };
  handler.removed = [this](const Job& job) {
    context_.own_writes->shows_no_more(*job);
    context_.changed(key_of(*job));
    context_.job_gone(job->meta.uid);
  };
  handler.listed = [this](MonoTime started) { context_.own_writes->lists_jobs(started); };
  handler.refused = [this](const std::string& key, const Error& error) {
    context_.logger->warning("TrainingJob cannot be read",
                             {{"job", key}, {"error", error.message}});
  };
  return handler;
}

cache::Handler<PodView> Scope::pod_handler() {
  using Pod = cache::Handler<PodView>::Object;
  cache::Handler<PodView> handler;
  handler.added = [this](const Pod& pod) {
    context_.own_writes->shows(*pod);
    context_.changed(key_of(*pod));
  };
  handler.updated = [this](const Pod& before, const Pod& pod) {
    context_.own_writes->shows(*pod);
    if (!same_to_plan(*before, *pod)) context_.changed(key_of(*pod));
  };
  handler.removed = [this](const Pod& pod) {
    context_.own_writes->shows_no_more(*pod);
    context_.changed(key_of(*pod));
  };
  handler.listed = [this](MonoTime started) {
    const std::set<std::string> lacking = context_.own_writes->lists_pods(started);
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
