#include "operator/render/pod.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/api/job_size.h"
#include "common/api/validate.h"
#include "operator/render/companions.h"
#include "operator/render/environment.h"
#include "operator/render/names.h"

namespace trainyard::render {
namespace {

using nlohmann::json;

// Volumes of ours; a template's volumes have other names.
constexpr char kShmVolume[] = "trainyard-shm";
constexpr char kEngineVolume[] = "trainyard-engine";
constexpr char kCheckpointVolume[] = "trainyard-checkpoints";
constexpr char kControlVolume[] = "trainyard-control";
constexpr char kAgentVolume[] = "trainyard-agent";
constexpr char kMetricsPortName[] = "metrics";
/// kubelets renew it after four fifths of that.
constexpr int kTokenSeconds = 3600;
/// Nobody, as "nonroot" of distroless images.
constexpr int kWorkerUser = 65532;
/// Of the container that copies the agent, some 30 MB. Less than any trainer asks for, so that it
/// changes no scheduling; said at all, as quotas want it; limits equal to requests, so that a pod
/// that is Guaranteed stays so.
constexpr char kCopyCpu[] = "100m";
constexpr char kCopyMemory[] = "64Mi";
/// The API takes 1 to 100.
constexpr int kStrongestWish = 100;

/// object[key], made an object (or list) where it is nothing yet.
json& part(json& object, const char* key, json::value_t kind) {
  json& found = object[key];
  if (found.type() != kind) found = json(kind);
  return found;
}

json& object_part(json& object, const char* key) {
  return part(object, key, json::value_t::object);
}
json& list_part(json& object, const char* key) { return part(object, key, json::value_t::array); }

void set_default(json& object, const char* key, json value) {
  if (!object.contains(key) || object[key].is_null()) object[key] = std::move(value);
}

/// What the template says; nothing for an engine that has none.
json template_of(const control::PodSpec& pod) {
  json parsed = json::parse(pod.template_json, nullptr, /*allow_exceptions=*/false);
  return parsed.is_object() ? std::move(parsed) : json::object();
}

json labels_of(const json& from_template, const control::PodSpec& pod) {
  json labels = from_template.is_object() ? from_template : json::object();
  if (pod.spare) {
    labels[kLabelSpare] = std::to_string(*pod.spare);
  } else {
    labels.update(member_labels(pod.node_index));
    if (!pod.member) labels.erase(kLabelMember);
  }
  labels[kLabelJobName] = pod.job_name;
  labels[kLabelJobUid] = pod.job_uid;
  labels[kLabelRole] = pod.role;
  labels[kLabelGeneration] = std::to_string(pod.created_generation);
  labels[kLabelKubeflowJobName] = pod.job_name;
  labels[kLabelKubeflowReplicaType] = "worker";
  return labels;
}

json metadata_of(const json& from_template, const api::ObjectMeta& job,
                 const control::PodSpec& pod) {
  json metadata = {{"name", pod.name},
                   {"namespace", pod.namespace_name},
                   {"labels", labels_of(from_template.value("labels", json()), pod)},
                   {"ownerReferences", json::array({owner_reference(job)})}};
  metadata["ownerReferences"][0]["uid"] = pod.job_uid;
  const auto annotations = from_template.find("annotations");
  if (annotations != from_template.end() && annotations->is_object()) {
    metadata["annotations"] = *annotations;
  }
  return metadata;
}

/// Whether something is mounted at that place, however its path is written.
bool mounts(const json& container, const std::string& path) {
  const auto list = container.find("volumeMounts");
  if (list == container.end() || !list->is_array()) return false;
  return std::any_of(list->begin(), list->end(), [&](const json& mount) {
    const json there = mount.is_object() ? mount.value("mountPath", json()) : json();
    return there.is_string() && api::is_same_place(there.get_ref<const std::string&>(), path);
  });
}

/// Adds a volume and its place in the container. What a template mounts there is refused before
/// (api::check_pod_places).
void add_volume(json& spec, json& container, json volume, const std::string& path, bool read_only) {
  json mount = {{"name", volume["name"]}, {"mountPath", path}};
  if (read_only) mount["readOnly"] = true;
  list_part(container, "volumeMounts").push_back(std::move(mount));
  list_part(spec, "volumes").push_back(std::move(volume));
}

/// The template's volume of that claim; null where it has none.
json volume_of_claim(const json& spec, const std::string& claim) {
  const auto volumes = spec.find("volumes");
  if (volumes == spec.end() || !volumes->is_array()) return nullptr;
  for (const json& volume : *volumes) {
    if (!volume.is_object() || !volume.contains("persistentVolumeClaim")) continue;
    const json& source = volume["persistentVolumeClaim"];
    if (source.is_object() && source.value("claimName", json()) == claim) return volume;
  }
  return nullptr;
}

/// Where checkpoints go. A kubelet that finds one claim in two volumes of a pod waits for the
/// second for ever, so the template's is taken where data lie there as well.
void add_checkpoints(json& spec, json& container, const std::string& claim) {
  const json theirs = volume_of_claim(spec, claim);
  if (!theirs.is_object()) {
    return add_volume(
        spec, container,
        {{"name", kCheckpointVolume}, {"persistentVolumeClaim", {{"claimName", claim}}}},
        kCheckpointFolder, /*read_only=*/false);
  }
  if (mounts(container, kCheckpointFolder)) return;  // that volume: check_pod_places has looked
  // Whatever is given as a name: what is none, such as a number, the server refuses.
  list_part(container, "volumeMounts")
      .push_back({{"name", theirs.value("name", json())}, {"mountPath", kCheckpointFolder}});
}

/// Ours first, so that the template's variables may refer to them.
void add_environment(json& container, json ours) {
  const json theirs = std::exchange(list_part(container, "env"), json());
  for (const json& variable : theirs) {
    const bool named = variable.is_object() && variable.contains("name");
    if (named && variable["name"].is_string() &&
        api::is_reserved_env(variable["name"].get_ref<const std::string&>())) {
      continue;
    }
    ours.push_back(variable);
  }
  container["env"] = std::move(ours);
}

/// The restricted Pod Security Standard, which our image runs under; of other images we know
/// nothing. https://kubernetes.io/docs/concepts/security/pod-security-standards/
void restrict_built_in(json& spec, json& container) {
  json& of_pod = object_part(spec, "securityContext");
  set_default(of_pod, "runAsNonRoot", true);
  set_default(of_pod, "runAsUser", kWorkerUser);
  set_default(of_pod, "fsGroup", kWorkerUser);
  set_default(of_pod, "seccompProfile", {{"type", "RuntimeDefault"}});
  json& of_container = object_part(container, "securityContext");
  set_default(of_container, "allowPrivilegeEscalation", false);
  set_default(of_container, "capabilities", {{"drop", json::array({"ALL"})}});
}

void add_scheduling(json& spec, const api::SchedulingSpec& scheduling) {
  if (!scheduling.scheduler_name.empty()) spec["schedulerName"] = scheduling.scheduler_name;
  if (!scheduling.priority_class_name.empty()) {
    spec["priorityClassName"] = scheduling.priority_class_name;
  }
}

/// A wish, no demand: where no other node takes the pod, it goes to one that is to be avoided
/// rather than nowhere. A field takes one value for each requirement.
void avoid_nodes(json& spec, const std::vector<std::string>& nodes) {
  if (nodes.empty()) return;
  json names = json::array();
  for (const std::string& node : nodes)
    names.push_back({{"key", "metadata.name"}, {"operator", "NotIn"}, {"values", {node}}});
  json& affinity = object_part(object_part(spec, "affinity"), "nodeAffinity");
  list_part(affinity, "preferredDuringSchedulingIgnoredDuringExecution")
      .push_back({{"weight", kStrongestWish}, {"preference", {{"matchFields", std::move(names)}}}});
}

/// Whether the member is text, and not empty.
bool names(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() && *found != "";
}

/// The container whose exit ends the pod; made where an engine's job has none.
json& trainer_of(json& spec) {
  json& containers = list_part(spec, "containers");
  if (containers.empty()) containers.push_back({{"name", api::kTrainerContainer}});
  json& trainer = containers[trainer_index(spec)];
  if (!trainer.is_object()) trainer = json::object();
  return trainer;
}

/// The port at which an agent serves its metrics. Pods that share the network of their node share
/// its ports: there the agent takes any that is free (0), unless the template declares the usual
/// one.
int agent_port(const json& spec, const json& container) {
  const json ports = container.value("ports", json::array());
  const bool declared = std::any_of(ports.begin(), ports.end(), [](const json& port) {
    return port.is_object() && port.value("containerPort", json()) == kAgentMetricsPort;
  });
  const bool shared = spec.value("hostNetwork", json()) == true;
  return shared && !declared ? 0 : kAgentMetricsPort;
}

/// What an agent finds in its pod: a token that is good for the control stream alone, the
/// authorities to trust, a port for its metrics.
void prepare_agent(const api::ObjectMeta& job, json& spec, json& container) {
  json sources = json::array(
      {{{"serviceAccountToken",
         {{"audience", kControlAudience},
          {"expirationSeconds", kTokenSeconds},
          {"path", kTokenFile}}}},
       {{"configMap",
         {{"name", control_config_name(job)},
          {"items", json::array({{{"key", kAuthoritiesFile}, {"path", kAuthoritiesFile}}})}}}}});
  add_volume(spec, container,
             {{"name", kControlVolume}, {"projected", {{"sources", std::move(sources)}}}},
             kControlFolder, /*read_only=*/true);
  // It tells us more than its last lines do: a message of its own.
  container["terminationMessagePath"] = kTerminationLog;
  // Declared in a pod of its node's network, a port becomes one of the node.
  if (spec.value("hostNetwork", json()) == true) return;
  json& ports = list_part(container, "ports");
  const bool named = std::any_of(ports.begin(), ports.end(), [](const json& port) {
    return port.is_object() && (port.value("name", json()) == kMetricsPortName ||
                                port.value("containerPort", json()) == kAgentMetricsPort);
  });
  if (!named) ports.push_back({{"name", kMetricsPortName}, {"containerPort", kAgentMetricsPort}});
}

/// Of a container with our image.
void set_pull_policy(json& container, const PodDefaults& defaults) {
  if (defaults.worker_image_pull_policy.empty()) return;
  set_default(container, "imagePullPolicy", defaults.worker_image_pull_policy);
}

/// Whether the trainer asks for a resource of NVIDIA's, parts of GPUs too, or for devices by
/// claims.
bool asks_for_gpus(const json& trainer) {
  const json resources = trainer.value("resources", json::object());
  if (!resources.is_object()) return false;
  if (resources.contains("claims")) return true;
  const json limits = resources.value("limits", json::object());
  if (!limits.is_object()) return false;
  const auto entries = limits.items();
  return std::any_of(entries.begin(), entries.end(),
                     [](const auto& limit) { return limit.key().starts_with("nvidia.com/"); });
}

/// Whether the trainer may have any: it asks for them, or gets them.
bool may_have_gpus(const json& trainer, const api::TrainingJobSpec& job) {
  if (!job.engine || job.engine->device == api::DeviceKind::kCpu) return false;
  return asks_for_gpus(trainer) || added_gpus(trainer, job) > 0;
}

void add_gpus(json& spec, json& trainer, const api::TrainingJobSpec& job,
              const PodDefaults& defaults) {
  if (!may_have_gpus(trainer, job)) return;
  if (const int64_t added = added_gpus(trainer, job); added > 0) {
    object_part(object_part(trainer, "resources"), "limits")[api::kGpuResource] = added;
  }
  if (!defaults.gpu_runtime_class.empty() && !names(spec, "runtimeClassName")) {
    spec["runtimeClassName"] = defaults.gpu_runtime_class;
  }
}

/// The container that brings the agent. It runs our own image, so it can say all that the
/// restricted Pod Security Standard asks for, whatever the rest of the pod does.
json agent_bringer(const std::string& image, const PodDefaults& defaults) {
  const json room = {{"cpu", kCopyCpu}, {"memory", kCopyMemory}};
  json bringer = {
      {"name", kAgentContainer},
      {"image", image},
      {"args", json::array({"install", kAgentFolder})},
      {"resources", {{"requests", room}, {"limits", room}}},
      {"terminationMessagePolicy", "FallbackToLogsOnError"},
      {"volumeMounts", json::array({{{"name", kAgentVolume}, {"mountPath", kAgentFolder}}})},
      {"securityContext",
       {{"runAsNonRoot", true},
        {"runAsUser", kWorkerUser},
        {"allowPrivilegeEscalation", false},
        {"readOnlyRootFilesystem", true},
        {"capabilities", {{"drop", json::array({"ALL"})}}},
        {"seccompProfile", {{"type", "RuntimeDefault"}}}}}};
  set_pull_policy(bringer, defaults);
  return bringer;
}

/// The agent becomes the container's first process and starts its command once a rank. It comes
/// with its own loader and libraries: the image may have others, or none (docs/adr/0012).
void inject_agent(json& spec, json& container, const std::string& image,
                  const PodDefaults& defaults) {
  add_volume(spec, container, {{"name", kAgentVolume}, {"emptyDir", json::object()}}, kAgentFolder,
             /*read_only=*/true);
  json& before = list_part(spec, "initContainers");
  before.insert(before.begin(), agent_bringer(image, defaults));
  json command = json::array({std::string(kAgentFolder) + "/start", "--"});
  for (json& word : list_part(container, "command"))
    command.push_back(std::move(word));
  container["command"] = std::move(command);
}

}  // namespace

json member_labels(int node_index) {
  const std::string index = std::to_string(node_index);
  json labels = {{kLabelMember, kMemberTrue},
                 {kLabelNodeIndex, index},
                 {kLabelRole, control::kTrainerRole},
                 {kLabelKubeflowReplicaIndex, index},
                 {kLabelCompletionIndex, index}};
  if (node_index == 0) labels[kLabelKubeflowJobRole] = "master";
  return labels;
}

size_t trainer_index(const json& pod_spec) {
  const auto containers = pod_spec.find("containers");
  if (containers == pod_spec.end()) return 0;
  for (size_t i = 0; i < containers->size(); ++i) {
    const json& container = (*containers)[i];
    if (container.is_object() && container.value("name", json()) == api::kTrainerContainer) {
      return i;
    }
  }
  return 0;
}

WorkerImage worker_image_of(const json& trainer, const api::TrainingJobSpec& job) {
  if (api::needs_injected_agent(job)) return WorkerImage::kCpu;
  if (!job.engine || names(trainer, "image")) return WorkerImage::kNone;
  return may_have_gpus(trainer, job) ? WorkerImage::kGpu : WorkerImage::kCpu;
}

const std::string& name_of(WorkerImage image, const PodDefaults& defaults) {
  static const std::string none;
  if (image == WorkerImage::kNone) return none;
  const bool is_own = image == WorkerImage::kGpu && !defaults.worker_gpu_image.empty();
  return is_own ? defaults.worker_gpu_image : defaults.worker_image;
}

int64_t added_gpus(const json& trainer, const api::TrainingJobSpec& job) {
  const bool wants = job.engine && job.engine->device == api::DeviceKind::kCuda;
  return wants && !asks_for_gpus(trainer) ? api::ranks_per_node(job) : 0;
}

json render_pod(const api::ObjectMeta& job, const api::TrainingJobSpec& spec,
                const control::PodSpec& pod, const PodDefaults& defaults) {
  json pod_template = template_of(pod);
  json metadata = metadata_of(object_part(pod_template, "metadata"), job, pod);
  json pod_spec = std::move(object_part(pod_template, "spec"));
  pod_spec.erase("nodeName");
  pod_spec["restartPolicy"] = "Never";
  pod_spec["hostname"] =
      pod.spare ? spare_host_name(pod.job_name) : host_name(pod.job_name, pod.node_index);
  pod_spec["subdomain"] = service_name(job);
  pod_spec["terminationGracePeriodSeconds"] = pod.grace.count();
  // Who names an account wants what it may do.
  if (!names(pod_spec, "serviceAccountName")) {
    set_default(pod_spec, "automountServiceAccountToken", false);
  }
  // A pod among thousands of services would get thousands of variables.
  set_default(pod_spec, "enableServiceLinks", false);
  if (pod_spec.value("hostNetwork", json()) == true) {
    set_default(pod_spec, "dnsPolicy", "ClusterFirstWithHostNet");
  }
  add_scheduling(pod_spec, spec.scheduling);
  avoid_nodes(pod_spec, pod.avoid_nodes);

  json& trainer = trainer_of(pod_spec);
  if (json name = trainer.value("name", json()); name.is_string()) {
    metadata["annotations"][kAnnotationTrainer] = std::move(name);
  }
  const std::string image = pod.worker_image.empty()
                                ? name_of(worker_image_of(trainer, spec), defaults)
                                : pod.worker_image;
  add_gpus(pod_spec, trainer, spec, defaults);
  if (runs_agent(spec)) prepare_agent(job, pod_spec, trainer);
  if (api::needs_injected_agent(spec)) inject_agent(pod_spec, trainer, image, defaults);
  if (spec.engine && !names(trainer, "image")) {
    trainer["image"] = image;
    set_pull_policy(trainer, defaults);
    restrict_built_in(pod_spec, trainer);
  }
  set_default(trainer, "terminationMessagePolicy", "FallbackToLogsOnError");
  add_environment(trainer, environment_of(job, spec, pod, defaults, agent_port(pod_spec, trainer)));
  // A template may bring its own, of another size.
  if (!mounts(trainer, api::kShmFolder)) {
    add_volume(pod_spec, trainer, {{"name", kShmVolume}, {"emptyDir", {{"medium", "Memory"}}}},
               api::kShmFolder, /*read_only=*/false);
  }
  if (spec.engine) {
    add_volume(pod_spec, trainer,
               {{"name", kEngineVolume}, {"configMap", {{"name", engine_config_name(job, spec)}}}},
               kEngineFolder, /*read_only=*/true);
  }
  if (spec.checkpoint_policy.storage) {
    add_checkpoints(pod_spec, trainer,
                    spec.checkpoint_policy.storage->persistent_volume_claim.claim_name);
  }
  return {{"apiVersion", "v1"},
          {"kind", "Pod"},
          {"metadata", std::move(metadata)},
          {"spec", std::move(pod_spec)}};
}

}  // namespace trainyard::render
