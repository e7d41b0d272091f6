#include "operator/stream/leader_label.h"

#include <nlohmann/json.hpp>

#include "operator/cache/meta.h"
#include "operator/kube/resource.h"

namespace trainyard::stream {
namespace {

using nlohmann::json;

constexpr char kTrue[] = "true";
/// What tells the pods of one release from those of another (charts/trainyard), each of which has a
/// leader of its own.
constexpr const char* kReleaseLabels[] = {"app.kubernetes.io/name", "app.kubernetes.io/instance"};

Status set_label(const kube::Client& client, const cache::Meta& pod, const json& value) {
  const auto reply =
      client.merge_patch(kube::kPods, {pod.ns, pod.name},
                         {{"metadata", {{"labels", {{kLeaderLabel, value}}}}}}, {.uid = pod.uid});
  if (reply || reply.error().reason == kube::Reason::kNotFound) return {};
  return reply.error().to_error("label pod " + pod.ns + "/" + pod.name);
}

/// Selects the leaders among the pods that are of one release with `own`.
std::string leaders_beside(const json& own) {
  std::string selector = std::string(kLeaderLabel) + "=" + kTrue;
  const json labels = own["metadata"].value("labels", json());
  for (const char* name : kReleaseLabels) {
    const json value = labels.is_object() ? labels.value(name, json()) : json();
    if (value.is_string()) selector += std::string(",") + name + "=" + value.get<std::string>();
  }
  return selector;
}

}  // namespace

Status label_leader(const kube::Client& client, const kube::ObjectName& pod) {
  const auto own = client.get(kube::kPods, pod);
  if (!own) return own.error().to_error("get pod " + pod.ns + "/" + pod.name);
  TRAINYARD_ASSIGN(const cache::Meta meta, cache::read_meta(*own));
  const auto page = client.list(kube::kPods, pod.ns, {.label_selector = leaders_beside(*own)});
  if (!page) return page.error().to_error("list pods of namespace " + pod.ns);
  bool labelled = false;
  for (const json& item : page->items) {
    TRAINYARD_ASSIGN(const cache::Meta found, cache::read_meta(item));
    if (found.name == pod.name) {
      labelled = true;
      continue;
    }
    TRAINYARD_TRY(set_label(client, found, nullptr));
  }
  return labelled ? Status() : set_label(client, meta, kTrue);
}

}  // namespace trainyard::stream
