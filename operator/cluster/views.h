#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/api/training_job.h"
#include "common/base/error.h"
#include "control/observed.h"
#include "operator/cache/store.h"
#include "operator/cluster/room.h"
#include "operator/render/pod.h"

/// What is kept of the server's objects: what plan needs, and no more. Pure.
namespace trainyard::cluster {

/// A TrainingJob.
struct JobView {
  cache::Meta meta;
  api::TrainingJob job;
  /// What is wrong with the spec as it is stored, a sentence each; then `job.spec` means nothing.
  std::vector<std::string> faults;
  /// Of each of its pods.
  PodNeeds needs;
  render::WorkerImage image = render::WorkerImage::kNone;
};

/// A pod with the label trainyard.dev/job-name.
struct PodView {
  cache::Meta meta;
  std::string job_name;  ///< of the label
  std::string job_uid;   ///< of the TrainingJob that controls it; empty: nobody's
  /// As plan sees it; `node_state` is for whoever knows the nodes.
  control::ObservedPod seen;
};

/// What stands beside a job's pods: that it is there, and whose it is.
struct CompanionView {
  cache::Meta meta;
  std::string job_name;  ///< of the label
  std::string job_uid;   ///< as PodView's
};

/// A node.
struct NodeView {
  cache::Meta meta;
  bool ready = false;
  bool open = false;  ///< ready and not cordoned
  std::map<std::string, std::string> labels;
  std::vector<Taint> taints;  ///< that keep pods out: NoSchedule, NoExecute
  Amounts allocatable;
};

/// Never an error: what cannot be decoded is a fault, told in the job's condition.
Result<JobView> view_of_job(const nlohmann::json& object);
/// Errors: kInvalidData for what has no name or uid.
Result<PodView> view_of_pod(const nlohmann::json& object);
/// As view_of_pod.
Result<NodeView> view_of_node(const nlohmann::json& object);
/// As view_of_pod; metadata is enough.
Result<CompanionView> view_of_companion(const nlohmann::json& object);

/// Whether the two are the same to whoever asks how many pods fit.
bool same_room(const NodeView& a, const NodeView& b);

/// Whether the two look the same to plan, and to those who look for the pod by its name.
bool same_to_plan(const PodView& a, const PodView& b);

/// UID of the object's controller if that is a TrainingJob; empty otherwise.
std::string controlling_job(const nlohmann::json& object);

}  // namespace trainyard::cluster
