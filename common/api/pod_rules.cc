#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/api/pod_template.h"
#include "common/text/quantity.h"

namespace trainyard::api {
namespace {

using text::Kind;
using text::Node;

/// One object of a template, with what rules ask of it.
class PodObject {
 public:
  PodObject(const Node& node, const std::string& path, FaultList& faults)
      : node_(node), path_(path), faults_(faults) {}

  /// The member that is given; nullptr without one.
  const Node* find(std::string_view field) const {
    const Node* found = node_.find(field);
    return found == nullptr || found->kind == Kind::kNull ? nullptr : found;
  }
  std::string text(std::string_view field) const {
    const Node* found = find(field);
    return found != nullptr && found->kind == Kind::kString ? found->string : std::string();
  }
  bool is_true(std::string_view field) const {
    const Node* found = find(field);
    return found != nullptr && found->kind == Kind::kBool && found->boolean;
  }
  /// The items of a list; empty for anything else.
  std::span<const Node> items(std::string_view field) const {
    const Node* found = find(field);
    return found == nullptr ? std::span<const Node>() : std::span<const Node>(found->items);
  }
  PodObject item(std::string_view list, size_t index) const {
    return {node_.find(list)->items[index], text::join_path(at(list), index), faults_};
  }
  /// A member that is an object.
  PodObject inner(std::string_view field) const { return {*node_.find(field), at(field), faults_}; }
  std::string at(std::string_view field) const { return text::join_path(path_, field); }

  /// Faults `field`, or this object where `field` is empty, unless `holds` or it has a fault.
  void require(bool holds, std::string_view field, std::string found, std::string wanted) const {
    const std::string path = field.empty() ? path_ : at(field);
    if (holds || faults_.has(path)) return;
    const Node* value = field.empty() ? nullptr : node_.find(field);
    faults_.add_at(value == nullptr ? node_.line : value->line, path, std::move(found),
                   std::move(wanted));
  }

  const Node& node() const { return node_; }

