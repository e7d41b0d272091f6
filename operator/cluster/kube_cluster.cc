#include "operator/cluster/kube_cluster.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/api/encode.h"
#include "common/api/validate.h"
#include "operator/cluster/kube_cluster_impl.h"

namespace trainyard::cluster {
namespace {

using nlohmann::json;

constexpr char kEngineNotServed[] =
    "spec.engine: found an engine, wanted a template with your own program: this operator serves "
    "no control stream, which the engine's ranks need to meet (start the operator with "
    "--control-bind-address)";
constexpr char kAgentNotServed[] =
    "spec.numProcPerNode: more than 1 under agent: Auto, wanted agent: None and a launcher such as "
    "torchrun as the container's command: this operator puts no agent into pods (start the "
    "operator with --control-bind-address and --worker-image)";

/// What is valid, and not to be had in pods of this operator.
std::vector<std::string> not_in_pods(const api::TrainingJobSpec& spec,
                                     const render::PodDefaults& defaults) {
  const bool served = !defaults.control_address.empty();
  if (spec.engine && !served) return {kEngineNotServed};
  if (!api::needs_injected_agent(spec)) return {};
  if (!served || defaults.worker_image.empty()) return {kAgentNotServed};
  return {};
}

Error no_job(const control::JobKey& key) {
  return {ErrorCode::kNotFound, "no TrainingJob " + key.namespace_name + "/" + key.name};
}

}  // namespace

KubeCluster::Impl::Impl(Options options)
    : options_(std::move(options)),
      companions_(*options_.client, *options_.logger, options_.control_authorities),
      endpoints_(*options_.client, *options_.clock, *options_.logger,
                 [this](const control::Observed& observed) { return list_pods(observed); }),
      ledgers_(*options_.client, *options_.clock, *options_.logger),
      events_(*options_.client, *options_.clock, *options_.logger, options_.instance),
      taken_pods_(*options_.clock),
      context_{
          .client = options_.client,
          .clock = options_.clock,
          .logger = options_.logger,
          .listed_pods = &listed_pods_,
          .gone_pods = &gone_pods_,
          .runner = options_.runner != nullptr ? options_.runner : &threads_,
          .random = options_.random,
          .changed = [this](const control::JobKey& key) { changed(key); },
          .companion_gone = [this](const kube::Resource& resource, const control::JobKey& job,
                                   const std::string& uid) { companion_gone(resource, job, uid); },
          .job_gone = [this](const JobView& job) { job_gone(job); }},
      nodes_(view_of_node, {}, node_handler()),
      node_watching_(context_, nodes_,
                     {.resource = kube::kNodes, .right = cache::Right::kWelcome}) {
  for (const std::string& ns : options_.namespaces)
    scopes_.push_back(std::make_unique<Scope>(context_, ns));
  if (scopes_.empty()) scopes_.push_back(std::make_unique<Scope>(context_, ""));
}

KubeCluster::Impl::~Impl() {
  set_listener({});
  for (const auto& scope : scopes_) {
    for (Watching* watching : scope->watchings())
      watching->stop();
  }
  node_watching_.stop();
}

// ---- The caches --------------------------------------------------------------------------------

std::vector<Watching*> KubeCluster::Impl::watchings() {
  std::vector<Watching*> all;
  for (const auto& scope : scopes_) {
    for (Watching* watching : scope->watchings())
      all.push_back(watching);
  }
  all.push_back(&node_watching_);
  return all;
}

/// Nodes belong to no namespace: an operator that serves some may have no right to them.
/// Nothing where the server does not say.
std::optional<bool> KubeCluster::Impl::may_see_jobs(const std::string& ns) const {
  for (const kube::Resource& resource : {kube::kTrainingJobs, kube::kPods}) {
    const auto page = options_.client->list(resource, ns, {.limit = 1, .resource_version = "0"});
    if (page) continue;
    if (page.error().reason == kube::Reason::kForbidden) return false;
    return std::nullopt;
  }
  return true;
}

/// Of several namespaces one may have been deleted, and our rights with it: the jobs of the others
/// do not wait for it. Where none may be read there is nothing else to do than to wait.
void KubeCluster::Impl::await_readable_namespaces() {
  if (scopes_.size() < 2) return;
  std::vector<Scope*> unreadable;
  for (const auto& scope : scopes_) {
    const std::optional<bool> readable = may_see_jobs(scope->ns());
    if (!readable) return;
    if (!*readable) unreadable.push_back(scope.get());
  }
  if (unreadable.size() == scopes_.size()) return;
  for (Scope* scope : unreadable) {
    scope->do_not_await();
    options_.logger->error(
        "a namespace cannot be read and may no longer exist; its jobs are not served until it can "
        "be read",
        {{"namespace", scope->ns()}});
  }
}

void KubeCluster::Impl::start() {
  awaits_nodes_ = may_see_nodes();
  await_readable_namespaces();
  for (Watching* watching : watchings())
    watching->start();
}

Status KubeCluster::Impl::wait_synced(Duration limit, const std::stop_token& stop) {
  const MonoTime deadline = options_.clock->mono() + limit;
  const auto left = [&] { return std::max(deadline - options_.clock->mono(), Duration::zero()); };
  for (const auto& scope : scopes_) {
    if (!scope->is_awaited()) continue;
    TRAINYARD_TRY(scope->jobs().wait_synced(left(), stop, "TrainingJobs"));
    TRAINYARD_TRY(scope->pods().wait_synced(left(), stop, "pods"));
  }
  if (awaits_nodes_) TRAINYARD_TRY(nodes_.wait_synced(left(), stop, "nodes"));
  return {};
}

bool KubeCluster::Impl::synced() const {
  const bool scopes = std::all_of(scopes_.begin(), scopes_.end(), [](const auto& scope) {
    return scope->is_filled() || !scope->is_awaited();
  });
  return scopes && (!awaits_nodes_ || nodes_.synced());
}

CacheCounts KubeCluster::Impl::counts() {
  CacheCounts counts;
  for (const auto& scope : scopes_) {
    counts.jobs += static_cast<int64_t>(scope->jobs().size());
    counts.pods += static_cast<int64_t>(scope->pods().size());
  }
  counts.nodes = static_cast<int64_t>(nodes_.size());
  for (const Watching* watching : watchings()) {
    const cache::ReflectorReport report = watching->reflector().report();
    counts.lists += report.lists;
    counts.watches += report.watches;
  }
  return counts;
}

std::vector<control::JobKey> KubeCluster::Impl::jobs() const {
  std::vector<control::JobKey> keys;
  for (const auto& scope : scopes_) {
    for (const auto& job : scope->jobs().all())
      keys.push_back({job->meta.ns, job->meta.name});
  }
  if (ledgers_.waits()) keys.push_back(Ledgers::gone_jobs());
  return keys;
}

std::vector<std::shared_ptr<const api::TrainingJob>> KubeCluster::Impl::cached_jobs() const {
  std::vector<std::shared_ptr<const api::TrainingJob>> found;
  for (const auto& scope : scopes_) {
    for (const auto& view : scope->jobs().all())
      found.emplace_back(view, &view->job);
  }
  return found;
}

std::string KubeCluster::Impl::job_of(const control::PodRef& pod) const {
  Scope* const scope = scope_of(pod.namespace_name);
  if (scope == nullptr) return {};
  const auto found = scope->pods().find(cache::key_of(pod.namespace_name, pod.name));
  if (!found || found->meta.uid != pod.uid) return {};
  // An owner is what somebody has written into the pod: that it is here is for us to know.
  const auto job = scope->jobs().find(cache::key_of(pod.namespace_name, found->job_name));
  return job && job->meta.uid == found->job_uid ? found->job_uid : std::string();
}

void KubeCluster::Impl::changed(const control::JobKey& key) {
  const std::shared_lock lock(listener_mutex_);
  if (listener_) listener_(key);
}

/// With the job, or taken away from it.
void KubeCluster::Impl::companion_gone(const kube::Resource& resource, const control::JobKey& job,
                                       const std::string& uid) {
  if (resource.plural == kube::kServices.plural) endpoints_.lost_service(uid);
  const bool is_missed = resource.plural == kube::kEndpointSlices.plural
                             ? endpoints_.lost(uid)
                             : companions_.lost(resource, uid);
  if (is_missed) changed(job);
}

void KubeCluster::Impl::set_listener(Listener listener) {
  const std::unique_lock lock(listener_mutex_);
  listener_ = std::move(listener);
}

Scope* KubeCluster::Impl::scope_of(const std::string& ns) const {
  if (options_.namespaces.empty()) return scopes_.front().get();
  const auto found = std::find(options_.namespaces.begin(), options_.namespaces.end(), ns);
  if (found == options_.namespaces.end()) return nullptr;
  return scopes_[static_cast<size_t>(found - options_.namespaces.begin())].get();
}

/// Where nobody looks, whatever is noted is read by nobody.
OwnWrites& KubeCluster::Impl::own_writes(const std::string& ns) const {
  Scope* const scope = scope_of(ns);
  return (scope != nullptr ? *scope : *scopes_.front()).own_writes();
}

KubeCluster::Impl::Job KubeCluster::Impl::find_job(const control::JobKey& key) const {
  Scope* const scope = scope_of(key.namespace_name);
  if (scope == nullptr) return nullptr;
  return scope->own_writes().newest(
      scope->jobs().find(cache::key_of(key.namespace_name, key.name)));
}

/// What the cache shows, unless a list was seen that is newer; and what this process has written.
std::vector<control::ObservedPod> KubeCluster::Impl::pods_of(const JobView& job) const {
  const auto& cache = scope_of(job.meta.ns)->pods();
  OwnWrites& own = own_writes(job.meta.ns);
  for (;;) {
    const auto awaited = own.awaited(job.meta.uid);
    const ListedPods::Pods listed = listed_pods_.newer_than(cache.version(), job.meta.uid);
    std::vector<control::ObservedPod> pods = listed ? *listed : cached_pods_of(job);
    own.amend(job.meta.uid, awaited, pods);
    for (control::ObservedPod& pod : pods)
      look_at_node(pod);
    // A creation that the cache has shown since is neither in the list nor awaited any more.
    if (!listed || listed_pods_.newer_than(cache.version(), job.meta.uid)) return pods;
  }
}

std::vector<control::ObservedPod> KubeCluster::Impl::cached_pods_of(const JobView& job) const {
  std::vector<control::ObservedPod> pods;
  for (const auto& pod : scope_of(job.meta.ns)->pods().find_by(kPodsByJob, job.meta.uid)) {
    // An owner is of its object's own namespace: elsewhere anybody may name this job.
    if (pod->meta.ns != job.meta.ns) continue;
    pods.push_back(pod->seen);
  }
  return pods;
}

Result<control::Observed> KubeCluster::Impl::observe(const control::JobKey& key) {
  if (key == Ledgers::gone_jobs()) {
    const Status kept = ledgers_.keep_gone();
    if (!kept) return kept.error();
    if (ledgers_.waits()) changed(key);
    return no_job(key);
  }
  const Job job = find_job(key);
  if (!job) return no_job(key);
  if (!scope_of(key.namespace_name)->is_filled()) {
    return Error{ErrorCode::kUnavailable,
                 "the pods of namespace " + key.namespace_name + " are not known yet"};
  }
  control::Observed observed;
  observed.key = key;
  observed.look = ++looks_;
  observed.metadata = job->job.metadata;
  observed.spec = job->job.spec;
  observed.status = job->job.status;
  observed.spec_faults =
      job->faults.empty() ? not_in_pods(job->job.spec, options_.pod_defaults) : job->faults;
  observed.worker_image = render::name_of(job->image, options_.pod_defaults);
  observed.restarts_renew_image = options_.restarts_renew_image;
  observed.pods = pods_of(*job);
  observed.gone = gone_pods_.of(job->meta.uid, observed.pods);
  for (control::ObservedPod& pod : observed.gone)
    look_at_node(pod);
  observed.feasible_nodes = room_for(*job, observed.pods);
  return observed;
}

// ---- The job's own object ----------------------------------------------------------------------

void KubeCluster::Impl::note_job(const json& reply) {
  Result<JobView> view = view_of_job(reply);
  if (!view) return;
  auto job = std::make_shared<const JobView>(*std::move(view));
  own_writes(job->meta.ns).wrote_job(std::move(job));
}

/// What is noted of a job after its end has been shown would stay for ever: nothing tells of that
/// again.
void KubeCluster::Impl::forget_if_gone(const control::JobKey& key, const std::string& uid) {
  Scope* const scope = scope_of(key.namespace_name);
  const auto shown =
      scope == nullptr ? nullptr : scope->jobs().find(cache::key_of(key.namespace_name, key.name));
  if (shown && shown->meta.uid == uid) return;
  own_writes(key.namespace_name).forget_job(uid);
  forget(uid);
}

void KubeCluster::Impl::job_gone(const JobView& job) {
  const std::string& manager = job.job.spec.managed_by;
  const bool is_ours = manager.empty() || manager == api::kManagedBy;
  if (is_ours && ledgers_.gone(job.job.metadata, job.job.status)) changed(Ledgers::gone_jobs());
  forget(job.meta.uid);
}

void KubeCluster::Impl::forget(const std::string& job_uid) {
  ledgers_.forget(job_uid);
  companions_.forget(job_uid);
  endpoints_.forget(job_uid);
  listed_pods_.forget(job_uid);
  gone_pods_.forget(job_uid);
}

Result<std::string> KubeCluster::Impl::put_status(const control::JobKey& key,
                                                  const std::string& uid,
                                                  const api::TrainingJobStatus& status,
                                                  const std::string& resource_version) {
  const json object = {{"apiVersion", api::kApiVersion},
                       {"kind", api::kKind},
                       {"metadata",
                        {{"name", key.name},
                         {"namespace", key.namespace_name},
                         {"uid", uid},
                         {"resourceVersion", resource_version}}},
                       {"status", json::parse(api::encode_status(status))}};
  const PacedCalls::Precedence first = calls_.precede(status.nodes.target);
  const auto reply = options_.client->update_status(kube::kTrainingJobs, object);
  if (!reply) {
    return reply.error().to_error("status of TrainingJob " + key.namespace_name + "/" + key.name);
  }
  note_job(*reply);
  forget_if_gone(key, uid);
  TRAINYARD_ASSIGN(const cache::Meta meta, cache::read_meta(*reply));
  return meta.resource_version;
}

Result<std::optional<control::Refusal>> KubeCluster::Impl::keep_companions(
    const control::Observed& observed, const api::TrainingJobStatus& status) {
  const PacedCalls::Precedence first = calls_.precede(status.nodes.target);
  auto kept = companions_.keep(observed.metadata, observed.spec, status);
  if (kept && !*kept) endpoints_.keep(observed, status);
  const Status noted = ledgers_.keep(observed.metadata, status);
  forget_if_gone(observed.key, observed.metadata.uid);
  if (kept && !noted) return noted.error();
  return kept;
}

Status KubeCluster::Impl::delete_job(const control::JobKey& key, const std::string& uid) {
  const auto reply = options_.client->remove(
      kube::kTrainingJobs, {key.namespace_name, key.name},
      {.preconditions = {.uid = uid}, .propagation = kube::Propagation::kBackground});
  if (!reply) return reply.error().to_error("delete TrainingJob " + key.name);
  own_writes(key.namespace_name).deleted_job(uid);
  forget_if_gone(key, uid);
  return {};
}

std::optional<Duration> KubeCluster::Impl::look_again_in(const std::string& job_uid) {
  std::optional<Duration> first = endpoints_.due_in(job_uid);
  if (const auto due = companions_.due_in(job_uid)) first = std::min(first.value_or(*due), *due);
  for (const auto& scope : scopes_) {
    const auto end = scope->own_writes().first_end(job_uid);
    if (!end) continue;
    const Duration left = std::max(*end - options_.clock->mono(), Duration::zero());
    first = std::min(first.value_or(left), left);
  }
  return first;
}

Status KubeCluster::Impl::emit_event(const control::JobKey& key, const control::Event& event) {
  const Job job = find_job(key);
  if (job) events_.record(job->job.metadata, event);
  return {};
}

// ---- KubeCluster -------------------------------------------------------------------------------

KubeCluster::KubeCluster(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
KubeCluster::~KubeCluster() = default;

void KubeCluster::start() { impl_->start(); }
Status KubeCluster::wait_synced(Duration limit, const std::stop_token& stop) const {
  return impl_->wait_synced(limit, stop);
}
bool KubeCluster::synced() const { return impl_->synced(); }
CacheCounts KubeCluster::counts() const { return impl_->counts(); }
std::vector<control::JobKey> KubeCluster::jobs() const { return impl_->jobs(); }
std::vector<std::shared_ptr<const api::TrainingJob>> KubeCluster::cached_jobs() const {
  return impl_->cached_jobs();
}

std::string KubeCluster::job_of(const control::PodRef& pod) const { return impl_->job_of(pod); }

Result<control::Observed> KubeCluster::observe(const control::JobKey& key) {
  return impl_->observe(key);
}
Result<std::vector<control::ObservedPod>> KubeCluster::list_pods(
    const control::Observed& observed) {
  return impl_->list_pods(observed);
}
Result<std::string> KubeCluster::put_status(const control::JobKey& key, const std::string& uid,
                                            const api::TrainingJobStatus& status,
                                            const std::string& resource_version) {
  return impl_->put_status(key, uid, status, resource_version);
}
Result<std::optional<control::Refusal>> KubeCluster::try_pod(const control::PodSpec& spec) {
  return impl_->try_pod(spec);
}
Result<std::optional<control::Refusal>> KubeCluster::keep_companions(
    const control::Observed& observed, const api::TrainingJobStatus& status) {
  return impl_->keep_companions(observed, status);
}
Status KubeCluster::for_each(int64_t count, const std::function<Status(int64_t)>& call) {
  return impl_->for_each(count, call);
}
Result<control::CreateReply> KubeCluster::create_pod(const control::PodSpec& spec) {
  return impl_->create_pod(spec);
}
Status KubeCluster::delete_pod(const control::PodRef& pod, Duration grace) {
  return impl_->delete_pod(pod, grace);
}
Status KubeCluster::remove_member_label(const control::PodRef& pod) {
  return impl_->remove_member_label(pod);
}
Status KubeCluster::promote_pod(const control::PodRef& pod, int node_index) {
  return impl_->promote_pod(pod, node_index);
}
Status KubeCluster::delete_job(const control::JobKey& key, const std::string& uid) {
  return impl_->delete_job(key, uid);
}
std::optional<Duration> KubeCluster::look_again_in(const std::string& job_uid) {
  return impl_->look_again_in(job_uid);
}
Status KubeCluster::emit_event(const control::JobKey& key, const control::Event& event) {
  return impl_->emit_event(key, event);
}
void KubeCluster::set_listener(Listener listener) { impl_->set_listener(std::move(listener)); }

}  // namespace trainyard::cluster
