#include "operator/stream/leader_label.h"

#include <nlohmann/json.hpp>

#include "operator/cache/meta.h"
#include "operator/kube/resource.h"

namespace trainyard::stream {
namespace {

using nlohmann::json;

constexpr char kTrue[] = "true";

Status set_label(const kube::Client& client, const cache::Meta& pod, const json& value) {
  const auto reply =
      client.merge_patch(kube::kPods, {pod.ns, pod.name},
                         {{"metadata", {{"labels", {{kLeaderLabel, value}}}}}}, {.uid = pod.uid});
  if (reply || reply.error().reason == kube::Reason::kNotFound) return {};
  return reply.error().to_error("label pod " + pod.ns + "/" + pod.name);
}

}  // namespace

Status label_leader(const kube::Client& client, const kube::ObjectName& pod) {
  const auto page =
      client.list(kube::kPods, pod.ns, {.label_selector = std::string(kLeaderLabel) + "=" + kTrue});
  if (!page) return page.error().to_error("list pods of namespace " + pod.ns);
  bool labelled = false;
  for (const json& item : page->items) {
    TRAINYARD_ASSIGN(const cache::Meta meta, cache::read_meta(item));
    if (meta.name == pod.name) {
      labelled = true;
      continue;
    }
    TRAINYARD_TRY(set_label(client, meta, nullptr));
  }
  if (labelled) return {};
  const auto own = client.get(kube::kPods, pod);
  if (!own) return own.error().to_error("get pod " + pod.ns + "/" + pod.name);
  TRAINYARD_ASSIGN(const cache::Meta meta, cache::read_meta(*own));
  return set_label(client, meta, kTrue);
}

}  // namespace trainyard::stream
