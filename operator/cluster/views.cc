#include "operator/cluster/views.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include <nlohmann/json.hpp>

#include "common/api/decode.h"
#include "common/text/rfc3339.h"
#include "control/exit_json.h"
#include "control/pod_spec.h"
#include "control/policies/restart.h"
#include "control/policies/schedule.h"
#include "operator/cluster/members.h"
#include "operator/render/names.h"
#include "operator/render/pod.h"

namespace trainyard::cluster {
namespace {

using nlohmann::json;

/// Of a container's last words, the newest: status keeps no more (api::kMaxNewestAttemptMessage).
constexpr size_t kMessageBytes = 1024;

std::optional<Time> time_at(const json& object, const char* key) {
  const json& value = at(object, key);
  return value.is_string() ? text::parse_time(value.get_ref<const std::string&>()) : std::nullopt;
}

int64_t number_of(const std::string& text) {
  int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

/// The last kMessageBytes, from a character's start.
std::string tail_of(const std::string& text) {
  if (text.size() <= kMessageBytes) return text;
  size_t from = text.size() - kMessageBytes;
  while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80)
    ++from;
  return text.substr(from);
}

std::string sentence(const std::string& reason, const std::string& message) {
  return reason.empty() || message.empty() ? reason + message : reason + ": " + message;
}

/// By convention of shells and container runtimes 128 + n is the end by signal n.
std::optional<int> signal_of(const json& terminated, int exit_code) {
  constexpr int kSignalBase = 128;
  constexpr int kLastSignal = 64;
  const json& told = at(terminated, "signal");
  if (told.is_number_integer() && told.get<int>() > 0) return told.get<int>();
  if (exit_code > kSignalBase && exit_code <= kSignalBase + kLastSignal) {
    return exit_code - kSignalBase;
  }
  return std::nullopt;
}

const json& status_of_container(const json& pod_status, const std::string& name) {
  for (const json& status : at(pod_status, "containerStatuses")) {
    if (text_at(status, "name") == name) return status;
  }
  return at(pod_status, "");
}

const json& end_of(const json& container_status) {
  return at(at(container_status, "state"), "terminated");
}

/// The init container whose failure has ended the pod before its trainer began; of such a pod
/// kubelets say no more. Null where there is none: a pod that says why it failed was ended by
/// somebody else (evicted), and so were its sidecars.
const json& failed_init_container(const json& pod_status) {
  const json& nothing = at(pod_status, "");
  if (text_at(pod_status, "phase") != "Failed" || !text_at(pod_status, "reason").empty()) {
    return nothing;
  }
  for (const json& status : at(pod_status, "initContainerStatuses")) {
    const json& code = at(end_of(status), "exitCode");
    if (code.is_number_integer() && code != 0) return status;
  }
  return nothing;
}

/// An agent's last words say more than the kubelet knows: which rank, by what, at which step.
/// Anything else is a text.
void read_last_words(const std::string& words, control::ContainerExit& exit) {
  exit.message = tail_of(words);
  if (!words.starts_with('{')) return;
  const json record = json::parse(words, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object()) return;
  try {
    const control::ContainerExit told = control::exit_from_json(record);
    exit.message = tail_of(told.message);
    exit.rank = told.rank;
    exit.last_step = told.last_step;
    exit.asked = told.asked;
    exit.signal = told.signal;
    if (exit.reason.empty() || exit.reason == "Error") exit.reason = told.reason;
  } catch (const json::exception&) {
    return;  // a JSON object of somebody else
  }
}

std::optional<control::ContainerExit> exit_of(const json& container_status) {
  const json& terminated = end_of(container_status);
  if (!terminated.is_object()) return std::nullopt;
  control::ContainerExit exit;
  exit.container = text_at(container_status, "name");
  const json& code = at(terminated, "exitCode");
  exit.exit_code = code.is_number_integer() ? code.get<int>() : -1;
  exit.signal = signal_of(terminated, exit.exit_code);
  exit.reason = text_at(terminated, "reason");
  read_last_words(text_at(terminated, "message"), exit);
  exit.finished_at = time_at(terminated, "finishedAt");
  return exit;
}

/// The trainer's, or that of the init container that left it none.
std::optional<control::ContainerExit> deciding_exit(const json& pod_status,
                                                    const json& trainer_status) {
  auto exit = exit_of(trainer_status);
  return exit ? exit : exit_of(failed_init_container(pod_status));
}

std::vector<control::ContainerExit> sidecar_exits(const json& pod_status,
                                                  const std::string& trainer) {
  std::vector<control::ContainerExit> exits;
  for (const json& status : at(pod_status, "containerStatuses")) {
    auto exit = exit_of(status);
    if (exit && exit->exit_code != 0 && exit->container != trainer) {
      exits.push_back(*std::move(exit));
    }
  }
  return exits;
}

bool has_condition(const json& conditions, std::string_view type, std::string_view value) {
  return std::any_of(conditions.begin(), conditions.end(), [&](const json& condition) {
    return text_at(condition, "type") == type && text_at(condition, "status") == value;
  });
}

/// Whether a container that waits for this reason needs somebody's help.
bool is_trouble(const std::string& reason) {
  return control::policies::trouble_of(reason) != nullptr;
}

/// The first container that does not start, init containers before others.
std::optional<control::WaitingContainer> waiting_container(const json& pod_status) {
  for (const char* list : {"initContainerStatuses", "containerStatuses"}) {
    for (const json& status : at(pod_status, list)) {
      const json& waiting = at(at(status, "state"), "waiting");
      if (!waiting.is_object() || !is_trouble(text_at(waiting, "reason"))) continue;
      return control::WaitingContainer{text_at(status, "name"), text_at(waiting, "reason"),
                                       tail_of(text_at(waiting, "message")),
                                       time_at(pod_status, "startTime")};
    }
  }
  return std::nullopt;
}

/// Kubelets say that a pod is ready when all of its containers are. One beside the trainer that has
/// ended, or is not ready itself, holds nothing up; what is no container's affair, as a lost node,
/// leaves ContainersReady as it was.
bool is_ready(const json& pod_status, const json& trainer_status) {
  const json& conditions = at(pod_status, "conditions");
  if (has_condition(conditions, "Ready", "True")) return true;
  return has_condition(conditions, "ContainersReady", "False") &&
         at(trainer_status, "ready") == true;
}

/// The pod's phase; a pod whose trainer has ended is over whatever its sidecars do, and has ended
/// as it did, unless somebody else has ended the pod (evicted it): asked to end, a trainer may end
/// well with its work undone.
control::PodPhase phase_of(const json& pod_status,
                           const std::optional<control::ContainerExit>& exit) {
  using control::PodPhase;
  const std::string phase = text_at(pod_status, "phase");
  if (phase == "Succeeded") return PodPhase::kSucceeded;
  const bool ended_by_others =
      !text_at(pod_status, "reason").empty() ||
      has_condition(at(pod_status, "conditions"), "DisruptionTarget", "True");
  if (phase == "Failed" && (!exit || ended_by_others)) return PodPhase::kFailed;
  if (exit) return exit->exit_code == 0 ? PodPhase::kSucceeded : PodPhase::kFailed;
  return phase == "Pending" || phase.empty() ? PodPhase::kPending : PodPhase::kRunning;
}

/// Texts only where people read them.
control::PodCondition condition_of(const json& condition) {
  control::PodCondition seen{text_at(condition, "type"), text_at(condition, "status"), {}, {}};
  const bool told = (seen.type == "PodScheduled" && seen.status == "False") ||
                    (seen.type == "DisruptionTarget" && seen.status == "True");
  if (!told) return seen;
  seen.reason = text_at(condition, "reason");
  seen.message = tail_of(text_at(condition, "message"));
  return seen;
}

/// The name of the container whose exit ends the pod: as it was written into the pod when it was
/// made, else found as for a template.
std::string trainer_name(const json& metadata, const json& spec) {
  const std::string written = text_at(at(metadata, "annotations"), render::kAnnotationTrainer);
  if (!written.empty()) return written;
  const json& containers = at(spec, "containers");
  if (!containers.is_array() || containers.empty()) return {};
  return text_at(containers[render::trainer_index(spec)], "name");
}

/// Of the container by that name among `containers`; empty: there is none.
std::string image_of(const json& containers, const std::string& name) {
  for (const json& container : containers) {
    if (text_at(container, "name") == name) return text_at(container, "image");
  }
  return {};
}

/// Whether a container beside that one is still running. The phase does not tell: kubelets show an
/// exit before they call the pod ended.
bool another_runs(const json& status, const std::string& container) {
  const json& all = at(status, "containerStatuses");
  return std::any_of(all.begin(), all.end(), [&](const json& one) {
    return text_at(one, "name") != container && at(at(one, "state"), "running").is_object();
  });
}

/// The reference to the job that controls the object; a null where none does.
const json& controlling_owner(const json& object) {
  static const json kNone;
  for (const json& owner : at(at(object, "metadata"), "ownerReferences")) {
    const bool job = text_at(owner, "kind") == api::kKind &&
                     text_at(owner, "apiVersion").starts_with("trainyard.dev/");
    if (job && at(owner, "controller") == true) return owner;
  }
  return kNone;
}

/// Index, generation and membership, from the labels. A pod's name is made of job, index and
/// generation: where the labels say another thing, somebody has changed them, or made a pod by
/// hand. Such a pod is no member, and of no generation: taken at its word it would end a gang, or
/// count generations on to where there are no more.
void read_place(const json& object, control::ObservedPod& pod) {
  const json& labels = at(at(object, "metadata"), "labels");
  const std::string spare = text_at(labels, render::kLabelSpare);
  if (!spare.empty()) pod.spare = number_of(spare);
  const std::string told = text_at(labels, render::kLabelNodeIndex);
  const int64_t index = told.empty() && pod.spare ? -1 : number_of(told);
  const bool possible = index >= 0 && index <= std::numeric_limits<int>::max();
  pod.node_index = possible ? static_cast<int>(index) : -1;
  pod.created_generation = number_of(text_at(labels, render::kLabelGeneration));
  pod.member = text_at(labels, render::kLabelMember) == render::kMemberTrue;
  const json& owner = controlling_owner(object);
  const std::string job = text_at(owner, "name");
  const std::string uid = text_at(owner, "uid");
  const std::string named =
      pod.spare ? control::spare_name(job, uid, *pod.spare)
                : control::pod_name(job, uid, pod.node_index, pod.created_generation);
  if (pod.name == named) return;
  pod.member = false;
  pod.created_generation = 0;
}

/// An empty object where there is none.
json trainer_of(const json& template_spec) {
  const json& containers = at(template_spec, "containers");
  if (!containers.is_array() || containers.empty()) return json::object();
  const json& trainer = containers[render::trainer_index(template_spec)];
  return trainer.is_object() ? trainer : json::object();
}

/// What the job's pods need, the GPUs of its ranks included.
PodNeeds needs_of_pods(const json& template_spec, const json& trainer,
                       const api::TrainingJobSpec& job) {
  PodNeeds needs = needs_of(template_spec);
  const int64_t gpus = render::added_gpus(trainer, job);
  if (gpus > 0) add_to(needs.requests, amounts_of({{api::kGpuResource, gpus}}));
  return needs;
}

control::ObservedPod observed_pod(const json& object, const cache::Meta& meta) {
  const json& metadata = at(object, "metadata");
  const json& spec = at(object, "spec");
  const json& status = at(object, "status");
  control::ObservedPod pod;
  pod.name = meta.name;
  pod.uid = meta.uid;
  pod.node = text_at(spec, "nodeName");
  pod.address = text_at(status, "podIP");
  read_place(object, pod);
  pod.terminating = at(metadata, "deletionTimestamp").is_string();
  pod.ends_at = time_at(metadata, "deletionTimestamp");
  pod.created_at = time_at(metadata, "creationTimestamp");
  const std::string trainer = trainer_name(metadata, spec);
  pod.worker_image = image_of(at(spec, "initContainers"), render::kAgentContainer);
  if (pod.worker_image.empty()) pod.worker_image = image_of(at(spec, "containers"), trainer);
  const json& trainer_status = status_of_container(status, trainer);
  if (!trainer.empty()) {
    pod.exit = deciding_exit(status, trainer_status);
    pod.sidecar_exits = sidecar_exits(status, trainer);
    pod.started_at = time_at(at(at(trainer_status, "state"), "running"), "startedAt");
    pod.lingers = pod.exit.has_value() && another_runs(status, trainer);
  }
  pod.phase = phase_of(status, pod.exit);
  if (pod.phase == control::PodPhase::kPending) pod.waiting = waiting_container(status);
  pod.ready = pod.phase == control::PodPhase::kRunning && is_ready(status, trainer_status);
  for (const json& condition : at(status, "conditions")) {
    pod.conditions.push_back(condition_of(condition));
    const control::PodCondition& seen = pod.conditions.back();
    if (seen.type == "PodScheduled" && seen.status == "True")
      pod.placed_at = time_at(condition, "lastTransitionTime");
  }
  pod.message = tail_of(sentence(text_at(status, "reason"), text_at(status, "message")));
  return pod;
}

bool keeps_pods_out(const json& taint) {
  const std::string effect = text_at(taint, "effect");
  return effect == "NoSchedule" || effect == "NoExecute";
}

}  // namespace

Result<JobView> view_of_job(const json& object) {
  JobView view;
  TRAINYARD_ASSIGN(view.meta, cache::read_meta(object));
  api::CheckedJob checked =
      api::check_training_job(object.dump(-1, ' ', false, json::error_handler_t::replace),
                              {.file = {}, .unknown_keys = api::UnknownKeys::kIgnore});
  for (api::Fault& fault : checked.faults) {
    fault.line = 0;
    view.faults.push_back(api::to_string(fault));
  }
  view.job = std::move(checked.job);
  // A spec that is too large or too deep to be read costs the job none of what was written of it:
  // it would be written anew, without end.
  if (!view.faults.empty() && view.job.status == api::TrainingJobStatus()) {
    Result<api::TrainingJobStatus> status = api::decode_status(
        at(object, "status").dump(-1, ' ', false, json::error_handler_t::replace));
    if (status) view.job.status = *std::move(status);
  }
  // Whatever else could not be read: who it is can be told it.
  api::ObjectMeta& metadata = view.job.metadata;
  metadata.name = view.meta.name;
  metadata.namespace_name = view.meta.ns;
  metadata.uid = view.meta.uid;
  metadata.resource_version = view.meta.resource_version;
  const json& pod_spec = at(at(at(object, "spec"), "template"), "spec");
  const json trainer = trainer_of(pod_spec);
  view.needs = needs_of_pods(pod_spec, trainer, view.job.spec);
  view.image = render::worker_image_of(trainer, view.job.spec);
  const json& generation = at(at(object, "metadata"), "generation");
  if (generation.is_number_integer()) metadata.generation = generation.get<int64_t>();
  return view;
}

Result<PodView> view_of_pod(const json& object) {
  PodView view;
  TRAINYARD_ASSIGN(view.meta, cache::read_meta(object));
  view.job_name = text_at(at(at(object, "metadata"), "labels"), render::kLabelJobName);
  view.job_uid = controlling_job(object);
  view.seen = observed_pod(object, view.meta);
  return view;
}

Result<CompanionView> view_of_companion(const json& object) {
  CompanionView view;
  TRAINYARD_ASSIGN(view.meta, cache::read_meta(object));
  view.job_name = text_at(at(at(object, "metadata"), "labels"), render::kLabelJobName);
  view.job_uid = controlling_job(object);
  return view;
}

Result<NodeView> view_of_node(const json& object) {
  NodeView view;
  TRAINYARD_ASSIGN(view.meta, cache::read_meta(object));
  view.ready = has_condition(at(at(object, "status"), "conditions"), "Ready", "True");
  const json& spec = at(object, "spec");
  view.open = view.ready && at(spec, "unschedulable") != true;
  for (const json& taint : at(spec, "taints")) {
    if (!keeps_pods_out(taint)) continue;
    view.taints.push_back(
        {text_at(taint, "key"), text_at(taint, "value"), text_at(taint, "effect")});
  }
  const json& labels = at(at(object, "metadata"), "labels");
  if (labels.is_object()) {
    for (const auto& [key, value] : labels.items())
      view.labels[key] = value.is_string() ? value.get<std::string>() : "";
  }
  view.allocatable = amounts_of(at(at(object, "status"), "allocatable"));
  return view;
}

bool same_room(const NodeView& a, const NodeView& b) {
  const auto same_taint = [](const Taint& x, const Taint& y) {
    return x.key == y.key && x.value == y.value && x.effect == y.effect;
  };
  return a.open == b.open && a.labels == b.labels && a.allocatable == b.allocatable &&
         std::equal(a.taints.begin(), a.taints.end(), b.taints.begin(), b.taints.end(), same_taint);
}

bool same_to_plan(const PodView& a, const PodView& b) {
  const auto same_exit = [](const auto& x, const auto& y) {
    return x.has_value() == y.has_value() &&
           (!x || (x->exit_code == y->exit_code && x->message == y->message));
  };
  // Kubelets try again and again to pull an image, and say so in turns.
  const auto same_waiting = [](const auto& x, const auto& y) {
    using control::policies::never_has_image;
    using control::policies::trouble_of;
    return x.has_value() == y.has_value() &&
           (!x || (x->container == y->container && trouble_of(x->reason) == trouble_of(y->reason) &&
                   never_has_image(x->reason) == never_has_image(y->reason)));
  };
  const auto same_sidecar = [](const control::ContainerExit& x, const control::ContainerExit& y) {
    return x.container == y.container && x.exit_code == y.exit_code;
  };
  const auto same_condition = [](const control::PodCondition& x, const control::PodCondition& y) {
    return x.type == y.type && x.status == y.status && x.reason == y.reason &&
           x.message == y.message;
  };
  const control::ObservedPod& x = a.seen;
  const control::ObservedPod& y = b.seen;
  return a.job_uid == b.job_uid && x.uid == y.uid && x.node == y.node && x.address == y.address &&
         x.node_index == y.node_index && x.created_generation == y.created_generation &&
         x.member == y.member && x.terminating == y.terminating && x.ends_at == y.ends_at &&
         x.phase == y.phase && x.ready == y.ready && x.lingers == y.lingers &&
         x.started_at.has_value() == y.started_at.has_value() && x.message == y.message &&
         same_exit(x.exit, y.exit) && same_waiting(x.waiting, y.waiting) &&
         std::equal(x.sidecar_exits.begin(), x.sidecar_exits.end(), y.sidecar_exits.begin(),
                    y.sidecar_exits.end(), same_sidecar) &&
         std::equal(x.conditions.begin(), x.conditions.end(), y.conditions.begin(),
                    y.conditions.end(), same_condition);
}

std::string controlling_job(const json& object) {
  return text_at(controlling_owner(object), "uid");
}

}  // namespace trainyard::cluster