 private:
  const Node& node_;
  std::string path_;
  FaultList& faults_;
};

/// Fields of a type of which one is given: exactly, or where `may_lack` at most. Without names: any
/// field of the object but `name`.
struct Choice {
  std::string_view type;
  std::vector<std::string_view> fields;
  bool may_lack = false;
};

const std::vector<Choice>& choices() {
  static const std::vector<Choice> all = {
      {"EnvVar", {"value", "valueFrom"}, true},
      {"EnvVarSource",
       {"configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef"}},
      {"EnvFromSource", {"configMapRef", "secretRef"}},
      {"LifecycleHandler", {"exec", "httpGet", "sleep", "tcpSocket"}},
      {"Probe", {"exec", "grpc", "httpGet", "tcpSocket"}},
      {"Volume", {}, true},
      {"VolumeMount", {"subPath", "subPathExpr"}, true},
      {"VolumeProjection",
       {"clusterTrustBundle", "configMap", "downwardAPI", "podCertificate", "secret",
        "serviceAccountToken"}},
      {"DownwardAPIVolumeFile", {"fieldRef", "resourceFieldRef"}},
      {"PodResourceClaim", {"resourceClaimName", "resourceClaimTemplateName"}},
  };
  return all;
}

void check_choice(const Choice& choice, const PodObject& object) {
  std::vector<std::string_view> given;
  for (const text::Member& member : object.node().members) {
    const bool listed = choice.fields.empty()
                            ? member.key != "name"
                            : std::find(choice.fields.begin(), choice.fields.end(), member.key) !=
                                  choice.fields.end();
    // Empty text is as good as none.
    const bool empty = member.value.kind == Kind::kNull ||
                       (member.value.kind == Kind::kString && member.value.string.empty());
    if (listed && !empty) given.push_back(member.key);
  }
  if (given.size() > 1) {
    object.require(false, given[1], std::string(given[1]) + " beside " + std::string(given[0]),
                   "one of the two");
  } else if (given.empty() && !choice.may_lack) {
    object.require(false, "", "nothing", join_choices(choice.fields));
  }
}

std::optional<int64_t> amount_of(const Node* value) {
  return value == nullptr ? std::nullopt : text::parse_quantity(value->string);
}

/// Resources that cannot be overcommitted: those with a domain, such as nvidia.com/gpu, and huge
/// pages.
bool is_exclusive(std::string_view resource) {
  return resource.find('/') != std::string_view::npos || resource.starts_with("hugepages-");
}

/// Devices are whole. Amounts are in thousandths.
void check_whole(const PodObject& object) {
  constexpr int64_t kOne = 1000;
  for (const std::string_view list : {"limits", "requests"}) {
    const Node* amounts = object.find(list);
    if (amounts == nullptr) continue;
    for (const text::Member& member : amounts->members) {
      const std::optional<int64_t> amount = amount_of(&member.value);
      if (!amount || member.key.find('/') == std::string::npos) continue;
      object.require(*amount % kOne == 0, text::join_path(std::string(list), member.key),
                     text::describe(member.value), "a whole number, as devices are not divided");
    }
  }
}

void check_resources(const PodObject& object) {
  check_whole(object);
  const Node* limits = object.find("limits");
  const Node* requests = object.find("requests");
  if (requests == nullptr) return;
  for (const text::Member& request : requests->members) {
    const Node* limit = limits == nullptr ? nullptr : limits->find(request.key);
    const std::optional<int64_t> wanted = amount_of(&request.value);
    const std::optional<int64_t> most = amount_of(limit);
    const std::string field = text::join_path("requests", request.key);
    if (!wanted) continue;
    if (most && is_exclusive(request.key)) {
      object.require(*wanted == *most, field, text::describe(request.value),
                     "the limit, " + text::describe(*limit));
    } else if (most) {
      object.require(*wanted <= *most, field, text::describe(request.value),
                     "at most the limit, " + text::describe(*limit));
    } else if (is_exclusive(request.key)) {
      object.require(limit != nullptr, field, "no limit",
                     "the same amount in limits, as this resource is not shared");
    }
  }
}

void check_toleration(const PodObject& object) {
  const bool exists = object.text("operator") == "Exists";
  object.require(exists || !object.text("key").empty(), "key", "nothing",
                 "a key, or operator Exists for every taint");
  object.require(!exists || object.text("value").empty(), "value",
                 text::describe(object.text("value")), "no value, as operator is Exists");
  object.require(
      object.find("tolerationSeconds") == nullptr || object.text("effect") == "NoExecute",
      "tolerationSeconds", "a number", "effect NoExecute too");
}

void check_requirement(const PodObject& object) {
  const std::string op = object.text("operator");
  const size_t count = object.items("values").size();
  const std::string found = std::to_string(count) + " values";
  if (op == "In" || op == "NotIn") {
    object.require(count > 0, "values", found, "at least one, as operator is " + op);
  } else if (op == "Exists" || op == "DoesNotExist") {
    object.require(count == 0, "values", found, "none, as operator is " + op);
  } else if (op == "Gt" || op == "Lt") {
    object.require(count == 1, "values", found, "one number, as operator is " + op);
  }
}

/// Containers of both lists share one set of names.
void check_container_names(const PodObject& pod) {
  std::set<std::string> names;
  for (const std::string_view list : {"initContainers", "containers"}) {
    for (size_t i = 0; i < pod.items(list).size(); ++i) {
      const PodObject container = pod.item(list, i);
      const std::string name = container.text("name");
      container.require(name.empty() || names.insert(name).second, "name", text::describe(name),
                        "a name that no other container has");
    }
  }
}

/// Mounts and devices name a volume of the pod.
void check_mounts(const PodObject& pod) {
  std::set<std::string> volumes;
  for (size_t i = 0; i < pod.items("volumes").size(); ++i)
    volumes.insert(pod.item("volumes", i).text("name"));
  for (const std::string_view list : {"initContainers", "containers"}) {
    for (size_t i = 0; i < pod.items(list).size(); ++i) {
      const PodObject container = pod.item(list, i);
      for (const std::string_view kind : {"volumeMounts", "volumeDevices"}) {
        for (size_t j = 0; j < container.items(kind).size(); ++j) {
          const PodObject mount = container.item(kind, j);
          const std::string name = mount.text("name");
          // Trainyard adds volumes of its own, which other containers may share.
          mount.require(name.empty() || volumes.contains(name) || name.starts_with("trainyard-"),
                        "name", text::describe(name), "the name of one of the pod's volumes");
        }
      }
    }
  }
}

/// Ports of the node, which a pod takes once.
void check_host_ports(const PodObject& pod) {
  const bool host_network = pod.is_true("hostNetwork");
  std::set<std::string> taken;
  for (size_t i = 0; i < pod.items("containers").size(); ++i) {
    const PodObject container = pod.item("containers", i);
    std::set<std::string> names;
    for (size_t j = 0; j < container.items("ports").size(); ++j) {
      const PodObject port = container.item("ports", j);
      const std::string name = port.text("name");
      port.require(name.empty() || names.insert(name).second, "name", text::describe(name),
                   "a name that no other port of the container has");
      const Node* of_container = port.find("containerPort");
      const Node* of_host = port.find("hostPort");
      if (host_network && of_container != nullptr && of_host != nullptr) {
        port.require(of_host->integer == 0 || of_host->integer == of_container->integer, "hostPort",
                     text::describe(*of_host), "containerPort, as hostNetwork is true");
      }
      if (of_host == nullptr || of_host->integer == 0) continue;
      const std::string protocol = port.text("protocol");
      const std::string key =
          of_host->string + " " + (protocol.empty() ? "TCP" : protocol) + " " + port.text("hostIP");
      port.require(taken.insert(key).second, "hostPort", text::describe(*of_host),
                   "a port that no other container of the pod uses");
    }
  }
}

/// What servers allow of some of a container's probes only.
void check_probes(const PodObject& container) {
  for (const std::string_view name : {"livenessProbe", "startupProbe"}) {
    const Node* probe = container.find(name);
    const Node* threshold = probe == nullptr ? nullptr : probe->find("successThreshold");
    if (threshold == nullptr || threshold->kind != Kind::kInteger) continue;
    container.require(threshold->integer == 0 || threshold->integer == 1,
                      text::join_path(std::string(name), "successThreshold"),
                      text::describe(*threshold), "1, as the first success counts");
  }
  const Node* ready = container.find("readinessProbe");
  const Node* grace = ready == nullptr ? nullptr : ready->find("terminationGracePeriodSeconds");
  container.require(grace == nullptr || grace->kind == Kind::kNull,
                    "readinessProbe.terminationGracePeriodSeconds", "a number",
                    "none, as this probe ends nothing");
}

bool leads_up(std::string_view path) {
  while (!path.empty()) {
    const size_t slash = std::min(path.find('/'), path.size());
    if (path.substr(0, slash) == "..") return true;
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return false;
}

void check_relative(const PodObject& object, std::string_view field) {
  const std::string path = object.text(field);
  object.require(!path.starts_with('/') && !leads_up(path), field, text::describe(path),
                 "a relative path without ..");
}

/// A file of a volume: ".." begins names that the kubelet keeps for itself.
void check_file(const PodObject& object) {
  check_relative(object, "path");
  const std::string path = object.text("path");
  object.require(!path.starts_with(".."), "path", text::describe(path),
                 "a path that does not begin with ..");
}

/// Files of all sources lie in one folder.
void check_projected(const PodObject& volume) {
  std::set<std::string> paths;
  const auto take = [&paths](const PodObject& file) {
    const std::string path = file.text("path");
    file.require(path.empty() || paths.insert(path).second, "path", text::describe(path),
                 "a path that no other source of the volume has");
  };
  for (size_t i = 0; i < volume.items("sources").size(); ++i) {
    const PodObject source = volume.item("sources", i);
    for (const std::string_view list : {"configMap", "secret", "downwardAPI"}) {
      const Node* from = source.find(list);
      if (from == nullptr) continue;
      const PodObject object = source.inner(list);
      for (size_t j = 0; j < object.items("items").size(); ++j)
        take(object.item("items", j));
    }
    if (source.find("serviceAccountToken") != nullptr) take(source.inner("serviceAccountToken"));
  }
}

/// What the operator sets in every pod: what a template says there would count for nothing.
void check_set_by_operator(const PodObject& pod) {
  const auto refuse = [&pod](std::string_view field, const char* wanted) {
    const Node* value = pod.find(field);
    if (value != nullptr) pod.require(false, field, text::describe(*value), wanted);
  };
  refuse("activeDeadlineSeconds",
         "none: it would stop single pods; spec.activeDeadlineSeconds stops the job");
  refuse("terminationGracePeriodSeconds",
         "none: it is checkpointPolicy.preemptionCheckpointSeconds + 30 s");
  refuse("hostname", "none: pods are named JOB-INDEX");
  refuse("subdomain", "none: it is the job's name");
}

void check_pod(const PodObject& pod) {
  check_set_by_operator(pod);
  check_container_names(pod);
  check_mounts(pod);
  check_host_ports(pod);
  for (size_t i = 0; i < pod.items("initContainers").size(); ++i) {
    const PodObject container = pod.item("initContainers", i);
    container.require(!container.text("image").empty(), "image", "nothing", "a container image");
  }
  pod.require(pod.items("ephemeralContainers").empty(), "ephemeralContainers", "a list",
              "none: they are added to running pods");
}

/// Of the pods' metadata: what is left to the operator.
void check_metadata(const PodObject& metadata) {
  metadata.require(metadata.items("finalizers").empty(), "finalizers", "a list",
                   "none: they block deletion of pods");
  metadata.require(metadata.items("ownerReferences").empty(), "ownerReferences", "a list",
                   "none: the job owns its pods");
}

}  // namespace

void check_pod_rules(std::string_view type, const Node& object, const std::string& path,
                     FaultList& faults) {
  const PodObject checked(object, path, faults);
  for (const Choice& choice : choices()) {
    if (choice.type == type) check_choice(choice, checked);
  }
  if (type == "PodSpec") {
    check_pod(checked);
  } else if (type == "ResourceRequirements") {
    check_resources(checked);
  } else if (type == "Container") {
    check_probes(checked);
  } else if (type == "VolumeMount") {
    check_relative(checked, "subPath");
    check_relative(checked, "subPathExpr");
  } else if (type == "KeyToPath" || type == "DownwardAPIVolumeFile") {
    check_file(checked);
  } else if (type == "ProjectedVolumeSource") {
    check_projected(checked);
  } else if (type == "Toleration") {
    check_toleration(checked);
  } else if (type == "NodeSelectorRequirement" || type == "LabelSelectorRequirement") {
    check_requirement(checked);
  } else if (type == "NodeSelector") {
    checked.require(!checked.items("nodeSelectorTerms").empty(), "nodeSelectorTerms",
                    "an empty list", "at least one term");
  } else if (type == "ObjectMeta" && path.ends_with("template.metadata")) {
    check_metadata(checked);
  }
}

}  // namespace trainyard::api
