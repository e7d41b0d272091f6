// What a KubeCluster knows of nodes: whether they hold, and how many pods they have room for.
#include <algorithm>

#include "common/api/job_size.h"
#include "operator/cluster/kube_cluster_impl.h"

namespace trainyard::cluster {
namespace {

/// Runs with fewer nodes than it wants.
bool is_degraded(const api::TrainingJob& job) {
  return job.spec.elastic_policy && job.status.membership.generation > 0 &&
         job.status.nodes.target < api::largest_allowed(job.spec, job.spec.num_nodes).value_or(0);
}

}  // namespace

bool KubeCluster::Impl::may_see_nodes() const {
  const auto page = options_.client->list(kube::kNodes, "", {.limit = 1, .resource_version = "0"});
  if (page || page.error().reason != kube::Reason::kForbidden) return true;
  options_.logger->warning(
      "nodes cannot be read: until they can, a lost node is noticed only through its pods, and "
      "elastic jobs do not grow",
      {{"error", page.error().message}});
  return false;
}

cache::Handler<NodeView> KubeCluster::Impl::node_handler() {
  using Node = cache::Handler<NodeView>::Object;
  cache::Handler<NodeView> handler;
  handler.added = [this](const Node& node) {
    node_changed(node->meta.name);
    room_changed();
  };
  handler.updated = [this](const Node& before, const Node& node) {
    if (before->ready != node->ready) node_changed(node->meta.name);
    if (node->open && !same_room(*before, *node)) room_changed();
  };
  handler.removed = [this](const Node& node) { node_changed(node->meta.name); };
  return handler;
}

void KubeCluster::Impl::node_changed(const std::string& name) {
  for (const auto& scope : scopes_) {
    for (const auto& pod : scope->pods().find_by(kPodsByNode, name))
      changed({pod->meta.ns, pod->job_name});
  }
}

/// Jobs that run with fewer nodes than they want may find more now.
void KubeCluster::Impl::room_changed() {
  for (const auto& scope : scopes_) {
    for (const auto& job : scope->jobs().all()) {
      if (is_degraded(job->job)) changed({job->meta.ns, job->meta.name});
    }
  }
}

/// By our jobs' pods; what others use is not known here.
Amounts KubeCluster::Impl::used_on(const std::string& node) const {
  Amounts used;
  for (const auto& scope : scopes_) {
    for (const auto& pod : scope->pods().find_by(kPodsByNode, node)) {
      const bool over = pod->seen.phase == control::PodPhase::kSucceeded ||
                        pod->seen.phase == control::PodPhase::kFailed;
      if (over) continue;
      const auto job = scope->jobs().find(cache::key_of(pod->meta.ns, pod->job_name));
      if (job) add_to(used, job->needs.requests);
    }
  }
  return used;
}

/// Told only of a job that runs, every pod of it placed, with fewer nodes than it wants: what a
/// gang that waits for nodes gets, the scheduler says.
std::optional<int64_t> KubeCluster::Impl::room_for(
    const JobView& job, const std::vector<control::ObservedPod>& pods) const {
  if (!is_degraded(job.job) || !nodes_.synced()) return std::nullopt;
  int64_t placed = 0;
  for (const control::ObservedPod& pod : pods) {
    if (!pod.member || pod.terminating) continue;
    if (pod.node.empty()) return std::nullopt;
    ++placed;
  }
  int64_t room = placed;
  for (const auto& node : nodes_.all()) {
    if (room >= job.job.spec.num_nodes) break;
    if (!node->open || !may_go_to(job.needs, node->labels, node->taints)) continue;
    room += pods_that_fit(job.needs, node->allocatable, used_on(node->meta.name));
  }
  return std::min(room, job.job.spec.num_nodes);
}

/// What is known of the node that the pod was placed on.
void KubeCluster::Impl::look_at_node(control::ObservedPod& pod) const {
  using control::NodeState;
  pod.node_closed = false;
  pod.node_state = pod.node.empty() ? NodeState::kUnplaced : NodeState::kReady;
  if (pod.node.empty() || !nodes_.synced()) return;
  const Nodes::Object node = nodes_.find(pod.node);
  pod.node_state = !node         ? NodeState::kGone
                   : node->ready ? NodeState::kReady
                                 : NodeState::kNotReady;
  pod.node_closed = node && !node->open;
}

}  // namespace trainyard::cluster
